"""Products of linear layers by oneDNN, against PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.runtime import products
from heterps.runtime.products import LEAST, Products

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="this PyTorch has no oneDNN",
)


def results(linear: nn.Linear, values: Tensor, *, by_us: bool) -> tuple[list[Tensor], bool]:
    """Values and all gradients of a layer followed by a ReLU in place; and whether it was ours."""
    leaf = values.clone().requires_grad_()
    linear.zero_grad()
    if by_us:
        with Products(2):
            result = linear(leaf)
    else:
        result = linear(leaf)
    ours = "_Linear" in repr(result.grad_fn) or "View" in repr(result.grad_fn)
    given = functional.relu(result, inplace=True)
    weights = torch.linspace(-1, 1, given.numel()).view_as(given)
    (given * weights).sum().backward()
    grads = [one.grad for one in (leaf, *linear.parameters())]
    return [given.detach(), *(one for one in grads if one is not None)], ours


@pytest.mark.parametrize("shape", [(2048, 64), (512, 416), (8, 64, 64), (4099, 429)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_gives_what_pytorch_gives(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear, values = nn.Linear(shape[-1], 40, bias=bias), torch.randn(shape)
    expected, _ = results(linear, values, by_us=False)
    found, ours = results(linear, values, by_us=True)
    assert ours
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def test_columns_of_a_wider_weight_are_copied_first() -> None:
    torch.manual_seed(0)
    weight, values = torch.randn(64, 429, requires_grad=True), torch.randn(1024, 416)
    expected = functional.linear(values, weight[:, :416])
    with Products(1):
        found = functional.linear(values, weight[:, :416])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    found.sum().backward()
    assert weight.grad is not None
    assert not weight.grad[:, 416:].any()
    torch.testing.assert_close(weight.grad[0, :416], values.sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "values",
    [torch.randn(2, 64), torch.randn(LEAST, 64, dtype=torch.float64), torch.randn(LEAST // 64, 64).to(torch.bfloat16)],
    ids=["small", "float64", "bfloat16"],
)
def test_others_are_left_to_pytorch(values: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("multiplied by oneDNN")

    monkeypatch.setattr(products, "_product", refuse)
    linear = nn.Linear(64, 16).to(values.dtype)
    with Products(1):
        found = linear(values)
    assert torch.equal(found, linear(values))


def test_threads_are_given_back() -> None:
    threads = torch.get_num_threads()
    with Products(2):
        nn.Linear(64, 64)(torch.randn(1024, 64))
    assert torch.get_num_threads() == threads
