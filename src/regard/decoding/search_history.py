"""The steps of a search, and the hypotheses that are read from them when it is over.

During a search nothing is copied for a hypothesis: a step records the parent of each beam. At the
end all hypotheses are traced back through these at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis, maps_on_cpu, row_maps
from regard.errors import RegardError
from regard.models.protocol import Maps, Memory
from regard.state import State


class Endings(NamedTuple):
    """Hypotheses that end at a step; each tensor is (rows, some).

    Attributes:
        score: what they are ranked by; -inf where none ends.
        log_prob: of the whole hypothesis.
        last: the log-probability of its `eos`.
        beam: the beam it was in, counted through all rows.
        cut: whether the length limit ended it; None if no limit was reached.
    """

    score: Tensor
    log_prob: Tensor
    last: Tensor
    beam: Tensor
    cut: Tensor | None


@dataclass(frozen=True)
class FinishedHypotheses(State):
    """The best hypotheses of each row that have ended, best first.

    Attributes:
        source: the source that the row belongs to.
        scores: of each hypothesis its score, -inf where there are fewer, its log-probability, and
            the log-probability of its `eos`.
        places: the step at which it ended, which is its number of tokens, the beam it was in, and 1
            if the length limit ended it.
    """

    source: Int[Tensor, " rows"]
    scores: Float[Tensor, "rows kept 3"]
    places: Int[Tensor, "rows kept 3"]

    @staticmethod
    def none(rows: int, kept: int, device: torch.device) -> "FinishedHypotheses":
        """Return room for `kept` hypotheses of each row; row i belongs to source i."""
        places = torch.zeros(rows, kept, 3, dtype=torch.long, device=device)
        source = torch.arange(rows, device=device)
        return FinishedHypotheses(source, places + float("-inf"), places)

    @property
    def worst(self) -> Float[Tensor, "rows 1"]:
        """The score that another hypothesis must beat to be kept."""
        return self.scores[:, -1:, 0]

    def add(self, endings: Endings, step: int) -> "FinishedHypotheses":
        """Return the best of both, as many as are kept; among equals those that ended first."""
        cut = torch.zeros_like(endings.beam) if endings.cut is None else endings.cut.long()
        now = torch.full_like(endings.beam, step)
        new = torch.stack([endings.score, endings.log_prob, endings.last], dim=2)
        scores = torch.cat([self.scores, new], dim=1)
        places = torch.cat([self.places, torch.stack([now, endings.beam, cut], dim=2)], dim=1)
        kept = self.scores.shape[1]
        rank = scores[..., 0].sort(dim=1, descending=True, stable=True).indices[:, :kept, None]
        rank = rank.expand(-1, -1, 3)
        return FinishedHypotheses(self.source, scores.gather(1, rank), places.gather(1, rank))

    @staticmethod
    def concatenate(parts: Sequence["FinishedHypotheses"]) -> "FinishedHypotheses":
        """Return the rows of all parts."""
        names = [f.name for f in fields(FinishedHypotheses)]
        return FinishedHypotheses(*(torch.cat([getattr(p, n) for p in parts]) for n in names))


@dataclass(frozen=True)
class Move(State):
    """The step from one set of beams to the next.

    Attributes:
        parents: the beam of the step before, counted through all rows.
        tokens: the token that extends it.
        log_probs: the log-probability of that token.
    """

    parents: Int[Tensor, "rows beams"]
    tokens: Int[Tensor, "rows beams"]
    log_probs: Float[Tensor, "rows beams"]


class Paths(NamedTuple):
    """Hypotheses traced back through a history, one row each; values after the end are garbage.

    Attributes:
        tokens: (paths, steps - 1).
        log_probs: (paths, steps - 1).
        maps: by kind, one tensor (paths, heads, steps, kv_len) per layer.
    """

    tokens: Tensor
    log_probs: Tensor
    maps: Maps


class SearchHistory:
    """The steps of one search, with attention maps of these `kinds`."""

    def __init__(self, kinds: Collection[str]) -> None:
        self.kinds = kinds
        self.maps: list[Maps] = []
        self.moves: list[Move] = []

    def add_maps(self, maps: Maps) -> None:
        """Record the maps of a step."""
        self.maps.append({kind: maps[kind] for kind in self.kinds if kind in maps})

    def add_move(self, move: Move) -> None:
        """Record how the beams of the next step came about."""
        self.moves.append(move)

    def trace_back(self, step: Int[Tensor, " paths"], beam: Int[Tensor, " paths"]) -> Paths:
        """Return the hypotheses that were in `beam` at `step` when they ended."""
        beams = self._beams(step, beam)
        tokens = [beam.new_empty(len(beam), 0)]
        log_probs = [torch.empty(len(beam), 0, device=beam.device)]
        # no step may have come after the last move
        for move, after in zip(self.moves, beams[1:], strict=False):
            tokens.append(move.tokens.flatten()[after, None])
            log_probs.append(move.log_probs.flatten()[after, None])
        maps = {
            kind: tuple(self._map(kind, layer, beams) for layer in range(len(tensors)))
            for kind, tensors in self.maps[0].items()
        }
        return Paths(torch.cat(tokens, dim=1), torch.cat(log_probs, dim=1), maps)

    def _beams(self, step: Tensor, beam: Tensor) -> list[Tensor]:
        """Return the beam of each hypothesis at every step; any beam after its end."""
        last = len(self.maps) - 1
        beams = [beam.where(step == last, 0)]
        for t in range(last - 1, -1, -1):
            beams.append(beam.where(step == t, self.moves[t].parents.flatten()[beams[-1]]))
        return beams[::-1]

    def _map(
        self, kind: str, layer: int, beams: list[Tensor]
    ) -> Float[Tensor, "paths heads steps kv_len"]:
        """Return one layer's rows of all steps; where the keys are the target, rows grow."""
        rows = [
            maps[kind][layer].index_select(0, beam)
            for maps, beam in zip(self.maps, beams, strict=True)
        ]
        width = rows[-1].shape[3]
        return torch.cat([F.pad(row, (0, width - row.shape[3])) for row in rows], dim=2)


def read_hypotheses(
    history: SearchHistory, finished: FinishedHypotheses, memory: Memory
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first."""
    real = finished.scores[..., 0] > float("-inf")  # and not NaN
    if not bool(real[:, 0].all()):
        raise RegardError(
            "The model gives no target a probability, since its logits are NaN or forbid them all: "
            "check that its training did not diverge."
        )
    source = finished.source[:, None].expand_as(real)[real]
    scores, places = finished.scores[real], finished.places[real]
    paths = history.trace_back(places[:, 0], places[:, 1])
    maps, own = maps_on_cpu(paths.maps, history.kinds), maps_on_cpu(memory.maps, history.kinds)
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
                attention=row_maps(own, row, *size) | row_maps(maps, i, *size),
                finished=not cut,
            )
        )
    for hypotheses in found:
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    return found
