"""Float32 products from products of shorter numbers."""

import pytest
import torch

pytest.importorskip("triton")
from heterps.runtime.device.products import FAST, exact_products

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() not in FAST, reason="no GPU of that kind"
)
CUDA = torch.device("cuda")
SHAPES = [(4096, 400, 416), (4097, 33, 65), (1024, 2048, 130), (65536, 416, 400), (3000, 100, 32)]


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.double() - exact).abs().max() / exact.abs().mean())


def operands(rows: int, depth: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows)
    return torch.randn(rows, depth, device=CUDA), torch.randn(columns, depth, device=CUDA) / depth**0.5


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_as_accurate_as_float32_units(shape: tuple[int, int, int]) -> None:
    a, weight = operands(*shape)
    bias = torch.randn(shape[2], device=CUDA)
    cases = {
        "forward": lambda: a @ weight.t(),
        "with a bias": lambda: torch.addmm(bias, a, weight.t()),
        "added to a matrix": lambda: torch.addmm(torch.ones_like(a[:, :1]).expand(-1, shape[2]), a, weight.t()),
        "of inputs": lambda: torch.mm(a @ weight.t(), weight),
        "of weights": lambda: torch.mm((a @ weight.t()).t(), a),
        "of a part of a row": lambda: a[:, 1:] @ weight[:, 1:].t(),
    }
    for name, compute in cases.items():
        plain = compute()
        a, weight, bias = a.double(), weight.double(), bias.double()
        exact = compute()
        a, weight, bias = a.float(), weight.float(), bias.float()
        with exact_products(CUDA):
            found = compute()
        assert error(found, exact) <= max(2 * error(plain, exact), 1e-6), name
        assert error(found, exact) < 2e-5, name


def test_they_are_used_at_all() -> None:
    a, weight = operands(4096, 400, 400)
    with exact_products(CUDA):
        found = a @ weight.t()
    assert not torch.equal(found, a @ weight.t())


def test_settings_that_allow_less_accuracy_are_kept() -> None:
    a, weight = operands(4096, 400, 400)
    torch.set_float32_matmul_precision("high")
    try:
        with exact_products(CUDA):
            found = a @ weight.t()
        assert torch.equal(found, a @ weight.t())
    finally:
        torch.set_float32_matmul_precision("highest")


def test_first_use_may_be_within_a_recording() -> None:
    a, weight = operands(2048, 48, 72)  # a shape that no other test compiles for
    graph = torch.cuda.CUDAGraph()
    with exact_products(CUDA), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = a @ weight.t()
    graph.replay()
    assert error(found, a.double() @ weight.double().t()) < 2e-5
