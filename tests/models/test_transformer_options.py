"""Options of Transformers against the modules of transformers that have them, in float64."""

import pytest
import torch
from transformers.activations import ACT2FN

from layers.tools import away_from_zero
from models.cases import build, pairs
from ops.messages import refuses
from regard import masks
from regard.layers.transformer import ACTIVATIONS
from regard.models.cpu.model import refuse_cpu_model

BATCH, LENGTH, SRC_LEN, DIM, INNER, VOCAB = 2, 7, 41, 24, 19, 17
EXACT = {"rtol": 0, "atol": 1e-9}


@pytest.mark.parametrize(("own", "theirs"), [
    ("relu", "relu"), ("gelu", "gelu"), ("gelu-tanh", "gelu_new"), ("silu", "silu"),
])  # fmt: skip
def test_activations_are_theirs(own, theirs):
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[own](x), ACT2FN[theirs](x), **EXACT)


def test_a_window_is_the_nearest_keys():
    torch.manual_seed(1)
    model = build("lm-transformer", window=2, positions="none").double().eval()
    tgt = torch.randint(4, 13, (1, LENGTH))
    src = torch.tensor([[2]])
    weights = model(src, None, tgt, need_weights=True).maps["decoder-self"]
    near = masks.causal(LENGTH) & masks.window(LENGTH, size=2)
    assert all(((w > 0) == near).all() for w in weights)
    # two layers of windows of two see three tokens
    other = tgt.clone()
    other[:, : LENGTH - 3] = 4
    torch.testing.assert_close(model(src, None, other).logits[:, -1],
                               model(src, None, tgt).logits[:, -1])  # fmt: skip


VARIANTS = {
    "llama": {"norm": "rms", "bias": False, "activation": "silu", "gated": True, "kv_heads": 1,
              "positions": "rotary", "head_dim": 6, "embed_scale": 1.0},
    "t5": {"norm": "rms", "bias": False, "positions": "relative", "buckets": 4, "max_distance": 5},
    "bart": {"norm_first": False, "activation": "gelu", "positions": "learned",
             "max_positions": 9, "embed_norm": True},
    "qwen": {"bias": False, "qkv_bias": True, "window": 2, "positions": "rotary", "head_dim": 4},
    "marian": {"norm_first": False, "activation": "silu", "positions": "sinusoidal-halves"},
    "albert": {"embed": 5, "repeats": 2, "embed_norm": True},
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_equal_the_whole_and_padding_counts_nothing(name):
    src, lengths, tgt = pairs()
    model = build("transformer", **VARIANTS[name])
    away_from_zero(model).double().eval()
    whole = model(src, lengths, tgt)
    state, logits = model.start(model.encode(src, lengths)), []
    for tokens in tgt.unbind(dim=1):
        out = model.step(tokens, state)
        state = out.state
        logits.append(out.logits)
    torch.testing.assert_close(torch.stack(logits, dim=1), whole.logits, rtol=1e-9, atol=1e-9)
    for i, length in enumerate(lengths.tolist()):
        alone = model(src[i : i + 1, :length], None, tgt[i : i + 1]).logits
        torch.testing.assert_close(alone, whole.logits[i : i + 1], rtol=1e-9, atol=1e-9)
    without = [n for n, p in model.named_parameters() if p.grad is not None]
    assert without == []
    whole.logits.square().sum().backward()
    silent = {n for n, p in model.named_parameters() if p.grad is None}
    assert silent == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_compiled_steps_know_what_they_run(name):
    """Weights alone do not say what they mean: a copy must refuse what it would compute wrongly."""
    assert (refuse_cpu_model(build("transformer", **VARIANTS[name])) is None) == (name == "marian")


@pytest.mark.plain
@pytest.mark.parametrize(("option", "value"), [
    ("norm", "batch"), ("positions", "absolute"), ("activation", "swish"), ("window", 0),
    ("repeats", 0), ("head_dim", 0),
])  # fmt: skip
def test_wrong_options(option, value):
    with refuses(option, "be", ""):
        build("transformer", **{option: value})
