"""`heterps profile`: what each layer of a job costs on each type of hardware."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli.options import Json


def profile(
    job_file: Annotated[str, typer.Argument(metavar="JOB", help="job.yaml; heterps init writes one.")],
    types: Annotated[
        str | None,
        typer.Option(help="Types by name, with commas: cpu, catalog names; by default the job's, and those here."),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="profile.json", help="Write the profile to a file.")] = None,
    cluster_out: Annotated[
        str | None, typer.Option(metavar="cluster.yaml", help="Write the types, with prices, to a file.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever the cache has.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as train.batch_size=512.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure every layer on the hardware here, and derive what it costs elsewhere."""
    from heterps import catalog as catalogs
    from heterps.cli.measuring import measured_job
    from heterps.cli.plans import check_first
    from heterps.job import Job
    from heterps.loop.here import profiled_types
    from heterps.profile.assemble import assemble
    from heterps.profile.hardware import here

    job = Job.load(job_file).with_values(settings or (), source=job_file)
    catalog = catalogs.load()
    asked = None if types is None else [name.strip() for name in types.split(",") if name.strip()]
    check_first(job, catalog)
    profiled_types(job, here(), None, catalog, names=asked)  # names that there are not are refused first
    measured = measured_job(job, fresh=fresh, quiet=json)
    cluster = profiled_types(job, measured.hardware, measured.links, catalog, names=asked)
    made = assemble(measured, cluster, catalog=catalog)
    if out is not None:
        made.save(out)
    if cluster_out is not None:
        cluster.save(cluster_out)
    if json:
        typer.echo(made.to_text(), nl=False)
        return
    from rich.console import Console

    from heterps.report.profiles import profile_table

    Console(markup=False, emoji=False).print(profile_table(made, list(cluster.types)))
    for path in (out, cluster_out):
        if path is not None:
            typer.echo(f"written to {path}")
