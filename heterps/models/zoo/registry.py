"""The models by name."""

from __future__ import annotations

from typing import Any

import torch

from heterps.errors import InvalidInput, did_you_mean
from heterps.models.batch import Batch
from heterps.models.chain import Chain
from heterps.models.zoo.ctrdnn import CtrDnn
from heterps.models.zoo.dcn import DcnV2
from heterps.models.zoo.deepfm import DeepFm
from heterps.models.zoo.dlrm import Dlrm
from heterps.models.zoo.matchnet import MatchNet
from heterps.models.zoo.model import Model, Twin
from heterps.models.zoo.nce import Nce
from heterps.models.zoo.two_embeddings import TwoEmbeddings
from heterps.models.zoo.wide_and_deep import WideAndDeep

MODELS: dict[str, type[Model]] = {
    "ctrdnn": CtrDnn,
    "matchnet": MatchNet,
    "2emb": TwoEmbeddings,
    "nce": Nce,
    "dlrm": Dlrm,
    "deepfm": DeepFm,
    "dcn-v2": DcnV2,
    "wide-and-deep": WideAndDeep,
}


def names() -> tuple[str, ...]:
    """The names of all models; the first four are the paper's."""
    return tuple(MODELS)


def model(name: str, **args: Any) -> Model:
    """A model's arguments, checked; an `InvalidInput` for a name or an argument that there is not."""
    if name not in MODELS:
        raise InvalidInput(f"unknown model {name!r}; the zoo has {', '.join(MODELS)}.{did_you_mean(name, MODELS)}")
    return MODELS[name].from_dict(args, source=f"model {name}")


def build(name: str, **args: Any) -> Chain:
    """The chain of a model; its dense weights depend on `seed` alone, not on torch's generator, which stays as it is.

    `model(name)` documents the arguments. `paper=True`, where there is one, gives the layers that the planning problem
    of that name has (`heterps.schedule.paper`), with their names and by default their widths.
    """
    made = model(name, **args)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(made.seed)
        return Chain(*made.layers(), name=name)


def example(name: str, batch_size: int, *, rows: int = 1000, seed: int = 0, **args: Any) -> Batch:
    """A random batch of the form the model reads, with ids from 0 to rows - 1; `args` are those of `build`."""
    if batch_size < 1 or rows < 1:
        raise InvalidInput(f"an example has at least one sample and one row, not {batch_size} and {rows}")
    return model(name, **args).example(batch_size, rows, torch.Generator().manual_seed(seed))


def twin(name: str, *, rows: int, **args: Any) -> Twin:
    """The same model as an ordinary module, with `nn.Embedding`s of so many rows; `args` are those of `build`."""
    return model(name, **args).twin(rows)
