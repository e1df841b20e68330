"""Planning problems after the HeterPS paper (arXiv 2111.10635): its four models on CPU cores and V100s.

From the paper come the kinds of models, their numbers of layers, the prices and the servers. Widths, tables and ids a
sample are assumed, of the size public benchmarks have, and costs are derived (`heterps.schedule.roofline`), so absolute
numbers are not the paper's. Each model is cut into one ordered chain; layers are declared for one sample, in floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from heterps.errors import InvalidInput, did_you_mean
from heterps.plan import Cluster, Profile, ResourceType
from heterps.schedule.roofline import FLOAT_BYTES, ID_BYTES, Device, LayerWork, derive_layer
from heterps.units import GIGA

MODELS: tuple[str, ...] = ("ctrdnn", "matchnet", "2emb", "nce")

CPU = Device(  # one core of a server of 2 x 24 Xeon Gold cores (the paper's)
    name="cpu",
    peak_flops_per_s=2 * 16 * 2 * 1.8 * GIGA,  # published: 2 AVX-512 units, 16 floats, multiply-add; assumed: 1.8 GHz
    compute_efficiency=0.5,  # assumed: its share of a batch is a few dozen samples, too few to reuse weights well
    memory_bytes_per_s=6 * 21.3 * GIGA / 24,  # published: 6 channels of DDR4-2666 a socket; assumed: shared evenly
    row_efficiency=0.25,  # assumed: a hash probe for each row, and rows of only a few cache lines
    overhead_s=20e-6,  # assumed: a few framework calls a layer for forward, backward and update
    link_gbps=2.0,  # published: 100 Gb/s a server, for 48 cores
    bus_bytes_per_s=None,
    units_per_host=48,  # published
)

V100 = Device(  # one GPU of a server of 8 (the paper's)
    name="v100",
    peak_flops_per_s=15.7e12,  # published: fp32
    compute_efficiency=0.7,  # assumed: matrix products of about a thousand samples
    memory_bytes_per_s=900 * GIGA,  # published
    row_efficiency=0.25,  # assumed: as on a CPU
    overhead_s=50e-6,  # assumed: ten kernels a layer for forward, backward and update, 5 us to launch each
    link_gbps=100.0,  # published: the paper's link; assumed: one for each GPU
    bus_bytes_per_s=0.8 * 15.75 * GIGA / 2,  # published: PCIe 3.0 x16; assumed: 80% of it, shared by two GPUs
    units_per_host=8,  # published
)


def paper_cluster() -> Cluster:
    """Ten servers of CPU cores and four of V100s (assumed), at the paper's prices; cores serve the tables."""
    cpu = ResourceType(
        device="cpu",
        price_per_hour=0.04,
        limit=10 * CPU.units_per_host,
        bandwidth_gbps=CPU.link_gbps,
        memory_gb=10.0,  # assumed: 480 GB a server
    )
    v100 = ResourceType(
        device="cuda",
        price_per_hour=2.42,
        limit=4 * V100.units_per_host,
        bandwidth_gbps=V100.link_gbps,
        memory_gb=32.0,  # published: the larger of two sizes
    )
    return Cluster(types={CPU.name: cpu, V100.name: v100}, parameter_server=CPU.name)


def paper_profile(model: str, *, batch_size: int = 4096) -> Profile:
    """The derived profile of one of `MODELS`; `InvalidInput` for any other name or a batch without samples."""
    if batch_size < 1:
        raise InvalidInput(f"batch_size is {batch_size}; it must be a whole number of 1 or more")
    layers = tuple(
        derive_layer(work, batch_size=batch_size, devices=(CPU, V100), server=CPU) for work in paper_layers(model)
    )
    return Profile(format="heterps.profile/1", model=model, batch_size=batch_size, layers=layers)


def paper_layers(model: str) -> tuple[LayerWork, ...]:
    """The chain of one of `MODELS` as counts of work; `InvalidInput` for any other name."""
    if model not in MODELS:
        hint = did_you_mean(model, MODELS)
        raise InvalidInput(f"unknown model {model!r}; the paper's models are {', '.join(MODELS)}.{hint}")
    return tuple(_CHAINS[model]())


def _ctrdnn() -> list[LayerWork]:
    """Click-through rate: Criteo's 26 slots of ids and 13 numbers, then a deep stack of fully connected layers."""
    slots, dim, numbers = 26, 16, 13
    rows = 8 * slots  # MLPerf's multi-hot Criteo has 214 ids a sample
    width = slots * dim + numbers
    return [
        _embedding("embedding", rows, dim, table_rows=204_184_588),  # MLPerf's Criteo: at most 40 million a slot
        _pooling("pooling", rows, slots, dim),
        _layer("concat", "concat", width, width),
        _layer("norm", "normalization", width, width, flops=8 * width, weights=2 * width),
        *_stack("", width, 2048, 1024, 1024, 512, 256, 1),
        _layer("loss", "loss", 1, 1, flops=8),
    ]


def _matchnet() -> list[LayerWork]:
    """Relevance: query and title, each through its own tower, one tower after the other; cosine and hinge loss."""
    dim, vector = 64, 128

    def tower(prefix: str, words: int) -> list[LayerWork]:
        return [
            _embedding(f"{prefix}_embedding", words, dim, table_rows=20_000_000),
            _pooling(f"{prefix}_pooling", words, 1, dim),
            *_stack(f"{prefix}_", dim, 1024, 512, vector),
        ]

    return [
        *tower("query", 12),
        *_carrying(vector, tower("title", 24)),
        _layer("cosine", "similarity", 2 * vector, 1, flops=6 * vector),
        _layer("loss", "loss", 1, 1, flops=4),
    ]


def _two_embeddings() -> list[LayerWork]:
    """Recommendation: a user's and an item's ids, a table for each, pooled together and fully connected."""
    user_rows, item_rows, slots, dim = 60, 20, 16, 32
    return [
        _embedding("user_embedding", user_rows, dim, table_rows=100_000_000),
        *_carrying(user_rows * dim, [_embedding("item_embedding", item_rows, dim, table_rows=20_000_000)]),
        _pooling("pooling", user_rows + item_rows, slots, dim),
        *_stack("", slots * dim, 1024, 512, 1),
        _layer("sigmoid", "activation", 1, 1, flops=4),
        _layer("loss", "loss", 1, 1, flops=8),
    ]


def _nce() -> list[LayerWork]:
    """Retrieval: a history of ids tells the next one from 20 sampled ones (noise-contrastive estimation)."""
    rows, slots, dim, vector, candidates = 50, 10, 64, 128, 21
    lookup = _embedding("nce", candidates, vector, table_rows=20_000_000)
    nce = replace(
        lookup,
        kind="sampled-softmax",
        flops=2 * candidates * vector,
        input_bytes=lookup.input_bytes + vector * FLOAT_BYTES,
        output_bytes=candidates * FLOAT_BYTES,
    )
    return [
        _embedding("embedding", rows, dim, table_rows=20_000_000),
        _pooling("pooling", rows, slots, dim),
        _fc("fc", slots * dim, vector),
        nce,
        _layer("loss", "loss", candidates, 1, flops=8 * candidates),
    ]


_CHAINS: dict[str, Callable[[], list[LayerWork]]] = {
    "ctrdnn": _ctrdnn,
    "matchnet": _matchnet,
    "2emb": _two_embeddings,
    "nce": _nce,
}


def _embedding(name: str, rows: int, dim: int, *, table_rows: int) -> LayerWork:
    """Looks up so many rows, which are read from the table and written side by side."""
    row_bytes = dim * FLOAT_BYTES
    return LayerWork(
        name=name,
        kind="embedding",
        flops=0,
        moved_bytes=rows * (ID_BYTES + 2 * row_bytes),
        input_bytes=rows * ID_BYTES,
        output_bytes=rows * row_bytes,
        parameter_bytes=table_rows * row_bytes,
        rows=rows,
        row_bytes=row_bytes,
        sharded=True,
    )


def _layer(name: str, kind: str, reads: int, writes: int, *, flops: int = 0, weights: int = 0) -> LayerWork:
    """A dense layer that reads and writes so many floats."""
    return LayerWork(
        name=name,
        kind=kind,
        flops=flops,
        moved_bytes=(reads + writes) * FLOAT_BYTES,
        input_bytes=reads * FLOAT_BYTES,
        output_bytes=writes * FLOAT_BYTES,
        parameter_bytes=weights * FLOAT_BYTES,
    )


def _pooling(name: str, rows: int, slots: int, dim: int) -> LayerWork:
    """Sums the rows of each slot."""
    return _layer(name, "pooling", rows * dim, slots * dim, flops=rows * dim)


def _fc(name: str, reads: int, writes: int) -> LayerWork:
    return _layer(name, "fc", reads, writes, flops=2 * reads * writes, weights=(reads + 1) * writes)


def _stack(prefix: str, *widths: int) -> list[LayerWork]:
    """Fully connected layers of these widths, with an activation between any two."""
    layers = []
    for i, (reads, writes) in enumerate(pairwise(widths), start=1):
        layers += [
            _fc(f"{prefix}fc{i}", reads, writes),
            _layer(f"{prefix}relu{i}", "activation", writes, writes, flops=writes),
        ]
    return layers[:-1]


def _carrying(floats: int, layers: list[LayerWork]) -> list[LayerWork]:
    """The same layers, each also passing on so many floats that an earlier layer made for a later one."""
    return [replace(layer, output_bytes=layer.output_bytes + floats * FLOAT_BYTES) for layer in layers]
