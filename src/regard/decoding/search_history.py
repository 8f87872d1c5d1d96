"""The steps of a search, and the hypotheses that are read from them when it is over.

During a search nothing is copied for a hypothesis: a step records the parent of each beam. At the
end all hypotheses are traced back through these at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.decoding.candidates import select
from regard.decoding.hypothesis import Hypothesis, maps_on_cpu, row_maps
from regard.errors import RegardError
from regard.models.protocol import Maps
from regard.ops.primitives import log_softmax
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
        return FinishedHypotheses(self.row, scores.gather(1, rank), places.gather(1, rank))

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
        maps: by kind, one tensor (paths, heads, steps, kv_len) per layer, on the CPU.
        others: the likeliest tokens at each step, (paths, steps, alternatives).
        other_log_probs: their log-probabilities.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    maps: Maps
    others: NDArray[np.int64]
    other_log_probs: NDArray[np.float32]


@dataclass(frozen=True)
class Alternatives(State):
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


class SearchHistory:
    """The steps of one search.

    Args:
        kinds: of the attention maps that are recorded.
        alternatives: likeliest tokens of each step that are recorded.
    """

    def __init__(self, kinds: Collection[str], alternatives: int = 0) -> None:
        self.kinds, self.count = kinds, alternatives
        self.maps: list[Maps] = []
        self.moves: list[Move] = []
        self.alternatives: list[Alternatives] = []

    def add_maps(self, maps: Maps) -> None:
        """Record the maps of a step."""
        self.maps.append({kind: maps[kind] for kind in self.kinds if kind in maps})

    def add_alternatives(self, logits: Float[Tensor, "rows vocab"]) -> None:
        """Record the likeliest tokens of a step, if they are asked for."""
        if self.count:
            self.alternatives.append(Alternatives.of(logits, self.count))

    def add_move(self, move: Move) -> None:
        """Record how the beams of the next step came about."""
        self.moves.append(move)

    def since(self, step: int) -> "SearchHistory":
        """Return the history from a step on; that step becomes step 0."""
        if step <= 0:
            return self
        part = SearchHistory(self.kinds, self.count)
        part.maps, part.moves = self.maps[step:], self.moves[step:]
        part.alternatives = self.alternatives[step:]
        return part

    def trace_back(self, step: NDArray[np.int64], beam: NDArray[np.int64]) -> Paths:
        """Return the hypotheses that were in `beam` at `step` when they ended.

        The moves are small and are traced on the host, after one copy; maps are gathered where
        they are.
        """
        last = len(self.maps) - 1
        parents, tokens, log_probs = (
            _on_host([getattr(move, name) for move in self.moves[: max(last, 0)]])
            for name in ("parents", "tokens", "log_probs")
        )
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
            self._maps(beams),
            *self._others(beams),
        )

    def _others(self, beams: list[NDArray[np.int64]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the alternatives of each path, whose beam at every step is given."""
        if not self.alternatives:
            nothing = np.empty((len(beams[0]), 0, 0))
            return nothing.astype(np.int64), nothing.astype(np.float32)
        shape = (-1, self.alternatives[0].tokens.shape[1])
        tokens, log_probs = (
            _on_host([getattr(step, name) for step in self.alternatives])
            for name in ("tokens", "log_probs")
        )
        taken = list(enumerate(beams))
        return (
            np.stack([tokens[t].reshape(shape)[beam] for t, beam in taken], axis=1),
            np.stack([log_probs[t].reshape(shape)[beam] for t, beam in taken], axis=1),
        )

    def _maps(self, beams: list[NDArray[np.int64]]) -> Maps:
        """Return the maps of each path, whose beam at every step is given."""
        layers = [(kind, i) for kind, maps in self.maps[0].items() for i in range(len(maps))]
        if not layers:
            return {}
        kind, layer = layers[0]
        places = torch.from_numpy(np.stack(beams)).to(self.maps[0][kind][layer].device).unbind()
        found: dict[str, list[Tensor]] = {kind: [] for kind, _ in layers}
        for kind, layer in layers:
            found[kind].append(self._map(kind, layer, places).cpu())
        return {kind: tuple(tensors) for kind, tensors in found.items()}

    def _map(
        self, kind: str, layer: int, beams: Sequence[Tensor]
    ) -> Float[Tensor, "paths heads steps kv_len"]:
        """Return one layer's rows of all steps; where the keys are the target, rows grow."""
        rows = [
            maps[kind][layer].index_select(0, beam)
            for maps, beam in zip(self.maps, beams, strict=True)
        ]
        width = max(row.shape[3] for row in rows)
        return torch.cat([F.pad(row, (0, width - row.shape[3])) for row in rows], dim=2)


def _on_host(steps: list[Tensor]) -> list[NDArray[Any]]:
    """Return the tensors of all steps as flat arrays, which were copied to the host together."""
    if not steps or steps[0].device.type == "cpu":
        return [tensor.flatten().numpy() for tensor in steps]
    together = torch.cat([tensor.flatten() for tensor in steps]).cpu().numpy()
    return np.split(together, np.cumsum([tensor.numel() for tensor in steps[:-1]]))


def read_hypotheses(
    history: SearchHistory,
    finished: FinishedHypotheses,
    maps: Maps,
    lengths: Sequence[int],
    samples: int = 1,
    first_steps: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first.

    Args:
        history: of the search.
        finished: the hypotheses that have ended; rows beyond those of the sources are padding.
        maps: of the encoder.
        lengths: number of real positions of each source.
        samples: rows of each source.
        first_steps: the step at which each source began; 0 for all if None.
    """
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
    paths = history.trace_back(places[:, 0], places[:, 1])
    own = maps_on_cpu(maps, history.kinds)
    found: list[list[Hypothesis]] = [[] for _ in lengths]
    arrays = (source, scores, places, paths.tokens, paths.log_probs)
    rows = zip(*(array.tolist() for array in arrays), strict=True)
    others = list(zip(paths.others.tolist(), paths.other_log_probs.tolist(), strict=True))
    for i, (row_of, (score, log_prob, last), (step, _, cut), tokens, terms) in enumerate(rows):
        start = 0 if first_steps is None else first_steps[row_of]
        size = (step + 1 - start, lengths[row_of])
        found[row_of].append(
            Hypothesis(
                tokens=tokens[start:step],
                score=score,
                log_prob=log_prob,
                token_log_probs=[*terms[start:step], last],
                attention=row_maps(own, row_of, *size) | row_maps(paths.maps, i, *size, start),
                finished=not cut,
                alternatives=[
                    list(zip(*place, strict=True))
                    for place in zip(*(part[start : step + 1] for part in others[i]), strict=True)
                ],
            )
        )
    for hypotheses in found:
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    return found
