"""This machine, and names of GPUs."""

from __future__ import annotations

import os

import pytest
import torch

from heterps.catalog import Catalog
from heterps.catalog.parts import find_gpu, published
from heterps.profile.hardware import CoreRates, Gpu, Hardware, gpu_model, here, measure_core

GIB = 2**30 / 1e9


@pytest.mark.parametrize(
    ("name", "memory_gb", "model"),
    [
        ("NVIDIA H200", 141 * GIB, "h200"),
        ("NVIDIA A100-SXM4-40GB", 40 * GIB, "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", 80 * GIB, "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", 80 * GIB, "a100-80gb"),
        ("A100", 80 * GIB, "a100-80gb"),
        ("A100", 40 * GIB, "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", 80 * GIB, "h100"),
        ("NVIDIA H100 NVL", 94 * GIB, "h100"),
        ("Tesla V100-SXM2-16GB", 16 * GIB, "v100"),
        ("Tesla V100-SXM2-32GB", 32 * GIB, "v100-32gb"),
        ("Tesla P100-PCIE-16GB", 16 * GIB, "p100"),
        ("Tesla T4", 15 * GIB, "t4"),
        ("NVIDIA A10G", 23 * GIB, "a10g"),
        ("NVIDIA L4", 23 * GIB, "l4"),
        ("NVIDIA L40S", 46 * GIB, "l40s"),
    ],
)
def test_the_catalogs_name_of_a_driver_name(name: str, memory_gb: float, model: str) -> None:
    assert gpu_model(name, memory_gb) == model
    assert find_gpu(model) is not None, "the catalog finds what it is called"


@pytest.mark.parametrize(
    ("name", "model"),
    [("NVIDIA GeForce RTX 4090", "geforce-rtx-4090"), ("NVIDIA GH200 480GB", "gh200-480gb"), ("NVIDIA", "gpu")],
)
def test_a_gpu_unknown_to_the_catalog_gets_a_name_of_its_kind(name: str, model: str) -> None:
    assert gpu_model(name, 24 * GIB) == model
    assert find_gpu(model) is None


def test_this_machine() -> None:
    found = here()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_gb > 0.5
    assert found.cpu
    assert sum(gpu.count for gpu in found.gpus) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert found == here()


def test_identity_is_that_of_the_hardware() -> None:
    plain = Hardware(cpu="Xeon", cores=8, memory_gb=32.0)
    gpu = Gpu(name="NVIDIA H200", model="h200", count=2, memory_gb=150.1)
    rates = CoreRates(flops_per_s=1e11, bytes_per_s=1e10, random_bytes_per_s=1e9)
    assert plain.model_copy(update={"core": rates}).identity == plain.identity, "measured rates are no other hardware"
    others = [{"cores": 4}, {"cpu": "EPYC"}, {"gpus": (gpu,)}, {"gpus": (gpu.model_copy(update={"count": 1}),)}]
    assert len({plain.identity, *(plain.model_copy(update=other).identity for other in others)}) == 5


def test_published_rates_of_the_gpu_here() -> None:
    catalog = Catalog(published())
    h200 = Gpu(name="NVIDIA H200", model="h200", count=1, memory_gb=150.1)
    hardware = Hardware(cpu="Xeon", cores=8, memory_gb=32.0, gpus=(h200,))
    rates = hardware.gpu_rates(catalog, precision="bf16")
    assert rates is not None
    assert rates.flops_per_s == 990e12
    assert hardware.model_copy(update={"gpus": ()}).gpu_rates(catalog, precision="bf16") is None
    unknown = h200.model_copy(update={"model": "geforce-rtx-4090"})
    assert hardware.model_copy(update={"gpus": (unknown,)}).gpu_rates(catalog, precision="bf16") is None


def test_rates_of_a_core() -> None:
    threads = torch.get_num_threads()
    rates = measure_core(seconds=0.02)
    assert torch.get_num_threads() == threads
    assert rates.flops_per_s > 1e8
    assert rates.bytes_per_s > 1e7
    assert rates.random_bytes_per_s > 1e6
    assert Hardware(cpu="x", cores=3, memory_gb=1.0, core=rates).core_rates().units_per_host == 3
