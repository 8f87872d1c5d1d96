"""Recomputed activations change no gradient, and fewer of them are kept."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from regard.errors import ArgumentError
from regard.models import PRESETS
from regard.models.protocol import inference
from regard.training.losses import Objective
from regard.training.optimization import recompute_layers

VOCAB = 13


def batch():
    draw = torch.Generator().manual_seed(1)
    src, tgt = (torch.randint(4, VOCAB, (5, n), generator=draw) for n in (11, 8))
    return src, torch.tensor([11, 7, 3, 9, 2]), tgt[:, :-1], tgt[:, 1:]


def step(preset, recompute, **options):
    """Return the loss and the gradients of a step, and the bytes that are kept for backward."""
    torch.manual_seed(7)
    model = PRESETS[preset](VOCAB, VOCAB, "tiny", dropout=0.3, **options)
    if recompute:
        recompute_layers(model, preset)
    objective, kept = Objective(model), {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    torch.manual_seed(3)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective(*batch())
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters()}, sum(kept.values())


@pytest.mark.parametrize("preset", ["transformer", "conv", "lm-transformer", "self-attentive"])
def test_gradients_are_the_same(preset):
    loss, expected, whole = step(preset, False, layers=3)
    same, found, kept = step(preset, True, layers=3)
    assert torch.equal(loss, same), "dropout must be repeated"
    for name, gradient in expected.items():
        assert (gradient is None) == (found[name] is None), name
        if gradient is not None:
            assert torch.allclose(gradient, found[name], atol=1e-6), name
    assert kept < whole


def test_nothing_is_recomputed_without_gradients(monkeypatch):
    model = PRESETS["transformer"](VOCAB, VOCAB, "tiny")
    recompute_layers(model, "transformer")
    monkeypatch.setattr("regard.training.optimization.checkpoint", None)
    with inference(model):
        model(*batch()[:3])


def test_a_model_without_such_layers_is_told():
    with pytest.raises(ArgumentError, match="recompute must be false for the preset attentive"):
        recompute_layers(torch.nn.Linear(2, 3), "attentive")
