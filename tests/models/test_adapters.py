"""Encoders read vectors and images as they read tokens."""

import pytest
import torch

from models.cases import RECURRENT, SIZES, TGT_LEN, TGT_VOCAB
from regard.errors import ArgumentError
from regard.layers import SinusoidalPositions, SpecAugment
from regard.models import (
    PRESETS,
    ConvInput,
    TimeConvInput,
    VectorInput,
    with_input,
)

FEATURES, FRAMES, BATCH = 5, 11, 3
LENGTHS = torch.tensor([7, 11, 1])
NAMES = ["bahdanau", "self-attentive", "monotonic", "transformer", "conv"]

every_preset = pytest.mark.parametrize("name", NAMES)
every_adapter = pytest.mark.parametrize("adapter", ["vectors", "stacked", "convolved", "timed"])


def width(name):
    sizes = SIZES.get(name, RECURRENT)
    return sizes.get("dim") or sizes["embed"]


def adapt(kind, dim):
    positions = SinusoidalPositions(dim)
    if kind == "timed":
        return TimeConvInput(FEATURES, dim)
    if kind == "convolved":
        return ConvInput(FEATURES, dim, positions=positions, channels=4)
    return VectorInput(FEATURES, dim, positions=positions, stack=2 if kind == "stacked" else 1)


def build(name, kind="stacked"):
    torch.manual_seed(1)
    model = PRESETS[name](1, TGT_VOCAB, dropout=0.0, **SIZES.get(name, RECURRENT))
    return with_input(model, adapt(kind, width(name))).double().eval()


def source():
    """Sources and their lengths."""
    torch.manual_seed(2)
    return torch.randn(BATCH, FRAMES, FEATURES).double(), LENGTHS


def target():
    torch.manual_seed(3)
    tgt = torch.randint(4, TGT_VOCAB, (BATCH, TGT_LEN))
    tgt[:, 0] = 1
    return tgt


def spoil(src, lengths, value):
    """Writes over all that is not real, place by place."""
    dirty = src.clone()
    for row, length in enumerate(lengths.tolist()):
        dirty[row, length:] = value
    return dirty


def test_convolutions_halve_time_and_bands_rounded_up():
    torch.manual_seed(7)
    adapter, (src, _) = ConvInput(FEATURES, 7, channels=3).double(), source()
    assert adapter.lengths(torch.tensor([1, 4, 5, 8, 9, 11])).tolist() == [1, 1, 2, 2, 3, 3]
    out = adapter(src, LENGTHS)
    assert out.shape == (BATCH, 3, 7)
    x = src[:1, :7, None]  # one source by itself, (batch, frames, channels, bands)
    for layer, (frames, bands) in zip(adapter.convolutions, ((4, 3), (2, 2)), strict=True):
        made = torch.zeros(1, frames, layer.out_channels, bands).double()
        for i in range(frames):
            for j in range(bands):
                total = layer.bias.clone()
                for di in range(3):
                    for dj in range(3):
                        t, f = 2 * i + di - 1, 2 * j + dj - 1
                        if 0 <= t < x.shape[1] and 0 <= f < x.shape[3]:
                            total += layer.weight[:, :, di, dj] @ x[0, t, :, f]
                made[0, i, :, j] = total.relu()
        x = made
    torch.testing.assert_close(out[0, :2], adapter.project(x[0].flatten(1)))


def test_augmentation_changes_sources_in_training_alone():
    torch.manual_seed(7)
    augment = SpecAugment(time_masks=1, band_masks=1, speed=0.2)
    model = build("bahdanau").train()
    model.encoder.embedding.augment = augment
    src, tgt = source()[0], target()
    lengths = {tuple(model.encode(src, LENGTHS).lengths.tolist()) for _ in range(20)}
    assert len(lengths) > 1
    model.eval()
    plain = model(src, LENGTHS, tgt).logits
    model.encoder.embedding.augment = None
    torch.testing.assert_close(model(src, LENGTHS, tgt).logits, plain, rtol=0, atol=0)


def test_frames_are_joined_in_order_and_the_last_ones_filled_up_with_zeros():
    adapter, (src, _) = VectorInput(FEATURES, 7, stack=3).double(), source()
    out = adapter(src, LENGTHS)
    assert out.shape == (BATCH, 4, 7)
    frames = list(src[0, :7]) + 2 * [torch.zeros(FEATURES).double()]
    for i in range(3):
        joined = torch.cat(frames[3 * i : 3 * i + 3])
        torch.testing.assert_close(out[0, i], adapter.project(joined))


@pytest.mark.plain
def test_narrow_lengths_count_like_wide_ones():
    model, tgt = build("transformer"), torch.randint(4, TGT_VOCAB, (2, 3))
    src, lengths = torch.randn(2, 255, FEATURES).double(), torch.tensor([255, 5])
    # two frames are joined: 255 + 1 is 0 in 8 bits
    found = model(src, lengths.to(torch.uint8), tgt).logits
    assert torch.equal(found, model(src, lengths, tgt).logits)


@pytest.mark.sample(4)
@every_preset
@every_adapter
def test_what_padding_holds_changes_no_bit(name, adapter):
    model, (src, lengths), tgt = build(name, adapter), source(), target()
    clean = model(src, lengths, tgt, need_weights=True)
    for value in (9.5, float("nan"), float("inf")):
        again = model(spoil(src, lengths, value), lengths, tgt, need_weights=True)
        assert torch.equal(clean.logits, again.logits)
        for kind, layers in clean.maps.items():
            assert all(map(torch.equal, layers, again.maps[kind]))


@every_preset
def test_gradients_stay_finite_beside_nan_and_reach_the_adapter(name):
    model, (src, lengths), tgt = build(name).train(), source(), target()
    dirty = spoil(src, lengths, float("nan")).requires_grad_()
    model(dirty, lengths, tgt).logits.pow(2).sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert (dirty.grad[0, 7:] == 0).all()


@every_adapter
def test_an_empty_source_in_a_batch_is_finite(adapter):
    model, (src, lengths), tgt = build("bahdanau", adapter), source(), target()
    empty = lengths * torch.tensor([1, 1, 0])
    assert model(src, empty, tgt).logits.isfinite().all()


def test_a_tagger_writes_one_tag_for_each_joined_frame():
    torch.manual_seed(1)
    model = PRESETS["rnn"](1, TGT_VOCAB, dropout=0.0, **RECURRENT)
    model = with_input(model, VectorInput(FEATURES, RECURRENT["embed"], stack=2)).double().eval()
    src, lengths = source()
    best = model(src, lengths, torch.ones(BATCH, 8, dtype=torch.long)).logits.argmax(-1)
    sure = [int((row == 2).nonzero()[0]) for row in best]
    assert all(end <= length for end, length in zip(sure, [4, 6, 1], strict=True))
    assert (best[0, 4:] == 2).all()
    assert (best[2, 1:] == 2).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VectorInput(0, 3), "features must be at least 1"),
        (lambda: VectorInput(2, 3, stack=0), "stack must be at least 1"),
        (lambda: VectorInput(2, 3, dropout=1.5), "dropout must be at least 0 and less than 1"),
        (lambda: VectorInput(2, 3)(torch.zeros(1, 4, 5)), r"\(batch, frames, 2\).*\(1, 4, 5\)"),
        (lambda: VectorInput(2, 3)(torch.zeros(1, 4, 2).double()), "have one dtype"),
        (lambda: VectorInput(2, 3)(torch.zeros(1, 0, 2)), "at least 1 entry on the axis frames"),
        (
            lambda: VectorInput(2, 3)(torch.zeros(1, 4, 2), torch.tensor([5])),
            "lengths must be at most the 4 frames of a row, but it is 5",
        ),
    ],
)
def test_errors_name_what_is_wrong(make, words):
    with pytest.raises(ArgumentError, match=words):
        make()


def test_an_adapter_of_another_width_is_refused_and_nothing_changed():
    model = PRESETS["bahdanau"](1, TGT_VOCAB, **RECURRENT)
    before = model.encoder.embedding
    words = "adapter.dim must be 6, the width that the encoder reads, but it is 8"
    with pytest.raises(ArgumentError, match=words):
        with_input(model, VectorInput(FEATURES, 8))
    assert model.encoder.embedding is before
