import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from layers.tools import away_from_zero, close, same_bits
from ops.messages import refuses
from regard import masks
from regard.attention import ALiBi, MultiHeadAttention
from regard.layers import (
    ConvEncoder,
    LayerOptions,
    RNNStack,
    RotaryPositions,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
    from_torch,
    to_torch,
)

BATCH, Q_LEN, KV_LEN, DIM, HEADS, KEY, VALUE, INNER = 3, 5, 7, 22, 2, 13, 17, 19


def encoder_layer(**kwargs):
    return nn.TransformerEncoderLayer(DIM, HEADS, INNER, batch_first=True, **kwargs)


def decoder_layer(**kwargs):
    return nn.TransformerDecoderLayer(DIM, HEADS, INNER, batch_first=True, **kwargs)


def encoder(norm=None, layers=3, **kwargs):
    return nn.TransformerEncoder(encoder_layer(**kwargs), layers, norm, enable_nested_tensor=False)


def decoder(norm=None, layers=3, **kwargs):
    return nn.TransformerDecoder(decoder_layer(**kwargs), layers, norm)


TORCH = {
    "attention": lambda: nn.MultiheadAttention(DIM, HEADS, batch_first=True, dropout=0.3),
    "attention without bias": lambda: nn.MultiheadAttention(
        DIM, HEADS, bias=False, batch_first=True
    ),
    "attention of three widths": lambda: nn.MultiheadAttention(
        DIM, HEADS, kdim=KEY, vdim=VALUE, batch_first=True
    ),
    "attention of values of another width": lambda: nn.MultiheadAttention(
        DIM, HEADS, vdim=VALUE, bias=False, batch_first=True
    ),
    "encoder layer": lambda: encoder_layer(dropout=0.2),
    "encoder layer, pre-norm": lambda: encoder_layer(norm_first=True, activation="gelu"),
    "encoder layer without bias": lambda: encoder_layer(bias=False),
    "encoder": encoder,
    "encoder with a last norm": lambda: encoder(nn.LayerNorm(DIM, eps=1e-3)),
    "encoder, pre-norm without a last norm": lambda: encoder(norm_first=True),
    "encoder with another norm": lambda: encoder(nn.RMSNorm(DIM), norm_first=True),
    "decoder layer": lambda: decoder_layer(dropout=0.0),
    "decoder layer, pre-norm": lambda: decoder_layer(norm_first=True, activation=F.gelu),
    "decoder layer without bias": lambda: decoder_layer(bias=False, layer_norm_eps=0.1),
    "decoder": decoder,
    "decoder with a last norm": lambda: decoder(nn.LayerNorm(DIM, bias=False)),
    "decoder, pre-norm without a last norm": lambda: decoder(norm_first=True),
    **{
        f"{kind.__name__}, {layers} layers, {'both ways' if both else 'ahead'}": (
            lambda kind=kind, layers=layers, both=both: kind(
                KEY, DIM, layers, batch_first=True, bidirectional=both, dropout=0.1 * (layers > 1)
            )
        )
        for kind in (nn.RNN, nn.GRU, nn.LSTM)
        for layers, both in ((1, False), (3, True))
    },
    "LSTM without bias": lambda: nn.LSTM(KEY, DIM, bias=False, batch_first=True),
}
OURS = {
    "attention": lambda: MultiHeadAttention(DIM, HEADS, dropout=0.3),
    "attention without bias": lambda: MultiHeadAttention(DIM, HEADS, bias=False),
    "attention of three widths": lambda: MultiHeadAttention(
        DIM, HEADS, key_size=KEY, value_size=VALUE
    ),
    "encoder layer": lambda: TransformerEncoderLayer(DIM, HEADS, INNER),
    "encoder": lambda: TransformerEncoder(
        DIM, HEADS, INNER, 3, LayerOptions(dropout=0.4, eps=0.1, activation="gelu")
    ),
    "encoder, post-norm without bias": lambda: TransformerEncoder(
        DIM, HEADS, INNER, 3, LayerOptions(norm_first=False, bias=False)
    ),
    "decoder layer": lambda: TransformerDecoderLayer(DIM, HEADS, INNER, memory_size=DIM),
    "decoder": lambda: TransformerDecoder(DIM, HEADS, INNER, 3, memory_size=DIM),
    "decoder with a memory of another width": lambda: TransformerDecoder(
        DIM, HEADS, INNER, 3, LayerOptions(bias=False), memory_size=KEY
    ),
    **{
        f"{cell}, {layers} layers, {'both ways' if both else 'ahead'}": (
            lambda cell=cell, layers=layers, both=both: RNNStack(
                KEY, DIM, cell=cell, num_layers=layers, bidirectional=both, dropout=0.4
            )
        )
        for cell in ("rnn", "gru", "lstm")
        for layers, both in ((1, False), (1, True), (3, True))
    },
    "lstm without bias": lambda: RNNStack(KEY, DIM, bias=False),
}
each_theirs = pytest.mark.parametrize("name", TORCH)
each_of_ours = pytest.mark.parametrize("name", OURS)


def parts(module):
    """All that a copy must have in common with its source, but for the weights."""
    return [
        (name, type(part), part.training, part.extra_repr())
        for name, part in module.named_modules()
    ]


def same_modules(actual, expected):
    assert type(actual) is type(expected)
    assert parts(actual) == parts(expected)
    assert vars_of(actual) == vars_of(expected)
    assert list(actual.state_dict()) == list(expected.state_dict())
    same_bits(actual.state_dict(), expected.state_dict())
    for one, other in zip(actual.parameters(), expected.parameters(), strict=True):
        assert (one.dtype, one.device, one.requires_grad) == (
            other.dtype,
            other.device,
            other.requires_grad,
        )


def vars_of(module):
    """The plain numbers and names that the modules of a tree hold."""
    return [
        {k: v for k, v in vars(part).items() if isinstance(v, int | float | str)}
        for part in module.modules()
    ]


def storages(module):
    return {p.untyped_storage().data_ptr() for p in module.parameters()}


@each_theirs
def test_torchs_modules_come_back(name):
    theirs = away_from_zero(TORCH[name]())
    same_modules(to_torch(from_torch(theirs)), theirs)


@each_of_ours
def test_our_modules_come_back(name):
    ours = away_from_zero(OURS[name]())
    same_modules(from_torch(to_torch(ours)), ours)


@pytest.mark.sample(20)
@each_theirs
@pytest.mark.parametrize(("dtype", "training"), [(torch.float64, True), (torch.bfloat16, False)])
def test_type_and_mode_are_kept(name, dtype, training):
    theirs = away_from_zero(TORCH[name]()).to(dtype).train(training)
    ours = from_torch(theirs)
    for module in (ours, to_torch(ours)):
        assert all(p.dtype == dtype and p.device.type == "cpu" for p in module.parameters())
        assert all(part.training == training for part in module.modules())
    same_modules(to_torch(ours), theirs)


@each_theirs
def test_nothing_is_shared(name):
    theirs = TORCH[name]()
    before = copy.deepcopy(theirs.state_dict())
    ours = from_torch(theirs)
    back = to_torch(ours)
    groups = [storages(module) for module in (theirs, ours, back)]
    assert all(groups)
    assert not groups[0] & groups[1]
    assert not groups[1] & groups[2]
    for module in (ours, back):
        for parameter in module.parameters():
            parameter.data.fill_(7.0)
    same_bits(theirs.state_dict(), before)


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        ("relu", "relu"),
        ("gelu", "gelu"),
        (F.relu, "relu"),
        (F.gelu, "gelu"),
        (torch.relu, "relu"),
        (nn.ReLU(), "relu"),
        (nn.ReLU(inplace=True), "relu"),
        (nn.GELU(), "gelu"),
    ],
    ids=lambda x: getattr(x, "__name__", type(x).__name__),
)
def test_activations(activation, name):
    for layer in (encoder_layer(activation=activation), decoder_layer(activation=activation)):
        assert from_torch(layer).feed_forward.activation == name


def test_a_decoder_computes_what_torchs_computes_whatever_its_activation_says():
    # copies of torch's decoder layers forget an activation that is a module, and take relu
    theirs = away_from_zero(decoder(activation=nn.GELU())).double().eval()
    x = torch.randn(BATCH, Q_LEN, DIM, dtype=torch.float64)
    memory = torch.randn(BATCH, KV_LEN, DIM, dtype=torch.float64)
    ours = from_torch(theirs)
    expected = theirs(x, memory, tgt_mask=~masks.causal(Q_LEN)[0, 0])
    close(ours(x, ours.start(memory)).output, expected)


@pytest.mark.parametrize(
    "name", ["attention", "attention without bias", "attention of three widths"]
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_equals_torch(name, batch_first):
    theirs = away_from_zero(TORCH[name]()).double().eval()
    theirs.batch_first = batch_first
    query = torch.randn(BATCH, Q_LEN, DIM, dtype=torch.float64)
    key = torch.randn(BATCH, KV_LEN, theirs.kdim, dtype=torch.float64)
    value = torch.randn(BATCH, KV_LEN, theirs.vdim, dtype=torch.float64)
    mask = masks.padding(torch.tensor([7, 4, 1]), KV_LEN) & masks.causal(Q_LEN, KV_LEN)
    mask[..., 0] = True  # torch gives NaN where a query sees nothing
    context, weights = from_torch(theirs)(query, key, value, mask)
    forbidden = masks.to_torch(mask, batch=BATCH, num_heads=HEADS)
    args = [x if batch_first else x.transpose(0, 1) for x in (query, key, value)]
    expected, expected_weights = theirs(*args, attn_mask=forbidden, average_attn_weights=False)
    close(context, expected if batch_first else expected.transpose(0, 1))
    close(weights, expected_weights)


def test_a_decoder_with_a_memory_of_another_width_runs_in_torch():
    ours = away_from_zero(OURS["decoder with a memory of another width"]()).double().eval()
    theirs = to_torch(ours)
    x = torch.randn(BATCH, Q_LEN, DIM, dtype=torch.float64)
    memory = torch.randn(BATCH, KV_LEN, KEY, dtype=torch.float64)
    expected = theirs(x, memory, tgt_mask=~masks.causal(Q_LEN)[0, 0])
    close(ours(x, ours.start(memory)).output, expected)


class MyLayer(nn.TransformerEncoderLayer):
    """Computes something else with the same weights, for all we know."""


@pytest.mark.plain
class TestMessages:
    @pytest.mark.parametrize(
        ("module", "name", "rule", "value"),
        [
            (nn.MultiheadAttention(DIM, HEADS, add_bias_kv=True), "add_bias_kv", "False", "True"),
            (
                nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True),
                "add_zero_attn",
                "False",
                "True",
            ),
            (nn.LSTM(KEY, DIM, proj_size=3), "proj_size", "be 0", "3"),
            (nn.RNN(KEY, DIM, nonlinearity="relu"), "nonlinearity", "tanh", "relu"),
            (encoder_layer(activation=F.silu), "activation", "relu, or gelu", "silu"),
            (encoder_layer(activation=nn.Tanh()), "activation", "relu, or gelu", "Tanh()"),
            (decoder_layer(activation=nn.GELU("tanh")), "activation", "gelu", "approximate='tanh'"),
            (encoder(layers=0), "num_layers", "at least 1", "0"),
            (decoder(layers=0), "num_layers", "at least 1", "0"),
            (nn.Linear(3, 5), "module", "MultiheadAttention, TransformerEncoderLayer", "Linear"),
            (nn.RNNCell(3, 5), "module", "LSTM, GRU, RNN", "RNNCell"),
            (MyLayer(DIM, HEADS), "module", "TransformerEncoderLayer", "MyLayer"),
            (OURS["encoder"](), "module", "one of MultiheadAttention", "TransformerEncoder"),
            (
                nn.TransformerEncoder(MyLayer(DIM, HEADS), 2, enable_nested_tensor=False),
                "module",
                "one of",
                "MyLayer",
            ),
        ],
    )
    def test_from_torch(self, module, name, rule, value):
        with refuses(name, rule, value):
            from_torch(module)

    @pytest.mark.parametrize(
        ("module", "name", "rule", "value"),
        [
            (MultiHeadAttention(DIM, 2, num_kv_heads=1), "num_kv_heads", "be 2", "1"),
            (
                MultiHeadAttention(DIM, 2, position_bias=ALiBi(2)),
                "position_bias",
                "be None",
                "ALiBi",
            ),
            (
                TransformerEncoder(24, 2, 5, 1, LayerOptions(rotation=RotaryPositions(12))),
                "rotation",
                "be None",
                "RotaryPositions",
            ),
            (
                TransformerDecoder(DIM, HEADS, INNER, 1, memory_size=None),
                "memory_size",
                "be a number",
                "None",
            ),
            (
                ConvEncoder(DIM, 1),
                "module",
                "MultiHeadAttention, TransformerEncoder",
                "ConvEncoder",
            ),
            (nn.LSTM(KEY, DIM), "module", "RNNStack", "LSTM"),
        ],
    )
    def test_to_torch(self, module, name, rule, value):
        with refuses(name, rule, value):
            to_torch(module)
