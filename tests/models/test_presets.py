from pathlib import Path

import pytest
import torch

from chips import bf16_autocast
from models.cases import (
    BATCH,
    SIZES,
    SRC_LEN,
    SRC_VOCAB,
    TGT_LEN,
    TGT_VOCAB,
    TOKEN_PRESETS,
    VARIANTS,
    build,
    pairs,
)
from regard.models import LABEL_PRESETS, TEXT_PRESETS

KEYS = Path(__file__).parent / "keys"
TEXTS = {variant for variant, (preset, _) in VARIANTS.items() if preset in TEXT_PRESETS}
LOOKS = sorted(set(VARIANTS) - {"rnn", "rnn-gru", "seq2seq", "seq2seq-gru"} - TEXTS)
#: those whose outputs do not depend on the tokens before them
ONE_PASS = {"rnn", "rnn-gru", *LABEL_PRESETS}

#: one whose graph is whole, and one with a kernel in it; what unrolls its steps takes long
ONE_OF_EACH = {"transformer"}
LONG = pytest.mark.long


def every_variant(test):
    """Run a test for all variants in `make long`, and for a part of them always."""
    return pytest.mark.sample(8)(pytest.mark.parametrize("variant", VARIANTS)(test))


def step_by_step(model, src, lengths, tgt):
    state = model.start(model.encode(src, lengths))
    logits, maps = [], []
    for tokens in tgt.unbind(dim=1):
        out = model.step(tokens, state, need_weights=True)
        state = out.state
        logits.append(out.logits)
        maps.append(out.maps)
    return torch.stack(logits, dim=1), maps


@every_variant
def test_garbage_in_padding_changes_no_bit(variant):
    src, lengths, tgt = pairs()
    model = build(variant).eval()
    clean = model(src, lengths, tgt, need_weights=True)
    dirty = src.clone()
    for row, length in enumerate(lengths.tolist()):
        dirty[row, length:] = torch.randint(0, SRC_VOCAB, (SRC_LEN - length,))
    assert not torch.equal(src, dirty)
    again = model(dirty, lengths, tgt, need_weights=True)
    assert torch.equal(clean.logits, again.logits)
    for kind in set(clean.maps) - {"encoder-self"}:
        for before, after in zip(clean.maps[kind], again.maps[kind], strict=True):
            assert torch.equal(before, after)
    # rows of padding in an encoder's map belong to no token; the rows of real tokens are compared
    for before, after in zip(
        *(m.maps.get("encoder-self", ()) for m in (clean, again)), strict=True
    ):
        for row, length in enumerate(lengths.tolist()):
            assert torch.equal(before[row, :, :length], after[row, :, :length])


@every_variant
def test_step_by_step_equals_all_at_once(variant):
    src, lengths, tgt = pairs()
    model = build(variant).double().eval()
    whole = model(src, lengths, tgt, need_weights=True)
    logits, maps = step_by_step(model, src, lengths, tgt)
    torch.testing.assert_close(logits, whole.logits, atol=1e-10, rtol=0)
    for kind in maps[0]:
        for layer, full in enumerate(whole.maps[kind]):
            for t, seen in enumerate(maps):
                row = seen[kind][layer]
                torch.testing.assert_close(
                    row, full[:, :, t : t + 1, : row.shape[-1]], atol=1e-10, rtol=0
                )
                assert (full[:, :, t, row.shape[-1] :] == 0).all()


@every_variant
def test_a_later_target_token_changes_nothing_before_it(variant):
    src, lengths, tgt = pairs()
    model = build(variant).eval()
    other = tgt.clone()
    other[:, 3] = (tgt[:, 3] - 3) % (TGT_VOCAB - 4) + 4
    assert not torch.equal(tgt, other)
    before, after = model(src, lengths, tgt).logits, model(src, lengths, other).logits
    assert torch.equal(before[:, :3], after[:, :3])
    if variant not in ONE_PASS:
        assert not torch.equal(before[:, 3:], after[:, 3:])


@every_variant
def test_reordered_state_goes_on_as_reordered_rows(variant):
    src, lengths, tgt = pairs()
    model = build(variant).double().eval()
    order = torch.tensor([2, 0, 0, 1])
    state = model.start(model.encode(src, lengths))
    for t in range(2):
        state = model.step(tgt[:, t], state).state
    chosen = model.step(tgt[order, 2], state.reorder(order)).logits
    plain = model(src[order], lengths[order], tgt[order, :3]).logits[:, -1]
    torch.testing.assert_close(chosen, plain, atol=1e-10, rtol=0)


@every_variant
def test_a_row_alone_equals_the_row_in_a_batch(variant):
    src, lengths, tgt = pairs()
    model = build(variant).double().eval()
    whole = model(src, lengths, tgt).logits
    for i in range(BATCH):
        alone = model(src[i : i + 1, : lengths[i]], lengths[i : i + 1], tgt[i : i + 1]).logits
        torch.testing.assert_close(alone, whole[i : i + 1], atol=1e-10, rtol=0)


@every_variant
def test_every_parameter_gets_a_gradient(variant):
    src, lengths, tgt = pairs()
    model = build(variant)
    model(src, lengths, tgt).logits.pow(2).sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert without == []


@pytest.mark.sample(12)
@pytest.mark.parametrize("variant", LOOKS)
def test_maps_are_weights_over_real_tokens(variant):
    src, lengths, tgt = pairs()
    out = build(variant).eval()(src, lengths, tgt, need_weights=True)
    (*_, cross) = out.maps["cross"]
    assert cross.shape[0] == BATCH
    assert cross.shape[2:] == (TGT_LEN, SRC_LEN)
    padded = torch.arange(SRC_LEN) >= lengths[:, None]
    assert (cross.movedim(3, 1)[padded] == 0).all()
    if variant == "luong-local-p":
        assert (cross.sum(-1) <= 1 + 1e-5).all()
    elif variant in LABEL_PRESETS:  # after its label it looks at nothing
        expected = torch.zeros_like(cross.sum(-1))
        expected[:, :, 0] = 1
        torch.testing.assert_close(cross.sum(-1), expected)
    else:
        torch.testing.assert_close(cross.sum(-1), torch.ones_like(cross.sum(-1)))


@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ("rnn", set()),
        ("seq2seq", set()),
        ("bahdanau", {"cross"}),
        ("gnmt", {"cross"}),
        ("self-attentive", {"encoder-history", "decoder-history", "cross"}),
        ("monotonic", {"cross"}),
        ("transformer", {"encoder-self", "decoder-self", "cross"}),
        ("conv", {"cross"}),
        ("pointer", {"cross"}),
        ("memory", {"cross", "memory"}),
        ("lm-rnn", set()),
        ("lm-self-attentive", {"decoder-history"}),
        ("lm-transformer", {"decoder-self"}),
        ("classifier-rnn", {"cross"}),
        ("classifier-self-attentive", {"encoder-history", "cross"}),
        ("classifier-transformer", {"encoder-self", "cross"}),
    ],
)
def test_kinds_of_maps(variant, kinds):
    assert set(build(variant)(*pairs(), need_weights=True).maps) == kinds


@every_variant
def test_bf16_autocast_is_near_float32(variant):
    src, lengths, tgt = pairs()
    model = build(variant)
    full = model(src, lengths, tgt).logits
    with bf16_autocast():
        half = model(src, lengths, tgt, need_weights=True).logits
        half.float().pow(2).mean().backward()
    torch.testing.assert_close(half.float(), full, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("preset", TOKEN_PRESETS)
def test_names_of_weights_are_frozen(preset):
    # saved models are loaded by these names: change the file only with a way to load the old ones
    shapes = [
        f"{name} {tuple(tensor.shape)}" for name, tensor in build(preset).state_dict().items()
    ]
    assert shapes == (KEYS / f"{preset}.txt").read_text().splitlines()


# torch.compile itself reads .grad of the tensors that cross a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.compile
@pytest.mark.parametrize(
    "preset",
    [name if name in ONE_OF_EACH else pytest.param(name, marks=LONG) for name in TOKEN_PRESETS],
)
def test_compiled_equals_eager(preset):
    src, lengths, tgt = pairs()
    # each step of a recurrence is traced anew
    src, lengths, tgt = src[:, :5], lengths.clamp(max=5), tgt[:, :3]
    # layers of a stack are alike, and each is traced
    model = build(preset, **({"layers": 1} if preset in SIZES else {})).eval()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(src, lengths, tgt).logits, model(src, lengths, tgt).logits)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s, n, t: (s.float(), n, t), ["src", "integer", "float32"]),
        (lambda s, n, t: (s + 10, n, t), ["src", "0 to 16", "14 to 26"]),
        (lambda s, n, t: (s, n, t - 9), ["tgt", "0 to 12", "-8"]),
        (lambda s, n, t: (s, n + 1, t), ["lengths", "at most the 7", "8"]),
        (lambda s, n, t: (s, n[:2], t), ["src and lengths", "batch", "lengths = 2"]),
        (lambda s, n, t: (s[:, :0], n, t), ["src", "at least 1", "src_len"]),
        (lambda s, n, t: (s[0], n, t), ["src", "batch, src_len", "(7,)"]),
    ],
)
def test_wrong_tokens(change, words):
    with pytest.raises(ValueError) as error:
        build("bahdanau")(*change(*pairs()))
    assert all(word in str(error.value) for word in words), str(error.value)
