"""Models: layers that read and write named tensors, chains of them, and the zoo."""

from __future__ import annotations

from heterps.models.batch import Bags, Batch, batch_size, cut
from heterps.models.chain import Chain, run_layer
from heterps.models.layer import Layer, SparseEmbedding
from heterps.models.losses import BCE, BCEWithLogits, Hinge, Loss

__all__ = ["BCE", "BCEWithLogits", "Bags", "Batch", "Chain", "Hinge", "Layer", "Loss", "SparseEmbedding", "batch_size",
           "cut", "run_layer"]  # fmt: skip
