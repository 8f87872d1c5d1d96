import pytest

from ops.messages import refuses
from regard.attention import AdditiveAttention, MultiplicativeAttention
from regard.layers import LayerOptions, RNNStack, SinusoidalPositions, TransformerDecoder
from regard.models.decoders import ParallelDecoder, RecurrentDecoder
from regard.models.embedding import TokenEmbedding
from regard.models.language_model import TransformerBody
from regard.models.monotonic_decoder import MonotonicDecoder

DIM, VOCAB = 6, 11


def body():
    return TransformerBody(TransformerDecoder(DIM, 2, 5, 1, LayerOptions(), memory_size=None))


def recurrent(embedding):
    stack = RNNStack(2 * DIM, DIM)
    attention = AdditiveAttention(DIM, DIM, DIM)
    return RecurrentDecoder(embedding, stack, attention, context_size=DIM, summary_size=DIM)


def parallel(embedding):
    return ParallelDecoder(embedding, body(), AdditiveAttention(DIM, DIM, DIM), context_size=DIM)


def monotonic(embedding):
    attention = MultiplicativeAttention(DIM, DIM)
    return MonotonicDecoder(embedding, body(), attention, memory_size=DIM, hidden_size=DIM)


@pytest.mark.parametrize("decoder", [recurrent, parallel, monotonic])
def test_positions_that_no_step_would_count_are_refused(decoder):
    assert decoder(TokenEmbedding(VOCAB, DIM)).embedding.positions is None
    with refuses("embedding", "no positions", "SinusoidalPositions"):
        decoder(TokenEmbedding(VOCAB, DIM, positions=SinusoidalPositions(DIM)))
