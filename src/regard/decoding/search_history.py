"""The steps of a search, and the hypotheses that are read from them when it is over.

During a search nothing is copied for a hypothesis: a step records the parent of each beam. At the
end all hypotheses are traced back through these at once.

Hypotheses: targets that decoding returns, their scores and their attention maps.

Scores are those of Wu et al. (2016), https://arxiv.org/abs/1609.08144, eq. 14:
`log P(Y|X) / lp(Y)`, without its coverage penalty.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.candidates import select
from regard.decoding_options import DecodingOptions
from regard.errors import RegardError
from regard.models.protocol import Maps, is_encoder_map
from regard.ops.primitives import log_softmax
from regard.state import State

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Hypothesis:
    """One target for a source.

    Attributes:
        tokens: the target, without `bos` and `eos`.
        score: what hypotheses are ranked by: `log_prob` with the length penalty.
        log_prob: the model's log-probability of the whole target, `eos` included.
        token_log_probs: its terms, one per token and one for `eos`.
        attention: by kind, one tensor (heads, q_len, kv_len) per layer, on the CPU. Row t of
            `cross` is where the model looked when it wrote token t, and the last row when it wrote
            `eos`; its columns are the real source tokens. The columns of `decoder-self` and
            `decoder-history` are the tokens that the model had read by then, `bos` first.
        finished: False if the length limit cut it off and the model would have gone on.
        alternatives: if asked for, the likeliest tokens at each place, `eos` last, with their
            log-probabilities, best first; constraints do not count.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    attention: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict, compare=False)
    finished: bool = True
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list, compare=False)

    def __repr__(self) -> str:
        parts = [f"{len(self.tokens)} tokens", f"score={self.score:.4g}"]
        parts += [f"attention={list(self.attention)}"] * bool(self.attention)
        parts += ["finished=False"] * (not self.finished)
        return f"Hypothesis({', '.join(parts)})"


def length_penalty(length: Number, options: DecodingOptions) -> Number:
    """Return lp(Y) of targets with `length` tokens, `eos` counted; 1 for the shortest."""
    base = options.length_base
    counted: Any = base + length
    counted = counted.clamp(min=1) if isinstance(counted, Tensor) else max(counted, 1)
    penalty: Number = (counted / max(base + 1, 1)) ** options.length_penalty
    return penalty


def last_cross_attention(
    maps: Mapping[str, tuple[Tensor, ...]],
) -> Float[Tensor, "*batch q_len kv_len"] | None:
    """Return the last layer's cross-attention, mean over its heads; None if there is none."""
    layers = maps.get("cross")
    return layers[-1].mean(dim=-3) if layers else None


def maps_on_cpu(maps: Maps, kinds: Collection[str]) -> Maps:
    """Copy the maps of these kinds to the CPU, a whole layer at a time."""
    return {kind: tuple(m.cpu() for m in maps[kind]) for kind in kinds if kind in maps}


@final
class RowMaps(Mapping[str, tuple[Tensor, ...]]):
    """The maps of one hypothesis without padding, cut from those of its batch when they are read.

    Each is a copy, so that the maps of the whole batch are not held any longer then.

    Args:
        parts: maps of all rows of a batch, with the number of the row.
        tgt_len: tokens of the target, `eos` counted.
        src_len: tokens of the source.
    """

    def __init__(self, *parts: tuple[Maps, int], tgt_len: int, src_len: int) -> None:
        self._parts, self._sizes = parts, (tgt_len, src_len)
        self._found: Maps | None = None

    def _cut(self) -> Maps:
        parts, found = self._parts, self._found  # in this order, for another thread that reads
        if found is None:
            found = self._found = {
                kind: tuple(_trim(kind, layer[row], *self._sizes) for layer in maps[kind])
                for maps, row in parts
                for kind in maps
            }
            self._parts = ()
        return found

    def __getitem__(self, kind: str) -> tuple[Tensor, ...]:
        return self._cut()[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cut())

    def __len__(self) -> int:
        return len(self._cut())

    def __repr__(self) -> str:
        return repr(self._cut())

    def __reduce__(self) -> Any:
        return dict, (self._cut(),)


def _trim(
    kind: str, weights: Float[Tensor, "heads q_len kv_len"], tgt_len: int, src_len: int
) -> Float[Tensor, "heads rows columns"]:
    """Return a map of one row without padding."""
    if kind == "hops":
        return weights[..., :src_len].clone()
    if is_encoder_map(kind):
        return weights[:, :src_len, :src_len].clone()
    columns = {"cross": src_len, "memory": None}  # all slots of a memory are real
    return weights[:, :tgt_len, : columns.get(kind, tgt_len)].clone()


@dataclass(frozen=True)
class FinishedHypotheses(State):
    """The best hypotheses of each row that have ended, best first.

    Attributes:
        row: the number of the row at the start of the search.
        scores: of each hypothesis its score, -inf where there are fewer, its log-probability, and
            the log-probability of its `eos`.
        places: the step at which it ended, which is its number of tokens, the beam it was in, and 1
            if the length limit ended it.
    """

    row: Int[Tensor, " rows"]
    scores: Float[Tensor, "rows kept 3"]
    places: Int[Tensor, "rows kept 3"]

    @staticmethod
    def none(rows: int, kept: int, device: torch.device) -> "FinishedHypotheses":
        """Return room for `kept` hypotheses of each row."""
        places = torch.zeros(rows, kept, 3, dtype=torch.long, device=device)
        row = torch.arange(rows, device=device)
        return FinishedHypotheses(row, places + float("-inf"), places)

    @property
    def worst(self) -> Float[Tensor, "rows 1"]:
        """The score that another hypothesis must beat to be kept."""
        return self.scores[:, -1:, 0]

    def add(
        self, scores: Float[Tensor, "rows some 3"], places: Int[Tensor, "rows some 3"]
    ) -> "FinishedHypotheses":
        """Return the best of both, as many as are kept; among equals those that ended first."""
        scores = torch.cat([self.scores, scores], dim=1)
        places = torch.cat([self.places, places], dim=1)
        kept = self.scores.shape[1]
        rank = scores[..., 0].sort(dim=1, descending=True, stable=True).indices[:, :kept, None]
        rank = rank.expand(-1, -1, 3)
        return FinishedHypotheses(self.row, scores.gather(1, rank), places.gather(1, rank))

    def first(self, count: int) -> "FinishedHypotheses":
        """Return the best of each row."""
        return FinishedHypotheses(self.row, self.scores[:, :count], self.places[:, :count])

    @staticmethod
    def concatenate(parts: Sequence["FinishedHypotheses"]) -> "FinishedHypotheses":
        """Return the rows of all parts."""
        names = [f.name for f in fields(FinishedHypotheses)]
        return FinishedHypotheses(*(torch.cat([getattr(p, n) for p in parts]) for n in names))


class Move(NamedTuple):
    """The step from one set of beams to the next.

    Attributes:
        parents: the beam of the step before, counted through all rows.
        tokens: the token that extends it.
        log_probs: the log-probability of that token.
    """

    parents: Int[Tensor, "rows beams"]
    tokens: Int[Tensor, "rows beams"]
    log_probs: Float[Tensor, "rows beams"]

    def reorder(self, rows: Int[Tensor, " some"]) -> "Move":
        """Return these rows alone, in this order."""
        return Move(*(part.index_select(0, rows) for part in self))


class Paths(NamedTuple):
    """Hypotheses traced back through a history, one row each; values after the end are garbage.

    Attributes:
        tokens: (paths, steps - 1).
        log_probs: (paths, steps - 1).
        maps: by kind, one tensor (paths, heads, steps, kv_len) per layer, on the CPU.
        others: the likeliest tokens at each step, (paths, steps, alternatives).
        other_log_probs: their log-probabilities.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    maps: Maps
    others: NDArray[np.int64]
    other_log_probs: NDArray[np.float32]


class Alternatives(NamedTuple):
    """The likeliest tokens after each beam, best first, and their log-probabilities."""

    tokens: Int[Tensor, "rows alternatives"]
    log_probs: Float[Tensor, "rows alternatives"]

    @staticmethod
    def of(logits: Float[Tensor, "rows vocab"], count: int) -> "Alternatives":
        """Return the best `count` tokens of each row, or all if there are fewer."""
        log_probs = log_softmax(logits)[:, None]
        nothing = torch.zeros_like(log_probs[..., 0])
        best = select(log_probs, nothing, nothing.bool(), min(count, logits.shape[1]))
        return Alternatives(best.tokens, best.log_probs)


class StepRecord(NamedTuple):
    """A step of a search.

    Attributes:
        move: from its beams to the next ones.
        maps: of its beams, of the kinds that are recorded.
        alternatives: after its beams; None unless they are asked for.
        cross: the last layer's cross-attention of its beams; None unless tokens are streamed.
    """

    move: Move
    maps: Maps
    alternatives: Alternatives | None = None
    cross: Tensor | None = None

    def reorder(self, rows: Int[Tensor, " some"]) -> "StepRecord":
        """Return the record of a step after which these rows alone go on."""
        return self._replace(move=self.move.reorder(rows))


def trace_back(
    history: Sequence[StepRecord], step: NDArray[np.int64], beam: NDArray[np.int64]
) -> Paths:
    """Return the hypotheses that were in `beam` at `step` when they ended.

    The moves are small and are traced on the host, after one copy; maps are gathered where they
    are.
    """
    last = int(step.max(initial=0))  # later steps are those of hypotheses that did not win
    history = history[: last + 1]
    moves = [record.move for record in history[:last]]
    parents, tokens, log_probs = (_on_host([move[i] for move in moves]) for i in range(3))
    beams = [np.where(step == last, beam, 0)]
    for t in range(last - 1, -1, -1):
        beams.append(np.where(step == t, beam, parents[t][beams[-1]]))
    beams.reverse()
    after = list(enumerate(beams[1:]))
    written = [np.empty((len(beam), 0), np.int64), *(tokens[t][b, None] for t, b in after)]
    terms = [np.empty((len(beam), 0), np.float32), *(log_probs[t][b, None] for t, b in after)]
    return Paths(
        np.concatenate(written, axis=1),
        np.concatenate(terms, axis=1),
        _path_maps(history, beams),
        *_path_alternatives(history, beams),
    )


def _path_alternatives(
    history: Sequence[StepRecord], beams: list[NDArray[np.int64]]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the alternatives of each path, whose beam at every step is given."""
    found = [step.alternatives for step in history if step.alternatives is not None]
    if not found:
        nothing = np.empty((len(beams[0]), 0, 0))
        return nothing.astype(np.int64), nothing.astype(np.float32)
    shape = (-1, found[0].tokens.shape[1])
    tokens, log_probs = (_on_host([one[i] for one in found]) for i in range(2))
    taken = list(enumerate(beams))
    return (
        np.stack([tokens[t].reshape(shape)[beam] for t, beam in taken], axis=1),
        np.stack([log_probs[t].reshape(shape)[beam] for t, beam in taken], axis=1),
    )


def _path_maps(history: Sequence[StepRecord], beams: list[NDArray[np.int64]]) -> Maps:
    """Return the maps of each path; where the keys are the target, rows grow."""
    found: Maps = {}
    for kind, layers in history[0].maps.items():
        places = torch.from_numpy(np.stack(beams)).to(layers[0].device).unbind()
        joined = []
        for layer in range(len(layers)):
            rows = [
                step.maps[kind][layer].index_select(0, beam)
                for step, beam in zip(history, places, strict=True)
            ]
            width = max(row.shape[3] for row in rows)
            gaps = (width - row.shape[3] for row in rows)
            padded = [
                F.pad(row, (0, gap)) if gap else row for row, gap in zip(rows, gaps, strict=True)
            ]
            joined.append(torch.cat(padded, dim=2).cpu())
        found[kind] = tuple(joined)
    return found


def _on_host(steps: list[Tensor]) -> list[NDArray[Any]]:
    """Return the tensors of all steps as flat arrays, which were copied to the host together."""
    if not steps or steps[0].device.type == "cpu":
        return [tensor.flatten().numpy() for tensor in steps]
    together = torch.cat([tensor.flatten() for tensor in steps]).cpu().numpy()
    return np.split(together, np.cumsum([tensor.numel() for tensor in steps[:-1]]))


def read_hypotheses(
    history: Sequence[StepRecord],
    finished: FinishedHypotheses,
    kinds: Collection[str],
    maps: Maps,
    lengths: Sequence[int],
    samples: int = 1,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first."""
    row, scores, places = (
        tensor.cpu().numpy() for tensor in (finished.row, finished.scores, finished.places)
    )
    sources = row < len(lengths) * samples
    row, scores, places = row[sources], scores[sources], places[sources]
    real = scores[..., 0] > float("-inf")  # and not NaN
    if not real[:, 0].all():
        raise RegardError(
            "The model gives no target a probability, since its logits are NaN or forbid them all: "
            "check that its training did not diverge."
        )
    source = np.broadcast_to(row[:, None] // samples, real.shape)[real]
    scores, places = scores[real], places[real]
    paths = trace_back(history, places[:, 0], places[:, 1])
    own, sizes = maps_on_cpu(maps, kinds), places[:, 0]
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    # what is real, in lists that a hypothesis has a piece of
    real = np.arange(paths.tokens.shape[1]) < sizes[:, None]
    tokens, terms = paths.tokens[real].tolist(), paths.log_probs[real].tolist()
    bounds = pairwise([0, *np.cumsum(sizes).tolist()])
    others = list(zip(paths.others.tolist(), paths.other_log_probs.tolist(), strict=True))
    rows = zip(source.tolist(), scores.tolist(), places.tolist(), bounds, strict=True)
    for i, (row_of, (score, log_prob, last), (step, _, cut), (start, end)) in enumerate(rows):
        attention: Mapping[str, tuple[Tensor, ...]] = {}
        if own or paths.maps:
            parts = (own, row_of), (paths.maps, i)
            attention = RowMaps(*parts, tgt_len=step + 1, src_len=lengths[row_of])
        found[row_of].append(
            Hypothesis(
                tokens=tokens[start:end],
                score=score,
                log_prob=log_prob,
                token_log_probs=[*terms[start:end], last],
                attention=attention,
                finished=not cut,
                alternatives=[
                    list(zip(*place, strict=True))
                    for place in zip(*(part[: step + 1] for part in others[i]), strict=True)
                ],
            )
        )
    for hypotheses in found:
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    return found
