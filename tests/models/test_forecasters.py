"""Forecasters: scales that are undone, channel independence, causality, steps and maps."""

import pytest
import torch

from regard.models.forecasters import FORECASTERS, build_forecaster

SIZES = {"look_back": 13, "horizon": 5, "targets": 2, "features": 2, "estimates": 3}
SIZES |= {"patch": 5, "stride": 3, "skip": True}
SMALL = {
    "transformer": {"dim": 8, "heads": 2, "feed_forward": 7, "layers": 2},
    "bahdanau": {"embed": 3, "hidden": 6, "layers": 1},
    "self-attentive": {"embed": 3, "hidden": 6, "layers": 1},
    "rnn": {"embed": 3, "hidden": 6, "layers": 1},
}


def model_of(preset, scale="mean", **changes):
    torch.manual_seed(1)
    model = build_forecaster(preset, "tiny", scale=scale, **{**SIZES, **SMALL[preset], **changes})
    for weight in model.parameters():  # the last map of patches begins with zeros
        torch.nn.init.normal_(weight, std=0.3)
    return model.double().eval()


def source(batch=7):
    torch.manual_seed(2)
    return torch.randn(batch, 13, 3, dtype=torch.float64).cumsum(dim=1)


@pytest.mark.parametrize("preset", FORECASTERS)
def test_shapes_and_maps(preset):
    out = model_of(preset)(source(), None, need_weights=True)
    assert out.numbers.shape == (7, 5, 2, 3)
    assert out.scale.shape == (7, 2)
    kinds = {"transformer": "encoder-self", "bahdanau": "cross"}
    if preset == "rnn":
        assert out.maps == {}
        return
    weights = out.maps[kinds.get(preset, "decoder-history")][-1]
    assert len(weights) == 7 * 2
    assert torch.allclose(weights.sum(dim=-1), torch.ones(()).double())


@pytest.mark.parametrize("preset", FORECASTERS)
@pytest.mark.parametrize("scale", ["mean", "last"])
def test_a_shifted_and_stretched_window_has_a_shifted_and_stretched_forecast(preset, scale):
    model, src = model_of(preset, scale), source()
    stretched = src * 1000 + 7  # so large that the constant under the root does not count
    first, second = model(src * 1000, None).numbers, model(stretched, None).numbers
    assert torch.allclose(first + 7, second, rtol=1e-6)
    doubled = model(src * 2000, None).numbers
    assert torch.allclose(first * 2, doubled, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("preset", FORECASTERS)
def test_series_are_independent_and_exogenous_columns_are_read(preset):
    model, src = model_of(preset), source()
    plain = model(src, None).numbers
    other = src.clone()
    other[:, :, 1] += torch.randn_like(other[:, :, 1])
    assert torch.allclose(model(other, None).numbers[:, :, 0], plain[:, :, 0])
    assert not torch.allclose(model(other, None).numbers[:, :, 1], plain[:, :, 1])
    other = src.clone()
    other[:, 4, 2] += 3
    assert not torch.allclose(model(other, None).numbers, plain)


@pytest.mark.parametrize("preset", ["self-attentive", "rnn"])
def test_step_by_step_equals_one_pass_over_its_own_forecasts(preset):
    model, src = model_of(preset), source()
    free = model(src, None).numbers
    forced = model(src, None, free[..., 0]).numbers
    assert torch.allclose(free, forced)
    # the first step does not see what follows
    wrong = free[..., 0].clone()
    wrong[:, 0] += 1
    again = model(src, None, wrong).numbers
    assert torch.allclose(again[:, 0], free[:, 0])
    assert not torch.allclose(again[:, 1], free[:, 1])


def test_a_new_patch_forecaster_forecasts_what_its_scale_subtracts():
    for scale, expected in (("mean", lambda x: x.mean(dim=1)), ("last", lambda x: x[:, -1])):
        made = build_forecaster("transformer", "tiny", scale=scale, **SIZES, **SMALL["transformer"])
        numbers = made.eval()(source().float(), None).numbers
        right = expected(source().float())[:, None, :2, None].expand_as(numbers)
        assert torch.allclose(numbers, right, atol=1e-5)


def test_a_constant_window_has_finite_forecasts_and_gradients():
    model = model_of("transformer")
    src = torch.full((2, 13, 3), 5.0, dtype=torch.float64, requires_grad=True)
    numbers = model(src, None).numbers
    numbers.sum().backward()
    assert numbers.isfinite().all()
    assert src.grad.isfinite().all()
