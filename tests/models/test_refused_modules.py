"""Modules that cannot be cut into chains, and what users are told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from heterps.errors import InvalidInput
from heterps.models import BCE, Bags, Chain
from tests.models.batches import bags, batch_of, ids, made


def branching(self, x):
    h = self.fc(self.emb(x)).sum((1, 2))
    if h.sum() > 0:
        h = h * 2
    return h


def changing_in_place(self, x):
    h = self.emb(x).sum(1)
    h.mul_(2)
    return self.fc(h)


def regularized(self, x):
    return self.fc(self.emb(x)).sum((1, 2)) + sum(weight.square().sum() for weight in self.fc.parameters())


def without_gradients(self, x):
    with torch.no_grad():
        h = self.fc(self.emb(x))
    return self.fc(self.emb(x)).sum((1, 2)) + h.sum((1, 2))


def fixed_rows(self, x):
    with torch.no_grad():
        h = self.still(x)
    return self.fc(self.emb(x) + h).sum((1, 2))


class Flipped(torch.autograd.Function):
    """Itself, with a gradient of the other sign."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def with_a_backward(self, x):
    return self.fc(Flipped.apply(self.emb(x))).sum((1, 2))


def with_gradients_that_cancel_out(self, x):
    return torch.softmax(with_a_backward(self, x), 0)


def zeros():
    linear = nn.Linear(4, 1)
    nn.init.zeros_(linear.weight)
    return linear


def hooked():
    table = nn.Embedding(10, 4)
    table.weight.register_hook(lambda gradient: gradient * 0)
    return table


def depending_on_types(self, x):
    h = self.fc(self.emb(x)).sum((1, 2))
    return h * 2 if isinstance(x, Tensor) else h


def modal(self, x):
    h = self.emb(x).sum(1)
    return self.fc(h) if self.training else self.fc(h) * 2


REFUSED = {
    "control flow": (branching, {}, r"cannot be traced at .*test_refused_modules.py:\d+: if h.sum\(\) > 0.*leaves="),
    "length": (lambda self, x: self.fc(self.emb(x).view(len(x), -1)), {}, "'len' is not supported.*leaves="),
    "in place": (changing_in_place, {}, r"'mul_' changes a tensor in place .* at .*modules.py:\d+: h.mul_\(2\); put"),
    "loose weights": (regularized, {}, r"such as self.parameters\(\)"),
    "no gradients": (without_gradients, {}, "'emb.weight', 'fc.weight', 'fc.bias' would get other gradients"),
    "fixed rows": (fixed_rows, {"still": nn.Embedding(10, 4)}, r"^'still.weight' would get .*detach\(\)"),
    "fixed rows, zeros": (fixed_rows, {"still": nn.Embedding(10, 4), "fc": zeros()}, "^'still.weight' would get"),
    "own backward": (with_a_backward, {}, "^'emb.weight' would get .*autograd.Function.*leaves="),
    "own backward, cancelling": (with_gradients_that_cancel_out, {}, "^'emb.weight' would get"),
    "hook": (lambda self, x: self.fc(self.hooked(x)), {"hooked": hooked()}, "'hooked' uses a hook on its weight"),
    "computed weight": (
        lambda self, x: self.fc(self.normed(x)), {"normed": weight_norm(nn.Embedding(10, 4))},
        "'normed' uses a weight that is computed.*leaves=.'normed'",
    ),
    "types": (depending_on_types, {}, "do not give what the module gives"),
    "mode": (modal, {}, r"in training than in evaluation, first 'mul' at .*modules.py:\d+: return self.fc\(h\) if"),
    "padding": (
        lambda self, x: self.fc(self.pad(x)), {"pad": nn.Embedding(10, 4, padding_idx=0)}, "'pad' uses padding_idx"
    ),
    "norm": (lambda self, x: self.fc(self.norm(x)), {"norm": nn.Embedding(10, 4, max_norm=1.0)}, "uses max_norm"),
    "frequency": (
        lambda self, x: self.fc(self.freq(x)), {"freq": nn.Embedding(10, 4, scale_grad_by_freq=True)},
        "uses scale_grad_by_freq.*leaves=.'freq'"
    ),
    "maximum": (lambda self, x: self.fc(self.bag(x)), {"bag": nn.EmbeddingBag(10, 4, mode="max")}, "uses mode='max'"),
    "sample weights": (
        lambda self, x: self.fc(self.bag(x, per_sample_weights=x.float())),
        {"bag": nn.EmbeddingBag(10, 4, mode="sum")}, "uses per_sample_weights",
    ),
    "offsets": (
        lambda self, x: self.fc(self.bag(x[:, 0], x[:, 1])), {"bag": nn.EmbeddingBag(10, 4, mode="sum")},
        "fails on the example|heterps.models.Bags",
    ),
    "half": (lambda self, x: self.bf(x).float().sum((1, 2)), {"bf": nn.Embedding(10, 4).half()}, "rows are float32"),
    "computed ids": (
        lambda self, x: self.fc(self.emb(self.fc(self.emb(x)).argmax(1))), {}, "which other layers compute.*leaves"
    ),
    "tied": (lambda self, x: self.emb(x).sum(1) @ self.emb.weight.t(), {}, "weight of the embedding 'emb'"),
    "samples last": (lambda self, x: self.fc(self.emb(x.t())).sum((0, 2)), {}, "samples first"),
    "sigmoid": (lambda self, x: torch.sigmoid(self.fc(self.emb(x)).sum((1, 2))), {}, "sigmoid.*BCE"),
    "sum": (lambda self, x: self.fc(self.emb(x)).sum(), {}, "not the mean over its samples"),
    "dictionary": (lambda self, x: {"logits": self.fc(self.emb(x))}, {}, "gives one tensor"),
    "no loss first": (lambda self, x: (self.fc(self.emb(x)), self.emb(x)), {}, "the first is no loss"),
    "unknown key": (lambda self, batch: self.fc(self.emb(batch["z"])), {}, "nothing is called 'z'"),
    "unknown entry": (lambda self, y, x: self.fc(self.emb(x + y)), {}, "takes 'y', which the example has not"),
    "shapes": (
        lambda self, x: self.fc(self.emb(x).flatten(1)), {},
        r"^'fc' fails on the example at .*modules.py:\d+: lambda self, x: .* \(RuntimeError: mat1 .*\); .*leaves=",
    ),
    "arrays": (
        lambda self, x: self.fc(self.emb(x).detach().numpy().mean(1)), {},
        r"^'fc' fails on the example at .*modules.py:\d+: .* \(TypeError: linear\(\).*not numpy.ndarray\); .*leaves=",
    ),
    "ids beyond the rows": (
        lambda self, x: self.fc(self.few(x)), {"few": nn.Embedding(3, 4)}, "^'few' fails .*IndexError: index out"
    ),
    "nothing": (lambda self, x: x, {}, "computes nothing"),
}  # fmt: skip


@pytest.mark.parametrize(("forward", "parts", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_cut_is_explained(forward, parts, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        Chain.from_module(made(forward, **parts), batch_of(x=ids(3)))
    assert "\n" not in str(refused.value)


def test_gradients_are_compared_wherever_a_chain_is_made():
    with torch.no_grad(), pytest.raises(InvalidInput, match=r"'emb.weight' would get other gradients"):
        Chain.from_module(made(with_a_backward), batch_of(x=ids(3)))


def test_leaves_that_are_not_there():
    model = made(lambda self, x: self.fc(self.emb(x)).sum((1, 2)))
    for leaf, message in {
        "embb": "Made has no module 'embb'. Did you mean 'emb'",
        "tower": "Made has no module 'tower'. Among its modules: emb, fc",
        nn.Linear(4, 1): "this Linear is no module of Made",
    }.items():
        with pytest.raises(InvalidInput, match=message):
            Chain.from_module(model, batch_of(x=ids(3)), leaves=[leaf])


def test_a_module_is_a_module():
    with pytest.raises(InvalidInput, match=r"is an nn\.Module, not a function"):
        Chain.from_module(lambda x: x, batch_of(x=ids(3)))
    with pytest.raises(InvalidInput, match="'x' is a tensor or Bags, not a list"):
        Chain.from_module(nn.Linear(1, 1), {"x": [1, 2]})
    with pytest.raises(InvalidInput, match="have 2 slots"):
        Chain.from_module(nn.Linear(1, 1), {"x": Bags(torch.tensor([1]), torch.tensor([0, 1, 1]), slots=2)})


def test_a_loss_has_no_other_loss():
    model = made(lambda self, x: self.fc(self.emb(x)).mean())
    with pytest.raises(InvalidInput, match="which is its loss"):
        Chain.from_module(model, batch_of(x=ids(3)), loss=BCE())
    assert Chain.from_module(model, batch_of(x=ids(3))).score is None


def test_a_loss_needs_a_label():
    with pytest.raises(InvalidInput, match="no 'clicked' for the loss"):
        Chain.from_module(made(lambda self, x: self.fc(self.emb(x))), batch_of(x=ids()), label="clicked")


def test_bags_are_for_embedding_bags():
    model = made(lambda self, x: self.fc(self.emb(x)))
    with pytest.raises(InvalidInput):
        Chain.from_module(model, batch_of(x=bags(10)))
    with pytest.raises(InvalidInput, match=r"bags 'x' are read by nn\.EmbeddingBag alone"):
        Chain.from_module(
            made(lambda self, x, y: self.fc(self.emb(y)) + x.float().mean()), batch_of(x=bags(9), y=ids())
        )
