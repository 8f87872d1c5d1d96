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

from regard.models.protocol import Maps
from regard.state import State


class Ending(NamedTuple):
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
class Ended(State):
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
    def none(rows: int, kept: int, device: torch.device) -> "Ended":
        """The start, with room for `kept` hypotheses a row; row i belongs to source i."""
        places = torch.zeros(rows, kept, 3, dtype=torch.long, device=device)
        return Ended(torch.arange(rows, device=device), places + float("-inf"), places)

    @property
    def worst(self) -> Float[Tensor, "rows 1"]:
        """The score that another hypothesis must beat to be kept."""
        return self.scores[:, -1:, 0]

    def add(self, ending: Ending, step: int) -> "Ended":
        """The best of all, as many as there is room for; those that ended first among equals."""
        cut = torch.zeros_like(ending.lane) if ending.cut is None else ending.cut.long()
        now = torch.full_like(ending.lane, step)
        new = torch.stack([ending.score, ending.log_prob, ending.last], dim=2)
        scores = torch.cat([self.scores, new], dim=1)
        places = torch.cat([self.places, torch.stack([now, ending.lane, cut], dim=2)], dim=1)
        kept = self.scores.shape[1]
        rank = scores[..., 0].sort(dim=1, descending=True, stable=True).indices[:, :kept, None]
        rank = rank.expand(-1, -1, 3)
        return Ended(self.source, scores.gather(1, rank), places.gather(1, rank))

    @staticmethod
    def of_all(parts: Sequence["Ended"]) -> "Ended":
        """The rows of all parts."""
        return Ended(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Ended)))


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


class Trace:
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
