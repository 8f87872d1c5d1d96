"""Attribution by running a model again: ablation, gradient, rollout, shuffled attention.

A weight says where a model looked, an attribution what mattered to it. All functions take one
source and one forced target; rows are target tokens, `eos` last, columns source tokens, or the
positions that the model makes of frames.
"""

import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.adapters import InputAdapter
from regard.models.embedding import TokenEmbedding
from regard.models.encoders import Encoder
from regard.models.protocol import Memory, SequenceModel, evaluating
from regard.ops.primitives import log_softmax
from regard.preemption import in_turn, is_preemptible, preemptible, preemption_point
from regard.seeing.replacements import Replacements, Source
from regard.seeing.trace import Weights
from regard.symbols import BOS, EOS

#: replacements that are tried for an ablated input
DRAWS: Final = 16
#: number of shuffles of the attention
SHUFFLES: Final = 20
#: tokens of sources and targets that are scored at once
TOKENS: Final = 16_384
#: the same where other work is let in between two batches
PIECE_TOKENS: Final = 2_048


def ablation(
    model: SequenceModel,
    src: Source,
    tgt: Sequence[int],
    unknown: Replacements,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> Weights:
    """Return the cost of each output, in nats, if an input is unknown.

    `log p(y_t | x) - log mean_z p(y_t | x with z in the place of x_i)`, where z are the
    replacements of x_i: the prediction difference of Robnik-Sikonja and Kononenko (2008,
    https://doi.org/10.1109/TKDE.2007.190734), which averages over the values of an unknown input.
    The input is replaced, not deleted: deletion would move all that follow it, and a model that
    counts would be charged for that. `unk` would be a vector that training has hardly seen.

    Args:
        model: run without dropout, and left as it was.
        src: source ids as the model reads them, `eos` last; or a table of frames.
        tgt: target ids, without `bos` and `eos`.
        unknown: replacements of each position of the source.
        draws: number of replacements that are tried at a position.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    chosen = [_draw(rng, ids, draws) for ids in unknown.others]
    rows = (unknown.put(src, i, z) for i, ids in enumerate(chosen) for z in ids)
    scores = _log_probs(model, itertools.chain([src], rows), tgt)
    ends = np.cumsum([1, *map(len, chosen)])
    costs = [
        scores[0] - (np.logaddexp.reduce(scores[a:b], axis=0) - math.log(b - a))
        for a, b in itertools.pairwise(ends)
    ]
    return np.stack(costs, axis=1).astype(np.float32)


def _draw(rng: np.random.Generator, ids: Sequence[int], count: int) -> list[int]:
    if len(ids) <= count:
        return list(ids)
    return [ids[i] for i in rng.choice(len(ids), count, replace=False)]


def _log_probs(model: SequenceModel, sources: Iterator[Source], tgt: Sequence[int]) -> Any:
    """Return log-probabilities of the target given sources of one length, (sources, steps)."""
    first = next(sources)
    size = _rows_at_once(len(first), len(tgt))
    found, every = [], itertools.chain([first], sources)
    with evaluating(model), torch.no_grad():
        while some := list(itertools.islice(every, size)):
            preemption_point()
            src = _tensor(model, some)
            found.append(_forced(model, src, tgt).log_probs.double().cpu().numpy())
    return np.concatenate(found)


def gradient(model: SequenceModel, src: Source, tgt: Sequence[int]) -> Weights:
    """Return the norm of the gradient of each output's log-probability for each input.

    `|| d log p(y_t | x) / d e_i ||`, the Euclidean norm, where e_i is the embedding of x_i, or the
    encoder's input made of frames (Li et al., 2016, https://arxiv.org/abs/1506.01066). Gradients of
    parameters are not touched. Row t of a batch has the loss of output t, so one pass gives all.

    Args:
        model: run without dropout, and left as it was.
        src: source ids as the model reads them, `eos` last; or a table of frames.
        tgt: target ids, without `bos` and `eos`.
    """
    steps, size = len(tgt) + 1, _rows_at_once(len(src), len(tgt))
    found = []
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        for start in in_turn(range(0, steps, size)):
            wanted = torch.arange(start, min(start + size, steps))
            rows = _tensor(model, [src] * len(wanted))
            with _without_cudnn(rows), _leaves(model, rows) as leaves:
                log_probs = _forced(model, rows, tgt).log_probs
                chosen = log_probs[torch.arange(len(wanted)), wanted.to(log_probs.device)]
                slopes = torch.autograd.grad(chosen.sum(), leaves)
            squares = torch.stack([slope.float().pow(2).sum(dim=-1) for slope in slopes])
            found.append(squares.sum(dim=0).sqrt().cpu().numpy())
    norms: Weights = np.concatenate(found).astype(np.float32)
    return norms


@contextmanager
def _without_cudnn(src: Tensor) -> Iterator[None]:
    """Run recurrent layers without cuDNN, whose kernels have no backward pass outside training.

    The switch is global, so no other work is let in meanwhile.
    """
    if not src.is_cuda:
        yield
        return
    with preemptible(lambda: None), torch.backends.cudnn.flags(enabled=False):
        yield


@contextmanager
def _leaves(model: nn.Module, src: Tensor) -> Iterator[list[Tensor]]:
    """Collect the embeddings of `src` (an ensemble has several) as leaves of the graph."""
    leaves: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if inputs[0] is not src:  # that of the target
            return None
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    readers = [m for m in model.modules() if isinstance(m, TokenEmbedding | InputAdapter)]
    handles = [reader.register_forward_hook(keep) for reader in readers]
    try:
        yield leaves
    finally:
        for handle in handles:
            handle.remove()


def rollout(
    cross: Float[np.ndarray, "rows columns"],
    encoder_self: Sequence[Float[np.ndarray, "heads columns columns"]],
) -> Weights:
    """Return attention rollout: cross-attention followed through the encoder's self-attention.

    `cross . A_n ... A_1` with `A_l = (mean over heads + identity) / 2`: the residual connection
    carries half of each position (Abnar and Zuidema, 2020, https://arxiv.org/abs/2005.00928).

    Args:
        cross: the attention to the encoder's outputs.
        encoder_self: that of each encoder layer, lowest first.
    """
    rolled = np.eye(cross.shape[1])
    for layer in encoder_self:
        rolled = (layer.mean(axis=0) + np.eye(len(rolled))) / 2 @ rolled
    return (cross @ rolled).astype(np.float32)


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
    size = _rows_at_once(len(src), len(tgt))
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


def _rows_at_once(src_len: int, tgt_len: int) -> int:
    tokens = PIECE_TOKENS if is_preemptible() else TOKENS
    return max(1, tokens // (src_len + tgt_len + 1))
