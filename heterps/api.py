"""The steps of the command line as functions: `heterps.profile`, `heterps.plan`, `heterps.compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.plan import Cluster, Plan, Profile
from heterps.schedule.comparison import Comparison, compare_methods
from heterps.schedule.goal import Goal
from heterps.schedule.paper import MODELS, paper_cluster, paper_profile
from heterps.schedule.planner import OnProgress, make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings

if TYPE_CHECKING:
    from heterps.job import Job
    from heterps.profile.measure import OnProgress as OnMeasured


def load_problem(profile: Profile | str | Path, cluster: Cluster | str | Path, goal: Goal) -> Problem:
    """A problem from values, files or names of built-in ones (`ctrdnn`, …; `paper`)."""
    profile_source, cluster_source = _source(profile, "profile"), _source(cluster, "cluster")
    if not isinstance(profile, Profile):
        profile = paper_profile(str(profile)) if str(profile) in MODELS else Profile.load(profile)
    if not isinstance(cluster, Cluster):
        cluster = paper_cluster() if str(cluster) == "paper" else Cluster.load(cluster)
    return Problem(profile, cluster, goal, profile_source, cluster_source)


def profile(
    job: Job | str | Path,
    *,
    types: Sequence[str] | None = None,
    fresh: bool = False,
    on_progress: OnMeasured = lambda *_: None,
) -> Profile:
    """What each layer of a job costs on each type of hardware, as `heterps profile` tells.

    Args:
        job: a `Job` or its file.
        types: names of this machine's types or of the catalog; by default the job's cluster, and this machine's.
        fresh: measure again, whatever the cache has.
        on_progress: called with what is being measured, and the share that is done.
    """
    from heterps import catalog as catalogs
    from heterps.job import Job
    from heterps.loop.here import profiled_types
    from heterps.loop.measuring import measure_job
    from heterps.profile.assemble import assemble

    job = job if isinstance(job, Job) else Job.load(job)
    measured, _ = measure_job(job, fresh=fresh, on_progress=on_progress)
    catalog = catalogs.load()
    return assemble(
        measured, profiled_types(job, measured.hardware, measured.links, catalog, names=types), catalog=catalog
    )


def plan(
    profile: Profile | str | Path,
    cluster: Cluster | str | Path,
    *,
    method: str = "auto",
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **goal: Any,
) -> Plan:
    """The cheapest plan for a goal, as `heterps plan` makes it.

    Args:
        profile: a `Profile`, a file, or the name of a built-in model.
        cluster: a `Cluster`, a file, or `"paper"`.
        method: a search method; `auto` takes `exact`.
        seed: of the methods that draw at random.
        on_progress: called with a `Progress` as the search goes on.
        goal: the fields of `heterps.schedule.goal.Goal`, such as `min_throughput=80000`.

    Raises:
        Infeasible: if no plan meets the goal; says what is reachable and what stops it.
        InvalidInput: for a bad file, goal or method.
    """
    problem = load_problem(profile, cluster, Goal(**goal))
    return make_plan(problem, method=method, settings=Settings(seed=seed), on_progress=on_progress)


def compare(
    profile: Profile | str | Path,
    cluster: Cluster | str | Path,
    *,
    methods: Sequence[str] | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    **goal: Any,
) -> Comparison:
    """All methods side by side, as `heterps compare` shows them; the arguments are those of `plan`."""
    problem = load_problem(profile, cluster, Goal(**goal))
    return compare_methods(problem, methods=methods, settings=Settings(seed=seed), on_progress=on_progress)


def _source(given: object, otherwise: str) -> str:
    return str(given) if isinstance(given, str | Path) else otherwise
