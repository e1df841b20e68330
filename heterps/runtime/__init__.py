"""Runs plans: stages, pipelines, checkpoints, evaluation."""

from __future__ import annotations

from heterps.runtime.checkpoint import CheckpointFailed, Checkpoints
from heterps.runtime.evaluation import Evaluation, evaluate
from heterps.runtime.pipeline import StageFailed
from heterps.runtime.result import Result, StageResult
from heterps.runtime.settings import EarlyStop, Settings
from heterps.runtime.train import train
from heterps.runtime.trainer import DataEnded, NotFinite

__all__ = ["CheckpointFailed", "Checkpoints", "DataEnded", "EarlyStop", "Evaluation", "NotFinite", "Result", "Settings",
           "StageFailed", "StageResult", "evaluate", "train"]  # fmt: skip
