"""Resource types as data: cloud instances and GPUs with prices, links, memory and peak rates.

`load()` gathers what the package ships, SkyPilot's price tables where they are on disk, and the user's own entries.
Every figure says when and where it comes from. `cluster_of(["cpu", "h200:8"])` makes a cluster of catalog names.
"""

from __future__ import annotations

from heterps.catalog.clusters import cluster_of
from heterps.catalog.collection import Catalog
from heterps.catalog.entry import Entry
from heterps.catalog.loading import load

__all__ = ["Catalog", "Entry", "cluster_of", "load"]
