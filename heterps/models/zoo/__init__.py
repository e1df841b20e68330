"""The zoo: models of the field as chains, ready to plan and train, each with a twin in plain PyTorch to check against.

chain = zoo.build("dlrm", dim=16)
batch = zoo.example("dlrm", 4, dim=16)
twin = zoo.twin("dlrm", rows=1000, dim=16)
"""

from __future__ import annotations

from heterps.models.zoo.model import Model, Twin
from heterps.models.zoo.registry import build, example, model, names, twin
from heterps.models.zoo.weights import compare_weights, copy_weights, weight_pairs

__all__ = ["Model", "Twin", "build", "compare_weights", "copy_weights", "example", "model", "names", "twin",
           "weight_pairs"]  # fmt: skip
