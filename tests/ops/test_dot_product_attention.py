import pytest
import torch
import torch.nn.functional as F

from ops.rule import DTYPES, LAYOUTS, MASKS, accept, mask_of, where
from regard import masks
from regard.ops import dot_product_attention, use_backend
from regard.ops.dot_product_attention import PATHS

BATCH, HEADS, Q_LEN, KV_LEN, HEAD_DIM, V_DIM = 2, 3, 5, 7, 11, 13

#: the paths on trial; a new one is put to every test below by adding its name
BACKENDS = ["torch"]


def inputs(q_len=Q_LEN, kv_len=KV_LEN, dtype=torch.float32, device="cpu", **sizes):
    heads, kv_heads = sizes.get("heads", HEADS), sizes.get("kv_heads", HEADS)
    head_dim, v_dim = sizes.get("head_dim", HEAD_DIM), sizes.get("v_dim", V_DIM)
    shapes = {
        "query": (BATCH, heads, q_len, head_dim),
        "key": (BATCH, kv_heads, kv_len, head_dim),
        "value": (BATCH, kv_heads, kv_len, v_dim),
    }
    return {name: torch.randn(shape).to(device, dtype) for name, shape in shapes.items()}


def by(backend, mask=None, need_weights=False, **options):
    """The operator by one backend, as the rule wants it: tensors by name in, a list out."""

    def op(**tensors):
        with use_backend(backend):
            output = dot_product_attention(
                **tensors, mask=mask, need_weights=need_weights, **options
            )
        return [tensor for tensor in output if tensor is not None]

    return op


def keep_the_rule(backend, kind, tensors, **options):
    (_, heads, q_len, _), kv_len = tensors["query"].shape, tensors["key"].shape[2]
    mask = mask_of(kind, BATCH, heads, q_len, kv_len, tensors["query"].device.type)
    accept(by(backend, mask, **options), by("reference", mask, **options), tensors)


def test_every_path_is_on_trial():
    assert {*BACKENDS, "reference", "triton"} == PATHS.keys()  # see test_dot_product_triton.py


@pytest.mark.pairwise
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("kind", ["none", "padding", "causal", "arbitrary"])
def test_equals_torch(backend, kind, scale):
    tensors, mask = inputs(), mask_of(kind, BATCH, HEADS, Q_LEN, KV_LEN)
    expected = F.scaled_dot_product_attention(*tensors.values(), attn_mask=mask, scale=scale)
    (context,) = by(backend, mask, scale=scale)(**tensors)
    torch.testing.assert_close(context, expected)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("q_len", [1, 3, 7, 11])
def test_causal_is_aligned_at_the_bottom_right(backend, q_len):
    tensors = inputs(q_len, 7)
    mask = masks.causal(q_len, 7)
    expected = by("reference", mask)(**tensors)
    torch.testing.assert_close(by(backend, causal=True)(**tensors), expected)
    padding = mask_of("padding", BATCH, HEADS, q_len, 7)
    both = by("reference", padding & mask)(**tensors)
    torch.testing.assert_close(by(backend, padding, causal=True)(**tensors), both)


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_grouped_heads_equal_repeated_heads(backend, kv_heads):
    tensors = inputs(heads=6, kv_heads=kv_heads)
    mask = mask_of("arbitrary", BATCH, 6, Q_LEN, KV_LEN)
    context, weights = by(backend, mask, True)(**tensors)
    # heads 0 to group - 1 share the first head of keys, and so on
    repeated = tensors | {
        name: torch.stack([tensors[name][:, h * kv_heads // 6] for h in range(6)], dim=1)
        for name in ("key", "value")
    }
    expected, expected_weights = by("reference", mask, True)(**repeated)
    torch.testing.assert_close(weights, expected_weights)
    torch.testing.assert_close(context, expected)
    torch.testing.assert_close(by(backend, mask)(**tensors), [expected])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_products_that_half_precision_cannot_hold_are_scores_that_it_can(backend, need_weights):
    # 64 x 40 x 40 is more than the 65,504 of float16; an eighth of it is not
    query, key = (torch.full((1, 1, n, 64), 40.0, dtype=torch.float16) for n in (3, 2))
    value = torch.tensor([[[[2.0], [4.0]]]], dtype=torch.float16)
    (context, *_) = by(backend, need_weights=need_weights)(query=query, key=key, value=value)
    assert context.flatten().tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_weights_are_before_dropout(backend):
    tensors = inputs(v_dim=KV_LEN)
    tensors["value"] = torch.eye(KV_LEN).expand(BATCH, HEADS, KV_LEN, KV_LEN)
    (exact,) = by(backend)(**tensors)
    # with unit vectors for values, the context is the weights that were mixed with
    mixed, weights = by(backend, None, True, dropout=0.5)(**tensors)
    torch.testing.assert_close(weights, exact)
    for context in (mixed, *by(backend, dropout=0.5)(**tensors)):
        kept = context != 0
        assert 0 < kept.sum() < kept.numel()
        torch.testing.assert_close(context[kept], 2 * exact[kept])


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_path_drops_what_the_definition_drops(kind, causal):
    tensors = inputs(KV_LEN, KV_LEN, heads=4, kv_heads=2)
    mask = mask_of(kind, BATCH, 4, KV_LEN, KV_LEN)
    found = []
    for backend in ("reference", "torch"):
        torch.manual_seed(2)
        found += by(backend, mask, causal=causal, scale=0.3, dropout=0.4)(**tensors)
    torch.testing.assert_close(found[1], found[0])
    assert not torch.equal(found[0], by("reference", mask, causal=causal, scale=0.3)(**tensors)[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule(backend, device, kind, dtype):
    tensors = inputs(dtype=dtype, device=device)
    keep_the_rule(backend, kind, tensors)
    keep_the_rule(backend, kind, tensors, need_weights=True)
    keep_the_rule(backend, kind, tensors, causal=True)


# fused kernels take v_dim == head_dim alone, and have tiles of 64 or 128 keys
LENGTHS = [(1, 1), (1, 7), (7, 1), (67, 131), (131, 67), (64, 64), (192, 192), (61, 192)]


@pytest.mark.sample(23)
@pytest.mark.pairwise
@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_lengths(backend, device, dtype, kind, q_len, kv_len):
    tensors = inputs(q_len, kv_len, dtype, device, head_dim=64, v_dim=64)
    keep_the_rule(backend, kind, tensors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_layouts(backend, device, layout):
    tensors = {name: LAYOUTS[layout](x) for name, x in inputs(device=device).items()}
    assert not tensors["query"].is_contiguous()
    keep_the_rule(backend, "arbitrary", tensors)


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("backend", "device"), where(*BACKENDS))
def test_rule_for_a_bias_and_grouped_heads(backend, device, kind, dtype):
    tensors = inputs(dtype=dtype, device=device, heads=6, kv_heads=3)
    tensors["bias"] = torch.randn(BATCH, 1, Q_LEN, KV_LEN).to(device, dtype)
    keep_the_rule(backend, kind, tensors)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_gradcheck(backend, kind):
    tensors = inputs(2, 3, dtype=torch.float64, head_dim=2, v_dim=1)
    tensors["bias"] = torch.randn(1, HEADS, 2, 3, dtype=torch.float64)
    mask = mask_of(kind, BATCH, HEADS, 2, 3)
    for need_weights in (False, True):

        def op(*leaves, need_weights=need_weights):
            return tuple(by(backend, mask, need_weights)(**dict(zip(tensors, leaves, strict=True))))

        assert torch.autograd.gradcheck(op, [x.requires_grad_() for x in tensors.values()])


#: as many tokens as fill the tiles of a device's kernels, and more; a CPU is slow in bfloat16
TILES = {
    "cpu": [(64, 64), (65, 65), (1, 128)],
    "cuda": [(64, 64), (192, 192), (704, 704), (1, 128)],
}


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(
    ("backend", "device", "q_len", "kv_len"),
    [
        pytest.param(*place.values, *lengths, marks=place.marks)
        for place in where(*BACKENDS)
        for lengths in TILES[place.values[1]]
    ],
)
def test_very_low_scores_have_finite_gradients(backend, device, kind, q_len, kv_len, dtype):
    # cuDNN scores the padding of its last tile 0 for some lengths (pytorch issue 196678); it
    # overflows in the backward pass where all scores of a query are below -ln of the largest float
    tensors = inputs(q_len, kv_len, dtype, device, head_dim=64, v_dim=64)
    tensors["query"][..., 0], tensors["key"][..., 0] = 1.0, -120 * 64**0.5
    tensors = {name: x.requires_grad_() for name, x in tensors.items()}
    mask = mask_of(kind, BATCH, HEADS, q_len, kv_len, device)
    for causal in (False, True):
        (context,) = by(backend, mask, causal=causal)(**tensors)
        assert context.isfinite().all()
        for grad in torch.autograd.grad(context.square().sum(), list(tensors.values())):
            assert grad.isfinite().all()
