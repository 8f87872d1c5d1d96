"""Shuffled attention: what becomes of an output if each weight goes to another token's value."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.encoders import Encoder
from regard.models.protocol import Memory, SequenceModel, evaluating
from regard.ops.primitives import log_softmax
from regard.preemption import in_turn
from regard.seeing.attribution.input_scorer import rows_at_once
from regard.seeing.attribution.replacements import Source
from regard.symbols import BOS, EOS

#: number of shuffles of the attention
SHUFFLES: Final = 20


class ShuffleResult(NamedTuple):
    """Scores of a target with and without shuffled attention.

    Attributes:
        log_prob: of the target without shuffling.
        shuffled_log_prob: mean over the shuffles.
        kept: share of the likeliest tokens that remain the likeliest.
    """

    log_prob: float
    shuffled_log_prob: float
    kept: float


def shuffle(
    model: SequenceModel,
    src: Source,
    tgt: Sequence[int],
    *,
    times: int = SHUFFLES,
    seed: int = 0,
) -> ShuffleResult:
    """Score the target with every row of the cross-attention shuffled, `times` times."""
    size = rows_at_once(len(src) + len(tgt) + 1)
    pieces = torch.split(_tensor(model, [src] * times), size)
    with evaluating(model), torch.no_grad():
        plain = _forced(model, pieces[0][:1], tgt)
        with shuffled_attention(model, seed):
            moved = [_forced(model, piece, tgt) for piece in in_turn(pieces)]
    log_probs, best = (torch.cat(part) for part in zip(*moved, strict=True))
    first = plain.best.expand_as(best)
    kept = best[first].float().mean().item() if bool(first.any()) else 0.0
    before, after = (x.double().sum(dim=1).mean().item() for x in (plain.log_probs, log_probs))
    return ShuffleResult(before, after, kept)


@contextmanager
def shuffled_attention(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Apply each attention weight to the value of another token inside the block.

    Permuting values is the same as permuting all rows of weights alike, for any mechanism and any
    number of heads. Each source has its own permutation, in which no real token keeps its place,
    unless it is the only one. Other threads that run the model meanwhile are not affected.
    """
    rng, thread = torch.Generator().manual_seed(seed), threading.get_ident()

    def mix(module: nn.Module, inputs: object, memory: Memory) -> Memory:
        if threading.get_ident() != thread:
            return memory
        keys = memory.output if memory.keys is None else memory.keys
        orders = [_cycle(n, memory.output.shape[1], rng) for n in memory.lengths.tolist()]
        order = torch.stack(orders).to(memory.output.device)[..., None]
        tokens = None if memory.tokens is None else memory.tokens.gather(1, order[..., 0])
        output = memory.output.gather(1, order.expand_as(memory.output))
        return replace(memory, keys=keys, output=output, tokens=tokens)

    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    handles = [encoder.register_forward_hook(mix) for encoder in encoders]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cycle(real: int, length: int, rng: torch.Generator) -> Tensor:
    """Return a permutation of `length` places: one cycle of the first `real`, the rest fixed."""
    order = torch.arange(length)
    ring = torch.randperm(real, generator=rng)
    order[ring] = ring.roll(1)
    return order


class _ForcedScores(NamedTuple):
    """Log-probability of each target token and `eos`, and whether it is the likeliest."""

    log_probs: Float[Tensor, "batch steps"]
    best: Tensor


def _forced(model: SequenceModel, src: Tensor, tgt: Sequence[int]) -> _ForcedScores:
    lengths = torch.full((len(src),), src.shape[1], device=src.device)
    read = torch.tensor([[BOS, *tgt]], device=src.device).expand(len(src), -1)
    written = torch.tensor([[*tgt, EOS]], device=src.device).expand(len(src), -1)
    logits = model(src, lengths, read).logits
    own = log_softmax(logits).gather(2, written[..., None]).squeeze(2)
    return _ForcedScores(own, logits.argmax(dim=-1) == written)


def _tensor(model: nn.Module, rows: Sequence[Source]) -> Tensor:
    weight = next(model.parameters())
    sources = torch.from_numpy(np.stack(rows))
    dtype = weight.dtype if sources.is_floating_point() else torch.int64
    return sources.to(weight.device, dtype)
