"""A model of the zoo on files in Criteo's format, in a few seconds: python examples/criteo.py."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import heterps
from heterps.models import zoo


def write_clicks(path: Path, *, rows: int, seed: int) -> None:
    """Lines as in Criteo's logs: label, 13 counts, 26 categories, tabs between; some fields are empty, as there."""
    random = np.random.default_rng(seed)
    counts = random.poisson(3, (rows, 13))
    categories = random.zipf(1.5, (rows, 26)) % 500
    taste = np.random.default_rng(0).normal(size=500)  # what a click depends on: C1, C2, and the count I1
    logit = taste[categories[:, 0]] + taste[categories[:, 1]] + 0.3 * (counts[:, 0] - 3) - 1
    clicks = random.random(rows) < 1 / (1 + np.exp(-logit))
    missing = random.random((rows, 39)) < 0.05
    with path.open("w") as file:
        for click, numbers, words, gone in zip(clicks, counts, categories, missing, strict=True):
            fields = [*(str(number) for number in numbers), *(f"{word:08x}" for word in words)]
            shown = ("" if empty else field for field, empty in zip(fields, gone, strict=True))
            file.write("\t".join([str(int(click)), *shown]) + "\n")


def main() -> None:
    """Writes two days of clicks, trains on nine tenths of them, and says how well the rest is ranked."""
    with tempfile.TemporaryDirectory() as directory:
        for day in range(2):
            write_clicks(Path(directory, f"day_{day}.tsv"), rows=8_000, seed=day + 1)

        # Your own logs: any path, glob or URL that fsspec knows; .gz and others are unpacked as they are read.
        clicks = heterps.data.Criteo(f"{directory}/day_*.tsv", transform="log")
        training, held_out = clicks.split(0.1)  # by a hash of each row: always the same ones

        # 26 slots and 13 numbers are what the zoo's models expect unless told otherwise.
        chain = zoo.build("deepfm", dim=8, hidden=[32], optimizer="rowwise-adagrad", lr=0.02)
        result = heterps.train(chain, training, batch_size=256, epochs=2, lr=0.003, evaluation=held_out)

    rows = sum(table.stats().rows for table in chain.tables.values())
    sys.stdout.write(f"{result.steps} steps, {rows:,} rows, loss {result.losses[0]:.3f} -> {result.losses[-1]:.3f}\n")
    sys.stdout.write(f"held-out AUC {result.auc:.3f}\n")


if __name__ == "__main__":
    main()
