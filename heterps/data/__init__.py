"""Data: where batches come from, read in shuffled order, in shards, ahead of training, from any position on."""

from __future__ import annotations

from heterps.data.criteo import Criteo
from heterps.data.delimited import Csv
from heterps.data.hashing import hash_id
from heterps.data.parquet import Parquet
from heterps.data.prefetch import prefetch
from heterps.data.reader import Read, Reader
from heterps.data.source import Source
from heterps.data.specs import make_source
from heterps.data.synthetic import Synthetic

__all__ = ["Criteo", "Csv", "Parquet", "Read", "Reader", "Source", "Synthetic", "hash_id", "make_source", "prefetch"]
