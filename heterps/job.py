"""A training job as a file: `job.yaml`, written by people, and what is made of it.

Relative paths in it are relative to the working directory. Every key but `model` and `data` has a default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from heterps.documents import Document, FrozenDict, FrozenMap, Part, to_yaml
from heterps.errors import InvalidInput, did_you_mean
from heterps.plan import Cluster

if TYPE_CHECKING:
    from heterps.data import Source
    from heterps.models import Batch, Chain
    from heterps.runtime import Settings

_EXAMPLE_SAMPLES = 8
"""Of the batch that an ordinary module is traced with."""


class _Section(Part):
    """A part of a job; a key that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class Model(_Section):
    """Which model to train."""

    name: str = Field(min_length=1, description="a zoo name, or package.module:function")
    args: FrozenMap[Any] = Field(default=FrozenDict(), description="arguments of the model, by name")


class Train(_Section):
    """How to train; see `heterps.runtime.Settings`."""

    batch_size: int = Field(default=4096, ge=1, description="samples of a step")
    micro_batches: int = Field(default=1, ge=1, description="parts of a batch that stages work on at the same time")
    mode: Literal["sync", "async"] = "sync"
    staleness: int | None = Field(default=None, ge=0, description="steps a stage may run ahead, in mode async")
    epochs: int | None = Field(default=None, ge=1, description="passes over the data; 1, unless steps are given")
    steps: int | None = Field(default=None, ge=1, description="steps in all")
    precision: Literal["float32", "bf16", "bfloat16"] = "float32"
    optimizer: str = Field(default="adam", description="of dense weights: adam, adamw, adagrad, sgd or rmsprop")
    lr: float = Field(default=1e-3, ge=0, description="learning rate of dense weights")
    seed: int = Field(default=0, ge=0, lt=2**63, description="of weights, first values of rows and shuffling")
    clip_norm: float | None = Field(default=None, gt=0, description="largest norm of a step's dense gradients")
    schedule: FrozenMap[Any] | None = Field(
        default=None, description="{name: constant | cosine | linear | exponential, warmup_steps: N, and its options}"
    )

    @model_validator(mode="after")
    def _staleness_is_async(self) -> Self:
        if self.staleness and self.mode == "sync":
            raise ValueError(f"staleness {self.staleness} needs mode: async; sync training has none")
        return self


class EarlyStopping(_Section):
    """When to stop before the end."""

    patience: int = Field(default=3, ge=1, description="evaluations without a gain")
    min_gain: float = Field(default=0.0, ge=0, description="what the AUC must gain")


class Eval(_Section):
    """What to hold out, and when to evaluate on it."""

    fraction: float = Field(default=0.1, ge=0, lt=1, description="of the rows, held out; 0 for none")
    every_steps: int | None = Field(default=None, ge=1, description="steps between evaluations; else at the end only")
    batches: int | None = Field(default=None, ge=1, description="batches of an evaluation; else all")
    early_stop: EarlyStopping | None = None

    @model_validator(mode="after")
    def _early_stop_needs_evaluations(self) -> Self:
        if self.early_stop is not None and (self.every_steps is None or self.fraction == 0):
            raise ValueError("early_stop needs every_steps and a fraction above 0")
        return self


class Checkpoint(_Section):
    """Where and how often to save."""

    path: str | None = Field(default=None, description="a directory; by default the run's own")
    every_minutes: float | None = Field(default=10.0, gt=0, description="minutes between checkpoints; null for never")
    every_steps: int | None = Field(default=None, ge=1, description="steps between checkpoints")
    keep: int = Field(default=2, ge=1, description="newest checkpoints to keep")
    delta: bool = Field(default=True, description="save only rows that changed, but for every tenth time")


class JobGoal(_Section):
    """What a plan must reach; see `heterps.schedule.goal.Goal`."""

    min_throughput: float | None = None
    samples: float | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    max_usd_per_hour: float | None = None

    @model_validator(mode="after")
    def _is_one_goal(self) -> Self:
        from heterps.schedule.goal import Goal

        try:
            Goal(**self.model_dump())
        except InvalidInput as error:
            raise ValueError(re.sub(r"--([a-z-]+)", lambda word: word[1].replace("-", "_"), str(error))) from None
        return self


class PlanChoice(_Section):
    """Which plan to run: a file, or the method that makes one."""

    method: str = Field(default="auto", description="auto, or a method of heterps plan")
    file: str | None = Field(default=None, description="plan.json")
    tolerance: float = Field(
        default=0.25, gt=0, description="share by which a run's throughput may leave its prediction before it says so"
    )

    @model_validator(mode="after")
    def _method_is_known(self) -> Self:
        from heterps.schedule.methods import AUTO, METHODS, ONLY

        known = [AUTO, *METHODS]
        if self.method not in known and not self.method.startswith(ONLY):
            raise ValueError(
                f"method is one of {', '.join(known)}, only:TYPE, not {self.method!r}."
                f"{did_you_mean(self.method, known)}"
            )
        if self.file is not None and "method" in self.model_fields_set and self.method != AUTO:
            raise ValueError("give either method or file")
        return self


class Engine(_Section):
    """What runs the plan."""

    name: Literal["local", "ray"] = "local"
    address: str | None = Field(default=None, description="of a running Ray cluster, or auto; else one is started here")
    replicas: int | None = Field(
        default=None, ge=1, description="processes of each stage, at most its units; else as few as machines allow"
    )
    shards: int | None = Field(default=None, ge=1, description="parameter servers; else as the plan says")
    wait_minutes: float = Field(default=0.0, ge=0, description="minutes to wait for a cluster that is large enough")
    compress: Literal["bf16"] | None = Field(default=None, description="of activations and gradients between machines")
    sums: Literal["auto", "mail", "gloo", "nccl"] = Field(
        default="auto", description="of dense gradients over replicas; auto: nccl on GPUs, else mail, which has keys"
    )
    elastic: bool = Field(
        default=False, description="go on by a smaller plan where machines are lost, and by this one when they are back"
    )
    stragglers: Literal["tell", "replace"] = Field(
        default="tell", description="of replicas that are much slower than the others of their stage"
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="where to serve metrics for Prometheus; 0 for any port that is free"
    )
    metrics_host: str | None = Field(
        default=None, min_length=1, description="address to serve them on; by default the coordinator's in the cluster"
    )

    @field_validator("name")
    @classmethod
    def _is_there(cls, name: str) -> str:
        if name == "ray" and find_spec("ray") is None:
            raise ValueError("engine ray needs Ray: pip install heterps[ray]")
        return name

    @model_validator(mode="after")
    def _only_ray_has_options(self) -> Self:
        kinds = type(self).model_fields
        given = sorted(key for key in self.model_fields_set if getattr(self, key) != kinds[key].default)
        if self.name == "local" and given:
            raise ValueError(f"{', '.join(given)}: for engine ray; local has no options")
        return self


class Job(Document):
    """A training job (`job.yaml`)."""

    model_config = ConfigDict(extra="forbid")

    model: Model = Field(description="{name, args}")
    data: FrozenMap[Any] = Field(description="{source: synthetic | criteo | parquet | csv, and the source's options}")
    train: Train = Train()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    cluster: Any = None
    goal: JobGoal | None = None
    plan: PlanChoice = PlanChoice()
    engine: Engine = Engine()
    _source: str = PrivateAttr(default="job")

    @classmethod
    def from_dict(cls, data: object, *, source: str = "job") -> Self:
        """Validates plain data; `source` is how messages call it, those about the model and the data too."""
        job = super().from_dict(data, source=source)
        job._source = source
        return job

    @field_validator("cluster")
    @classmethod
    def _cluster_is_sound(cls, cluster: Any) -> Any:
        if isinstance(cluster, Mapping):
            try:
                return Cluster.from_dict(cluster, source="").to_dict()
            except InvalidInput as error:
                raise ValueError(str(error).removeprefix(": ")) from None
        if cluster is None or (isinstance(cluster, str) and cluster):
            return cluster
        if isinstance(cluster, list) and cluster and all(isinstance(name, str) and name for name in cluster):
            return tuple(cluster)
        raise ValueError("a cluster is a file, a mapping with types, or a list of catalog names")

    @field_validator("train", "eval", "checkpoint", "plan", "engine", mode="before")
    @classmethod
    def _short_forms(cls, given: Any, info: ValidationInfo) -> Any:
        if info.field_name == "engine" and isinstance(given, str):
            return {"name": given}
        return {} if given is None else given  # a section whose keys are all commented out

    def to_dict(self) -> dict[str, Any]:
        """Plain data with every default, without what is unset."""
        data = super().to_dict()
        if self.checkpoint.every_minutes is None:
            data["checkpoint"]["every_minutes"] = None  # not the default
        return data

    def to_text(self) -> str:
        """The file's text, as YAML."""
        return to_yaml(self.to_dict())

    def with_values(self, settings: Sequence[str], *, source: str) -> Job:
        """The job with some keys changed, each written as `train.lr=0.01`; values are as in YAML."""
        data = self.model_dump(mode="json", exclude_unset=True)
        for setting in settings:
            key, equals, text = setting.partition("=")
            *path, last = key.split(".")
            if not equals or not last:
                raise InvalidInput(f"a setting is KEY=VALUE, such as train.lr=0.01, not {setting!r}")
            section = data
            for part in path:
                section = section.setdefault(part, {})
                if not isinstance(section, dict):
                    raise InvalidInput(f"setting {setting!r}: {part} has no keys of its own")
            section[last] = parse_value(text)
        return Job.from_dict(data, source=f"{source} with {', '.join(settings)}") if settings else self

    def load_cluster(self) -> Cluster | None:
        """The cluster of a file or one written inline, checked; None for catalog names, the paper's, and for none."""
        if isinstance(self.cluster, str) and self.cluster != "paper":
            return Cluster.load(self.cluster)
        return Cluster.from_dict(self.cluster, source="cluster") if isinstance(self.cluster, Mapping) else None

    def sources(self) -> tuple[Source, Source | None]:
        """The rows to train on, and the rows held out, if any."""
        from heterps.data import make_source

        with self._named():
            source = make_source(self.data)
            return source.split(self.eval.fraction, seed=self.train.seed) if self.eval.fraction else (source, None)

    def example(self, source: Source) -> Batch:
        """The first rows of the data."""
        with self._named():
            with source.reader(batch_size=_EXAMPLE_SAMPLES, shuffle=False) as reader:
                for read in reader:
                    return read.batch
            raise InvalidInput("data: there are no rows")

    def build(self, source: Source) -> Chain:
        """The model, with its first weights."""
        from heterps.models.named import build_named, is_function

        model = self.model
        with self._named():
            chain = build_named(model.name, model.args, seed=self.train.seed, example=lambda: self.example(source))
            if not is_function(model.name):
                self._check_columns(self.example(source))
            return chain

    def _check_columns(self, batch: Batch) -> None:
        """A model of the zoo is made for so many slots and numbers: those of the data."""
        from heterps.models import zoo

        made: Any = zoo.model(self.model.name, **self.model.args)
        if not hasattr(made, "slots") or not hasattr(made, "dense"):
            return
        values: dict[str, Any] = {"slots": batch.get("ids"), "dense": batch.get("dense")}
        there = {name: 0 if value is None else int(value.shape[1]) for name, value in values.items()}
        wanted = {"slots": made.slots, "dense": made.dense}
        each = getattr(made, "ids_per_slot", 1)
        if (wanted["slots"] * each, wanted["dense"]) == (there["slots"], there["dense"]):
            return
        raise InvalidInput(
            f"{self.model.name} is made for {wanted['slots'] * each} slots and {wanted['dense']} numbers, the data has "
            f"{there['slots']} and {there['dense']}: set model args {{slots: {there['slots'] // each}, "
            f"dense: {there['dense']}}}"
        )

    def settings(self, *, checkpoints: str | Path | None = None, **more: Any) -> Settings:
        """The runtime's settings; `checkpoints` is where to save unless the job says where."""
        from heterps.runtime import Checkpoints, EarlyStop, Settings
        from heterps.runtime.schedules import make_schedule

        train = self.train.model_dump()
        stop, saving = self.eval.early_stop, self.checkpoint.model_dump()
        path = saving.pop("path") or checkpoints
        with self._named("train: "):
            return Settings(
                **{**train, "schedule": make_schedule(train["schedule"])},
                eval_every=self.eval.every_steps,
                eval_batches=self.eval.batches,
                early_stop=EarlyStop(**stop.model_dump()) if stop is not None else None,
                checkpoints=Checkpoints(path=path, **saving) if path is not None else None,
                **more,
            )

    def naming(self, part: str) -> AbstractContextManager[None]:
        """Within it, errors say that it is this job's file, and which part of it."""
        return self._named(f"{part}: ")

    @contextmanager
    def _named(self, part: str = "") -> Iterator[None]:
        """Lets errors say which file is wrong."""
        try:
            yield
        except InvalidInput as error:
            if str(error).startswith(f"{self._source}: "):
                raise
            raise InvalidInput(f"{self._source}: {part}{error}") from error

    def check_resumes(self, earlier: Job, *, run: str) -> None:
        """An `InvalidInput` if this job is another one than the run's so far: other weights, other rows."""
        for what, ours, theirs in (
            ("model", self.model, earlier.model),
            ("data", self.data, earlier.data),
            ("eval.fraction", self.eval.fraction, earlier.eval.fraction),
            ("train.seed", self.train.seed, earlier.train.seed),
        ):
            if ours != theirs:
                raise InvalidInput(
                    f"run {run!r} was begun with another {what}; give this one a name of its own (--name), or start a "
                    "fresh run (--no-resume)"
                )


def parse_value(text: str) -> Any:
    """A value as YAML, or JSON (which knows 1e-3 as a number)."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidInput(f"{text!r} is no YAML: {' '.join(str(error).split())}") from None


def read_data(text: str) -> Job | Mapping[str, Any]:
    """What to evaluate on: another job's file, or a `data` mapping written inline."""
    if not Path(text).is_file():
        inline = parse_value(text)
        if isinstance(inline, Mapping):
            return inline
    return Job.load(text)
