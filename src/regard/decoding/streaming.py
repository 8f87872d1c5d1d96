"""One target, token by token, as it is written."""

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
        token: what was written; `eos` at the last step.
        log_prob: its log-probability.
        cross: where the model looked, (src_len,): the last layer, mean over its heads; None for a
            model without cross attention.
    """

    token: int
    log_prob: float
    cross: Tensor | None


def stream(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
) -> Iterator[Streamed]:
    """Writes greedily and yields each token at once; `eos` comes last.

    The model is set to evaluation at each step and given back before the token is handed out, so a
    stream that is left in the middle leaves nothing behind.

    Args:
        model: any model.
        src: one source.
        lengths: its number of real tokens; all are real if None.
        options: of them, the limits, the prefix and the rules count.
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
        rules = Constraints.of(
            options, memory.lengths, model.tgt_lengths(memory), model.tgt_positions
        )
    length = int(memory.lengths[0])
    history = torch.full((1, 1, 1), BOS, device=src.device)
    for step in range(rules.longest + 1):
        with inference(model):
            out = model.step(history[:, 0, -1], state, need_weights=True)
            state = out.state
            check_prefix(options.prefix, vocab=out.logits.shape[1])
            log_probs, _ = rules.allow(log_softmax(out.logits)[:, None], step, history[..., 1:])
            best = log_probs.max(dim=2)
            history = torch.cat([history, best.indices[..., None]], dim=2)
            look = last_cross_attention(out.maps)
        token = int(best.indices)
        yield Streamed(
            token, float(best.values), None if look is None else look[0, 0, :length].cpu()
        )
        if token == EOS:
            return
