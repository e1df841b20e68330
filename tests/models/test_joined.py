"""Linear layers of tensors side by side, against the same tensors put together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.errors import InvalidInput
from heterps.models.joined import joined, joined_linear, spend


def tensors(*, needs: tuple[bool, ...] = (True, False, True)) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(9, 4, 3), (9, 2), (9, 5)]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    return [value.requires_grad_(need) for value, need in zip(made, needs, strict=True)]


def expected(linear: nn.Linear, values: list[Tensor]) -> list[Tensor | None]:
    """The result, then the gradients of the weights and of what is read."""
    result = functional.relu(functional.linear(joined(values), linear.weight, linear.bias))
    result.square().sum().backward()
    return [result, *(p.grad for p in linear.parameters()), *(value.grad for value in values)]


@pytest.mark.parametrize("spent", [(), (0,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("needs", [(True, False, True), (True, True, True), (False, False, True)])
@pytest.mark.parametrize("bias", [True, False])
def test_results_and_gradients_are_those_of_one_tensor(
    spent: tuple[int, ...], needs: tuple[bool, ...], bias: bool
) -> None:
    torch.manual_seed(1)
    linear = nn.Linear(19, 6, bias=bias)
    wanted = expected(linear, tensors(needs=needs))
    linear.zero_grad()
    values = tensors(needs=needs)
    for number in spent:
        spend(values[number])
    result = functional.relu(joined_linear(linear, values), inplace=True)
    result.square().sum().backward()
    found = [result, *(p.grad for p in linear.parameters()), *(value.grad for value in values)]
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other)


def test_only_gradients_of_what_may_be_spent_lie_where_it_lay() -> None:
    linear = nn.Linear(19, 6)
    values = tensors()
    before = [value.detach().clone() for value in values]
    spend(values[0])
    joined_linear(linear, values).sum().backward()
    assert values[0].grad is not None
    assert values[0].grad.data_ptr() == values[0].data_ptr()
    assert values[2].grad is not None
    assert values[2].grad.data_ptr() != values[2].data_ptr()
    assert all(torch.equal(value, old) for value, old in zip(values[1:], before[1:], strict=True))


def test_a_wrong_number_of_features_is_named() -> None:
    with pytest.raises(InvalidInput, match="19 features together, the layer takes 20"):
        joined_linear(nn.Linear(20, 6), tensors())
