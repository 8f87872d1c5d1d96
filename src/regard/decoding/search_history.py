"""What search remembers of its steps, and how hypotheses are read from it when it is over.

During search nothing is copied for a hypothesis: a step leaves behind which lane each new lane came
from. At the end all hypotheses walk back through these at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.errors import RegardError
from regard.models.protocol import Maps, Memory, is_encoder_map
from regard.state import State


class Endings(NamedTuple):
    """Hypotheses that end; each tensor is (rows, some).

    Attributes:
        score: what they are ranked by; -inf if it is none.
        log_prob: of the whole hypothesis.
        last: the log-probability of its `eos`.
        lane: the lane it had, counted through all rows.
        cut: whether the limit of length ended it; None if no limit was reached.
    """

    score: Tensor
    log_prob: Tensor
    last: Tensor
    lane: Tensor
    cut: Tensor | None


@dataclass(frozen=True)
class FinishedHypotheses(State):
    """The best hypotheses of each row that have ended, best first.

    Attributes:
        source: which source the row belongs to.
        scores: of each hypothesis its score, -inf where there are fewer, its log-probability, and
            the log-probability of its `eos`.
        places: the step at which it ended, which is its number of tokens, the lane it had there,
            and 1 if the limit of length ended it.
    """

    source: Int[Tensor, " rows"]
    scores: Float[Tensor, "rows kept 3"]
    places: Int[Tensor, "rows kept 3"]

    @staticmethod
    def none(rows: int, kept: int, device: torch.device) -> "FinishedHypotheses":
        """The start, with room for `kept` hypotheses a row; row i belongs to source i."""
        places = torch.zeros(rows, kept, 3, dtype=torch.long, device=device)
        return FinishedHypotheses(torch.arange(rows, device=device), places + float("-inf"), places)

    @property
    def worst(self) -> Float[Tensor, "rows 1"]:
        """The score that another hypothesis must beat to be kept."""
        return self.scores[:, -1:, 0]

    def add(self, ending: Endings, step: int) -> "FinishedHypotheses":
        """The best of all, as many as there is room for; those that ended first among equals."""
        cut = torch.zeros_like(ending.lane) if ending.cut is None else ending.cut.long()
        now = torch.full_like(ending.lane, step)
        new = torch.stack([ending.score, ending.log_prob, ending.last], dim=2)
        scores = torch.cat([self.scores, new], dim=1)
        places = torch.cat([self.places, torch.stack([now, ending.lane, cut], dim=2)], dim=1)
        kept = self.scores.shape[1]
        rank = scores[..., 0].sort(dim=1, descending=True, stable=True).indices[:, :kept, None]
        rank = rank.expand(-1, -1, 3)
        return FinishedHypotheses(self.source, scores.gather(1, rank), places.gather(1, rank))

    @staticmethod
    def of_all(parts: Sequence["FinishedHypotheses"]) -> "FinishedHypotheses":
        """The rows of all parts."""
        return FinishedHypotheses(
            *(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(FinishedHypotheses))
        )


@dataclass(frozen=True)
class Move(State):
    """From the lanes of one step to those of the next.

    Attributes:
        parents: the lane of the step before, counted through all rows.
        tokens: what was written,
        log_probs: and its log-probability.
    """

    parents: Int[Tensor, "rows lanes"]
    tokens: Int[Tensor, "rows lanes"]
    log_probs: Float[Tensor, "rows lanes"]


class Paths(NamedTuple):
    """Hypotheses read from a trace, one row each; what stands after the end of one is garbage.

    Attributes:
        tokens: (paths, steps - 1).
        log_probs: (paths, steps - 1).
        maps: by kind, one tensor (paths, heads, steps, kv_len) per layer.
    """

    tokens: Tensor
    log_probs: Tensor
    maps: Maps


class SearchHistory:
    """The steps of one search, with the maps of these `kinds`."""

    def __init__(self, kinds: Collection[str]) -> None:
        self.kinds = kinds
        self.looks: list[Maps] = []
        self.moves: list[Move] = []

    def look(self, maps: Maps) -> None:
        """Keeps where the lanes of a step looked."""
        self.looks.append({kind: maps[kind] for kind in self.kinds if kind in maps})

    def move(self, move: Move) -> None:
        """Keeps how the lanes of the next step came about."""
        self.moves.append(move)

    def read(self, step: Int[Tensor, " paths"], lane: Int[Tensor, " paths"]) -> Paths:
        """The hypotheses that were in `lane` at `step` when they ended."""
        lanes = self._lanes(step, lane)
        tokens = [lane.new_empty(len(lane), 0)]
        log_probs = [torch.empty(len(lane), 0, device=lane.device)]
        # after the last move no step may have come
        for move, after in zip(self.moves, lanes[1:], strict=False):
            tokens.append(move.tokens.flatten()[after, None])
            log_probs.append(move.log_probs.flatten()[after, None])
        maps = {
            kind: tuple(self._rows(kind, layer, lanes) for layer in range(len(tensors)))
            for kind, tensors in self.looks[0].items()
        }
        return Paths(torch.cat(tokens, dim=1), torch.cat(log_probs, dim=1), maps)

    def _lanes(self, step: Tensor, lane: Tensor) -> list[Tensor]:
        """The lane of each hypothesis at every step; any after its end."""
        last = len(self.looks) - 1
        lanes = [lane.where(step == last, 0)]
        for t in range(last - 1, -1, -1):
            lanes.append(lane.where(step == t, self.moves[t].parents.flatten()[lanes[-1]]))
        return lanes[::-1]

    def _rows(
        self, kind: str, layer: int, lanes: list[Tensor]
    ) -> Float[Tensor, "paths heads steps kv_len"]:
        """The rows of one layer's map, as wide as the last where the target itself is looked at."""
        seen = [
            look[kind][layer].index_select(0, lane)
            for look, lane in zip(self.looks, lanes, strict=True)
        ]
        width = seen[-1].shape[3]
        return torch.cat([F.pad(row, (0, width - row.shape[3])) for row in seen], dim=2)


def read_out(
    trace: SearchHistory, ended: FinishedHypotheses, memory: Memory
) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first."""
    real = ended.scores[..., 0] > float("-inf")  # and not NaN
    if not bool(real[:, 0].all()):
        raise RegardError(
            "The model gives no target a probability, since its logits are NaN or forbid them all: "
            "check that its training did not diverge."
        )
    source = ended.source[:, None].expand_as(real)[real]
    scores, places = ended.scores[real], ended.places[real]
    paths = trace.read(places[:, 0], places[:, 1])
    maps, own = on_cpu(paths.maps, trace.kinds), on_cpu(memory.maps, trace.kinds)
    lengths = memory.lengths.tolist()
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    tensors = (source, scores, places, paths.tokens, paths.log_probs)
    rows = zip(*(tensor.tolist() for tensor in tensors), strict=True)
    for i, (row, (score, log_prob, last), (step, _, cut), tokens, terms) in enumerate(rows):
        size = (step + 1, lengths[row])
        found[row].append(
            Hypothesis(
                tokens=tokens[:step],
                score=score,
                log_prob=log_prob,
                token_log_probs=[*terms[:step], last],
                attention=attention(own, row, *size) | attention(maps, i, *size),
                finished=not cut,
            )
        )
    for several in found:
        several.sort(key=lambda hypothesis: -hypothesis.score)
    return found


def on_cpu(maps: Maps, kinds: Collection[str]) -> Maps:
    """The maps of these kinds, brought over in one piece each."""
    return {kind: tuple(m.cpu() for m in maps[kind]) for kind in kinds if kind in maps}


def attention(maps: Maps, i: int, tgt_len: int, src_len: int) -> Maps:
    """The maps of row i, without what padding has in them.

    Args:
        maps: a row for each hypothesis, or each source.
        i: which row.
        tgt_len: steps of the hypothesis, the one that wrote `eos` included.
        src_len: real tokens of its source.
    """
    return {
        kind: tuple(_corner(layer[i], *_sizes(kind, tgt_len, src_len)) for layer in layers)
        for kind, layers in maps.items()
    }


def _sizes(kind: str, tgt_len: int, src_len: int) -> tuple[int, int | None]:
    """The real rows and columns of a map; None for all of them."""
    if is_encoder_map(kind):
        return src_len, src_len
    columns = {"cross": src_len, "memory": None}  # all slots of a memory are real
    return tgt_len, columns.get(kind, tgt_len)


def _corner(
    weights: Float[Tensor, "heads q_len kv_len"], rows: int, columns: int | None
) -> Float[Tensor, "heads rows columns"]:
    """A copy, so that a hypothesis does not hold the maps of its whole batch in memory."""
    return weights[:, :rows, :columns].clone()
