import pytest
import torch
from torch import nn

from layers.tools import (
    away_from_zero,
    close,
    load_from_torch,
)
from regard import masks
from regard.attention import ALiBi, ShawRelativePositions
from regard.layers import (
    LayerOptions,
    RotaryPositions,
    TransformerDecoder,
    TransformerEncoder,
    TransformerEncoderLayer,
)

BATCH, LENGTH, KV_LEN, HEADS, DIM, INNER, LAYERS = 5, 7, 11, 2, 26, 17, 3
LENGTHS, KV_LENGTHS = torch.tensor([7, 4, 2, 1, 5]), torch.tensor([11, 2, 1, 5, 7])
REAL = torch.arange(LENGTH) < LENGTHS[:, None]
FORBIDDEN = ~masks.causal(LENGTH)[0, 0]  # as torch means it

each_norm = pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
each_activation = pytest.mark.parametrize("activation", ["relu", "gelu"])
each_mode = pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])

EIGHT = 8 * 3  # wide enough for eight heads of three features
STACKS = {
    "plain": (DIM, HEADS, LayerOptions()),
    "post-norm": (DIM, HEADS, LayerOptions(norm_first=False, activation="gelu")),
    "grouped": (EIGHT, 8, LayerOptions(num_kv_heads=2)),
    "multi-query": (EIGHT, 8, LayerOptions(num_kv_heads=1)),
    "rotary": (4 * DIM, 4, LayerOptions(rotation=RotaryPositions(DIM))),
    "alibi": (DIM, HEADS, LayerOptions(position_bias=lambda: ALiBi(HEADS))),
    "shaw": (DIM, HEADS, LayerOptions(position_bias=lambda: ShawRelativePositions(13, 2))),
    "all together": (
        4 * 14,
        4,
        LayerOptions(num_kv_heads=2, position_bias=lambda: ALiBi(4), rotation=RotaryPositions(14)),
    ),
}
each_stack = pytest.mark.parametrize("name", STACKS)
each_cut = pytest.mark.parametrize("pieces", [(1,) * LENGTH, (3, 4)], ids=str)


def vectors(length=LENGTH, dim=DIM):
    return torch.randn(BATCH, length, dim, dtype=torch.float64)


def torch_layer(kind, **kwargs):
    layer = kind(DIM, HEADS, INNER, batch_first=True, **kwargs)
    return away_from_zero(layer).double().eval()


def torch_encoder(norm=None, **kwargs):
    layer = torch_layer(nn.TransformerEncoderLayer, **kwargs)
    stack = nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False)
    return away_from_zero(stack).double().eval()


def torch_decoder(norm=None, **kwargs):
    layer = torch_layer(nn.TransformerDecoderLayer, **kwargs)
    return away_from_zero(nn.TransformerDecoder(layer, LAYERS, norm)).double().eval()


def from_torch(theirs):
    """Our stack with the weights of torch's."""
    layer = theirs.layers[0]
    options = LayerOptions(
        norm_first=layer.norm_first,
        activation="relu" if layer.activation is nn.functional.relu else "gelu",
    )
    is_encoder = isinstance(theirs, nn.TransformerEncoder)
    more = {} if is_encoder else {"memory_size": DIM}
    made = (TransformerEncoder if is_encoder else TransformerDecoder)(
        DIM, HEADS, INNER, LAYERS, options, **more
    )
    made.norm = None if theirs.norm is None else nn.LayerNorm(DIM)
    return load_from_torch(made.double(), theirs)


def decoder(name, memory_size=None, layers=LAYERS):
    dim, heads, options = STACKS[name]
    module = TransformerDecoder(dim, heads, INNER, layers, options, memory_size=memory_size)
    return away_from_zero(module).double().eval()


def decode(module, x, state, pieces, **kwargs):
    """Piece by piece, each from the state that the last one left."""
    outputs = []
    for piece in x.split(pieces, dim=1):
        outputs.append(module(piece, state, **kwargs))
        state = outputs[-1].state
    return outputs


@pytest.mark.sample(10)
@each_norm
@each_activation
@pytest.mark.parametrize("last", [True, False], ids=["last norm", "no last norm"])
@each_mode
def test_encoder_equals_torch(norm_first, activation, last, grad):
    norm = nn.LayerNorm(DIM) if last else None
    theirs = torch_encoder(norm, norm_first=norm_first, activation=activation)
    ours, x = from_torch(theirs), vectors()
    mask = masks.padding(LENGTHS, LENGTH)
    with torch.set_grad_enabled(grad):
        close(ours(x).output, theirs(x))
        for need_weights in (True, False):
            actual = ours(x, mask, need_weights=need_weights).output
            close(actual[REAL], theirs(x, src_key_padding_mask=~REAL)[REAL])
        actual = ours(x, mask & masks.causal(LENGTH)).output
        expected = theirs(x, FORBIDDEN, src_key_padding_mask=~REAL)
        close(actual[REAL], expected[REAL])


@pytest.mark.sample(7)
@each_norm
@each_activation
@pytest.mark.parametrize("last", [True, False], ids=["last norm", "no last norm"])
@each_mode
def test_decoder_equals_torch(norm_first, activation, last, grad):
    norm = nn.LayerNorm(DIM) if last else None
    theirs = torch_decoder(norm, norm_first=norm_first, activation=activation)
    ours, x, memory = from_torch(theirs), vectors(), vectors(KV_LEN)
    mask = masks.padding(KV_LENGTHS, KV_LEN)
    padding = {"memory_key_padding_mask": ~mask[:, 0, 0]}
    with torch.set_grad_enabled(grad):
        for need_weights in (True, False):
            actual = ours(x, ours.start(memory, mask), need_weights=need_weights).output
            close(actual, theirs(x, memory, FORBIDDEN, **padding))
            expected = theirs(x, memory, FORBIDDEN, tgt_key_padding_mask=~REAL, **padding)
            close(actual[REAL], expected[REAL])
        close(ours(x, ours.start(memory)).output, theirs(x, memory, FORBIDDEN))


def test_options_reach_every_part():
    options = LayerOptions(dropout=0.3, norm_first=True, activation="gelu", eps=0.01, bias=False)
    module = TransformerDecoder(DIM, HEADS, INNER, 1, options, memory_size=13)
    assert not [name for name, _ in module.named_parameters() if name.endswith("bias")]
    norms = [m for m in module.modules() if isinstance(m, nn.LayerNorm)]
    assert [norm.eps for norm in norms] == [0.01] * 4
    drops = [m.p for m in module.modules() if isinstance(m, nn.Dropout)]
    assert drops == [0.3] * 4
    layer = module.layers[0]
    assert (layer.attention.dropout, layer.cross.dropout) == (0.3, 0.3)
    assert layer.feed_forward.activation == "gelu"


@pytest.mark.sample(4)
@each_stack
@each_cut
def test_pieces_with_a_memory_equal_the_whole(name, pieces):
    module = decoder(name, memory_size=13)
    x, memory = vectors(dim=module.dim), vectors(KV_LEN, 13)
    start = module.start(memory, masks.padding(KV_LENGTHS, KV_LEN))
    whole = module(x, start, need_weights=True)
    outputs = decode(module, x, start, pieces, need_weights=True)
    close(torch.cat([o.output for o in outputs], dim=1), whole.output)
    assert outputs[-1].state.position == whole.state.position == LENGTH
    close(outputs[-1].state.layers[-1].key, whole.state.layers[-1].key)
    for layer in range(LAYERS):
        cross = torch.cat([o.cross_weights[layer] for o in outputs], dim=2)
        close(cross, whole.cross_weights[layer])
        own = outputs[-1].self_weights[layer]
        close(own, whole.self_weights[layer][:, :, -pieces[-1] :])
    without = decode(module, x, start, pieces)
    close(torch.cat([o.output for o in without], dim=1), whole.output)


@pytest.mark.sample(9)
@each_stack
@each_cut
def test_a_cache_equals_a_causal_encoder(name, pieces):
    # an encoder has no cache: its self-attention sees the whole sequence through a mask
    module = decoder(name)
    dim, heads, options = STACKS[name]
    uncached = TransformerEncoder(dim, heads, INNER, LAYERS, options).double().eval()
    uncached.load_state_dict(module.state_dict())
    x = vectors(dim=dim)
    expected = uncached(x, masks.causal(LENGTH), need_weights=True)
    outputs = decode(module, x, module.start_without(BATCH, x), pieces, need_weights=True)
    close(torch.cat([o.output for o in outputs], dim=1), expected.output)
    for layer in range(LAYERS):
        close(outputs[-1].self_weights[layer], expected.weights[layer][:, :, -pieces[-1] :])
    assert outputs[-1].cross_weights == ()


@pytest.mark.parametrize("part", ["attention", "attention_residual", "feed_forward"])
def test_each_dropout_of_a_layer_acts(part):
    layer, x = TransformerEncoderLayer(DIM, HEADS, INNER, LayerOptions(dropout=0.0)), vectors()
    layer.double()
    assert torch.equal(layer(x).output, layer(x).output)
    where = getattr(layer, part)
    if part == "attention":
        where.dropout = 0.5
    else:
        where.dropout.p = 0.5
    assert not torch.equal(layer(x).output, layer(x).output)
