"""Streaming: the tokens of one target as they are written."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.constraints import Constraints, check_prefix
from regard.decoding.hypothesis import last_cross_attention
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
from regard.models.protocol import Lengths, SequenceModel, Src, check_batch, inference
from regard.ops.primitives import log_softmax
from regard.symbols import BOS, EOS


class Streamed(NamedTuple):
    """One step.

    Attributes:
        token: the new token; `eos` at the last step.
        log_prob: its log-probability.
        cross: the last layer's cross-attention, (src_len,), mean over its heads; None if the model
            has none.
        finished: False at an `eos` that the length limit has forced.
    """

    token: int
    log_prob: float
    cross: Tensor | None
    finished: bool = True


def stream(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
) -> Iterator[Streamed]:
    """Search greedily and yield each token at once; `eos` comes last.

    The model is set to evaluation at each step and set back before the token is yielded, so
    an abandoned stream leaves nothing behind.

    Args:
        model: any model.
        src: one source.
        lengths: its number of real tokens; all are real if None.
        options: the limits, the prefix and the constraints count; the others are ignored.
    """
    check_batch(src, lengths)
    if len(src) != 1:
        raise ArgumentError("src", "be one source to be streamed", len(src), "use decode")
    check_prefix(options.prefix, rows=1)
    return _steps(model, src, lengths, options)


def _steps(
    model: SequenceModel, src: Tensor, lengths: Tensor | None, options: DecodingOptions
) -> Iterator[Streamed]:
    with inference(model):
        memory = model.encode(src, lengths)
        state = model.start(memory)
        constraints = Constraints.of(
            options, memory.lengths, model.tgt_lengths(memory), model.tgt_positions
        )
    length = int(memory.lengths[0])
    history = torch.full((1, 1, 1), BOS, device=src.device)
    for step in range(constraints.longest + 1):
        with inference(model):
            out = model.step(history[:, 0, -1], state, need_weights=True)
            state = out.state
            check_prefix(options.prefix, vocab=out.logits.shape[1])
            log_probs = log_softmax(out.logits)[:, None]
            allowed = constraints.allow(log_probs, step, history[..., 1:])
            best = allowed.log_probs.max(dim=2)
            history = torch.cat([history, best.indices[..., None]], dim=2)
            weights = last_cross_attention(out.maps)
        token = int(best.indices)
        yield Streamed(
            token,
            float(best.values),
            None if weights is None else weights[0, 0, :length].cpu(),
            finished=allowed.cut is None or not bool(allowed.cut),
        )
        if token == EOS:
            return
