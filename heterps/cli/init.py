"""`heterps init`: a commented job file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.errors import InvalidInput, did_you_mean

MODELS = ("ctrdnn", "dlrm", "deepfm", "dcn-v2", "wide-and-deep")
"""Models of the zoo that read what these sources give: dense, ids, label."""

DATA = {
    "synthetic": "data: {source: synthetic, rows: 200000, ids: 1000000}   # click data made up as it is read",
    "criteo": "data: {source: criteo, path: day_*.gz, transform: log}   # files or any fsspec URL, such as s3://…",
    "parquet": """data:
  source: parquet
  path: data/*.parquet             # files or any fsspec URL, such as s3://…
  label: label                     # column of 0 and 1
  dense: [price]                   # columns of numbers
  sparse: [user, item]             # columns of one id: strings or whole numbers""",
    "csv": """data:
  source: csv
  path: data/*.csv                 # files or any fsspec URL, such as s3://…
  label: label                     # column of 0 and 1
  dense: [price]                   # columns of numbers
  sparse: [user, item]             # columns of one id: strings or whole numbers""",
}

TEMPLATE = """\
# A training job. Run it with: heterps run {file}
# Every key but model and data has a default; paths are relative to where the command runs.

# A model of the zoo ({models}, …) with its arguments,
# or package.module:function that returns a heterps.Chain or an nn.Module.
model: {{name: {model}, args: {args}}}

# Where the rows come from.
{data}

train:
  batch_size: 4096                 # samples of a step
  epochs: 1                        # passes over the data; or steps: N
  optimizer: adam                  # of dense weights: adam, adamw, adagrad, sgd, rmsprop
  lr: 0.001                        # rows have their own: args: {{optimizer: rowwise-adagrad, lr: 0.01}}
  seed: 0                          # of weights, first values of rows and shuffling
  precision: float32               # or bf16
  micro_batches: 1                 # parts of a batch, for plans of several stages
  mode: sync                       # or async, with staleness: 1 and more
  # clip_norm: 1.0
  # schedule: {{name: cosine, steps: 1000, warmup_steps: 100}}

eval:
  fraction: 0.1                    # of the rows are held out
  every_steps: 500                 # and at the end
  # early_stop: {{patience: 3}}      # evaluations without a gain

checkpoint:
  every_minutes: 10                # in the run's directory; or path: somewhere/else
  keep: 2

# What there is to rent: names of `heterps catalog` with limits, a cluster.yaml, or types written out.
# Without it the job is planned for this machine alone.
# cluster: [cpu:480, t4:32, h200:8]

# What the plan must reach, for the least money: samples a second,
# or samples with deadline_hours or budget_usd; max_usd_per_hour with any.
# goal: {{min_throughput: 500000}}

# How to plan (exact proves its optimum), and by what share a run may leave its prediction before it says so:
plan: {{method: auto, tolerance: 0.25}}    # or file: plan.json
"""


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = Path("job.yaml"),
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}, or package.module:function.")] = "ctrdnn",
    data: Annotated[str, typer.Option(help=f"{', '.join(DATA)}.")] = "synthetic",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a commented job file."""
    if data not in DATA:
        raise InvalidInput(f"--data is one of {', '.join(DATA)}, not {data!r}.{did_you_mean(data, DATA)}")
    if model not in MODELS and ":" not in model:
        raise InvalidInput(
            f"--model is one of {', '.join(MODELS)}, or package.module:function, not {model!r}."
            f"{did_you_mean(model, MODELS)}"
        )
    if file.exists() and not force:
        raise InvalidInput(f"{file} exists; choose another name, or replace it with --force")
    text = TEMPLATE.format(file=file, model=model, models=", ".join(MODELS), data=DATA[data], args=_args(model, data))
    try:
        file.write_text(text)
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be written ({error.strerror}); choose another path") from None
    typer.echo(f"written to {file}; run it with: heterps run {file}")


def _args(model: str, data: str) -> str:
    """Arguments that fit the columns of the data."""
    if ":" in model:
        return "{}"
    return "{dim: 16, slots: 2, dense: 1}" if data in ("parquet", "csv") else "{dim: 16}"
