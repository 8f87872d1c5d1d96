import math

import pytest
import torch

from ops.rule import DTYPES, LAYOUTS, MASKS, accept, mask_of, where
from regard.errors import BackendError
from regard.ops import additive_attention, use_backend
from regard.ops.additive_attention import PATHS

BATCH, Q_LEN, KV_LEN, HIDDEN, V_DIM = 3, 5, 7, 11, 13

#: the paths on trial; a new one is put to every test below by adding its name
BACKENDS = ["triton"]


def inputs(q_len=Q_LEN, kv_len=KV_LEN, dtype=torch.float32, device="cpu", **sizes):
    hidden, v_dim = sizes.get("hidden", HIDDEN), sizes.get("v_dim", V_DIM)
    shapes = {
        "query": (BATCH, q_len, hidden),
        "key": (BATCH, kv_len, hidden),
        "v": (hidden,),
        "value": (BATCH, kv_len, v_dim),
    }
    return {name: torch.randn(shape).to(device, dtype) for name, shape in shapes.items()}


def by(backend, mask, need_weights=False):
    """The operator by one backend, as the rule wants it: tensors by name in, a list out."""

    def op(**tensors):
        with use_backend(backend):
            output = additive_attention(**tensors, mask=mask, need_weights=need_weights)
        return [tensor for tensor in output if tensor is not None]

    return op


def keep_the_rule(backend, kind, tensors, need_weights):
    (_, q_len, _), (_, kv_len, _) = tensors["query"].shape, tensors["key"].shape
    mask = mask_of(kind, BATCH, 1, q_len, kv_len, tensors["query"].device.type)
    accept(by(backend, mask, need_weights), by("reference", mask, need_weights), tensors)


def test_every_path_is_on_trial():
    assert {*BACKENDS, "torch", "reference"} == PATHS.keys()


@pytest.mark.parametrize("kind", MASKS)
def test_the_definition_against_loops(kind):
    tensors, mask = inputs(dtype=torch.float64), mask_of(kind, BATCH, 1, Q_LEN, KV_LEN)
    query, key, v, value = tensors.values()
    with use_backend("reference"):
        context, weights = additive_attention(**tensors, mask=mask, need_weights=True)
    full = torch.ones(1, dtype=torch.bool) if mask is None else mask
    full = full.expand(BATCH, 1, Q_LEN, KV_LEN)
    for b in range(BATCH):
        for t in range(Q_LEN):
            allowed = [i for i in range(KV_LEN) if full[b, 0, t, i]]
            parts = {
                i: math.exp(
                    sum(v[j] * math.tanh(query[b, t, j] + key[b, i, j]) for j in range(HIDDEN))
                )
                for i in allowed
            }
            expected = [parts.get(i, 0.0) / (sum(parts.values()) or 1.0) for i in range(KV_LEN)]
            mix = sum((w * value[b, i] for i, w in enumerate(expected)), torch.zeros(V_DIM))
            assert weights[b, 0, t].tolist() == pytest.approx(expected, abs=1e-12)
            assert context[b, t].tolist() == pytest.approx(mix.tolist(), abs=1e-12)


@pytest.mark.pairwise(trivial=lambda params: params["dtype"] == torch.float64)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule(backend, device, kind, dtype, need_weights):
    if dtype == torch.float64:  # the kernels compute in float32
        with pytest.raises(BackendError, match="float64"):
            by(backend, None)(**inputs(dtype=dtype, device=device))
        return
    keep_the_rule(backend, kind, inputs(dtype=dtype, device=device), need_weights)


@pytest.mark.pairwise
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 7), (7, 1), (67, 131), (131, 67)])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_lengths(backend, device, kind, q_len, kv_len):
    keep_the_rule(backend, kind, inputs(q_len, kv_len, device=device), need_weights=True)


@pytest.mark.pairwise
@pytest.mark.parametrize("q_len", [1, Q_LEN])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("size", [6.0, 60.0, 1e4])
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_large_inputs(backend, device, size, kind, q_len):
    tensors = inputs(q_len, device=device)
    tensors["query"] *= size
    tensors["key"] *= size
    # sums near zero, of parts that are far from it
    tensors["key"][:, :3] = tensors["key"][:, :3] % 1 - tensors["query"][:, :1].round()
    keep_the_rule(backend, kind, tensors, need_weights=True)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("hidden", "v_dim"), [(1, 1), (2, 3), (67, 5), (257, 17), (520, 8)])
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_widths(backend, device, hidden, v_dim, dtype):
    tensors = inputs(37, 41, dtype, device, hidden=hidden, v_dim=v_dim)
    keep_the_rule(backend, "arbitrary", tensors, need_weights=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_layouts(backend, device, layout):
    tensors = {name: LAYOUTS[layout](x) for name, x in inputs(device=device).items()}
    assert not tensors["query"].is_contiguous()
    keep_the_rule(backend, "arbitrary", tensors, need_weights=True)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", MASKS)
def test_gradcheck(kind):
    small = inputs(2, 3, dtype=torch.float64, hidden=5, v_dim=1)
    tensors = [x.requires_grad_() for x in small.values()]
    mask = mask_of(kind, BATCH, 1, 2, 3)

    def op(query, key, v, value):
        return tuple(by("reference", mask, True)(query=query, key=key, v=v, value=value))

    assert torch.autograd.gradcheck(op, tensors)


@pytest.mark.parametrize(("backend", "device"), where("torch", *BACKENDS))
def test_autocast_may_mix_types(backend, device):
    tensors = inputs(device=device)
    expected = additive_attention(**tensors).context
    tensors["query"], tensors["key"] = tensors["query"].bfloat16(), tensors["key"].bfloat16()
    with torch.autocast(device, torch.bfloat16), use_backend(backend):
        context = additive_attention(**tensors).context
    torch.testing.assert_close(context.float(), expected, rtol=0, atol=0.05)
