"""Every public layer once, with a call that uses what it has."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from layers.tools import away_from_zero
from regard import masks
from regard.attention import ALiBi
from regard.layers import (
    ContentMemory,
    ConvDecoder,
    ConvEncoder,
    FeedForward,
    GatedConvolution,
    GridPositions,
    LayerOptions,
    LearnedPositions,
    RNNStack,
    RotaryPositions,
    SelfAttentiveRNN,
    SinusoidalPositions,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)

BATCH, LENGTH, KV_LEN, INPUT, HIDDEN, HEADS, DIM, INNER = 3, 5, 7, 11, 13, 2, 34, 19
LENGTHS, KV_LENGTHS = (5, 2, 3), (7, 1, 4)


class Case(NamedTuple):
    """A layer under test.

    Attributes:
        make: builds it.
        run: calls it, with inputs of the given shapes; returns all tensors that come out.
        shapes: of the inputs, the batch left out.
    """

    make: Callable[[], nn.Module]
    run: Callable[..., tuple[Tensor, ...]]
    shapes: tuple[tuple[int, ...], ...]


def lengths_of(x, lengths=LENGTHS):
    return torch.tensor(lengths, device=x.device)[: len(x)].clamp(max=x.shape[1])


def padding_of(x, lengths=LENGTHS):
    return masks.padding(lengths_of(x, lengths), max(lengths))


def run_rnn(stack, x):
    output, state = stack(x, lengths_of(x))
    return (output, state.hidden) if state.memory is None else (output, state.hidden, state.memory)


def run_self_attentive(layer, x):
    output = layer(x, lengths_of(x), need_weights=True)
    return output.hidden, output.context, output.weights, output.state.context


def run_encoder(encoder, x):
    output, weights = encoder(x, padding_of(x), need_weights=True)
    return output, *weights, encoder(x, padding_of(x)).output


def run_decoder_layer(layer, x, memory):
    state = layer.start(len(x), memory, x)
    output, after, own, cross = layer(x, state, padding_of(memory, KV_LENGTHS), need_weights=True)
    return output, after.key, after.value, own, cross


def run_decoder(decoder, x, memory):
    state = decoder.start(memory, padding_of(memory, KV_LENGTHS))
    first = decoder(x[:, :2], state)
    second = decoder(x[:, 2:], first.state, need_weights=True)
    return first.output, second.output, *second.self_weights, *second.cross_weights


def run_conv_decoder(decoder, x, memory):
    state = decoder.start(memory, memory, padding_of(memory, KV_LENGTHS))
    first = decoder(x[:, :2], state)
    second = decoder(x[:, 2:], first.state, need_weights=True)
    return first.output, second.output, *second.weights, *second.state.recent


def run_content_memory(module, x):
    first = module(x[:, 0], module.start(len(x)))
    second = module(x[:, 1], first.slots)
    return first.read, first.weights, second.read, second.weights


def run_alone(module, x):
    return (module(x),)


OPTIONS = LayerOptions(dropout=0.0)
GROUPED = LayerOptions(dropout=0.0, num_kv_heads=1, position_bias=lambda: ALiBi(HEADS))
SEQUENCE, WIDE, MEMORY = (LENGTH, INPUT), (LENGTH, DIM), (KV_LEN, DIM)

CASES = {
    **{
        f"RNNStack {cell}": Case(
            lambda cell=cell: RNNStack(INPUT, HIDDEN, cell=cell, num_layers=2, bidirectional=True),
            run_rnn,
            (SEQUENCE,),
        )
        for cell in ("rnn", "gru", "lstm")
    },
    **{
        f"SelfAttentiveRNN {cell}": Case(
            lambda cell=cell: SelfAttentiveRNN(INPUT, HIDDEN, cell=cell),
            run_self_attentive,
            (SEQUENCE,),
        )
        for cell in ("rnn", "gru", "lstm")
    },
    "ContentMemory": Case(
        lambda: ContentMemory(INPUT, KV_LEN, HIDDEN), run_content_memory, ((2, INPUT),)
    ),
    "SinusoidalPositions": Case(lambda: SinusoidalPositions(INPUT), run_alone, (SEQUENCE,)),
    "LearnedPositions": Case(lambda: LearnedPositions(LENGTH, INPUT), run_alone, (SEQUENCE,)),
    "GridPositions": Case(lambda: GridPositions(2, LENGTH, INPUT), run_alone, (SEQUENCE,)),
    "RotaryPositions": Case(lambda: RotaryPositions(DIM), run_alone, ((HEADS, LENGTH, DIM),)),
    "FeedForward": Case(lambda: FeedForward(DIM, INNER), run_alone, (WIDE,)),
    "TransformerEncoderLayer": Case(
        lambda: TransformerEncoderLayer(DIM, HEADS, INNER, OPTIONS), run_encoder, (WIDE,)
    ),
    "TransformerEncoder": Case(
        lambda: TransformerEncoder(DIM, HEADS, INNER, 2, OPTIONS), run_encoder, (WIDE,)
    ),
    "TransformerDecoderLayer": Case(
        lambda: TransformerDecoderLayer(DIM, HEADS, INNER, OPTIONS, memory_size=DIM),
        run_decoder_layer,
        (WIDE, MEMORY),
    ),
    "TransformerDecoder": Case(
        lambda: TransformerDecoder(DIM, HEADS, INNER, 2, GROUPED, memory_size=DIM),
        run_decoder,
        (WIDE, MEMORY),
    ),
    "GatedConvolution": Case(lambda: GatedConvolution(INPUT, 3), run_alone, (SEQUENCE,)),
    "ConvEncoder": Case(
        lambda: ConvEncoder(INPUT, 2, dropout=0.0),
        lambda module, x: (module(x, padding_of(x)),),
        (SEQUENCE,),
    ),
    "ConvDecoder": Case(
        lambda: ConvDecoder(INPUT, 2, dropout=0.0),
        run_conv_decoder,
        (SEQUENCE, (KV_LEN, INPUT)),
    ),
}


def build(name, dtype=torch.float64):
    """The layer with parameters that are all away from zero, biases too."""
    return away_from_zero(CASES[name].make()).to(dtype)


def inputs(name, dtype=torch.float64, batch=BATCH):
    return [torch.randn(batch, *shape, dtype=dtype) for shape in CASES[name].shapes]
