"""Steps of a recurrent decoder in a search with one source, several by one kernel."""

from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.models.cpu import single_source_kernels as kernels
from regard.models.cpu.products import FOR_ROWS
from regard.models.cpu.recurrent import RecurrentCpuState, RecurrentSteps, StepArrays
from regard.ops.beam_kernels import BLOCK
from regard.state import State


@final
class SingleSourceSteps:
    """Takes the steps of one search, see `SequenceModel.compiled_steps`.

    Args:
        steps: of the model.
        state: before the first of its steps, of the beams of one source.
        scores: see `RecurrentSteps.scores_of`.
        weights: of a step.
    """

    def __init__(
        self,
        steps: RecurrentSteps,
        state: RecurrentCpuState,
        scores: NDArray[np.float32] | None,
        weights: StepArrays,
    ) -> None:
        self.steps, self.state, self.weights = steps, state, weights
        self.scores = _floats(0, 0, 0) if scores is None else scores
        (vocab, features), (width, size) = weights.output.shape, state.hidden.shape
        self.hidden, self.known = _two_of(state.hidden), _two_of(state.known)
        self.memory = _floats(2, 0, 0) if state.memory is None else _two_of(state.memory)
        self.cross = state.weights.numpy()
        candidates = 2 * width if width > 1 else 1
        self._scratch = (
            _floats(steps.gates),
            _floats(6 * size),
            np.zeros(vocab, np.float32),
            _floats(width, features),
            _floats(1, len(weights.w)),
            _floats(-(-vocab // BLOCK)),
            *_floats(2, candidates),
            *np.empty((2, candidates), np.int64),
        )

    @staticmethod
    def of(steps: RecurrentSteps, state: State, beams: int) -> "SingleSourceSteps | None":
        """Return the steps of a search; None if there are too many beams, or a library is faster.

        The products of several beams with one matrix are the kernel's own.
        """
        assert isinstance(state, RecurrentCpuState)
        if beams not in FOR_ROWS or steps.arrays(scored=False) is None:
            return None
        scores = steps.scores_of(state, beams)
        weights = steps.arrays(scored=scores is not None)
        return None if weights is None else SingleSourceSteps(steps, state, scores, weights)

    def __call__(
        self,
        *,
        tokens: NDArray[np.int64],
        parents: NDArray[np.int64],
        scores: NDArray[np.float32],
        over: NDArray[np.bool_],
        ended: tuple[NDArray[np.float32], NDArray[np.int64]],
        rules: tuple[Any, ...],
        keeps_logits: bool,
    ) -> tuple[NDArray[Any], ...]:
        """Take steps until no beam can win, or there is no room for more.

        Args:
            tokens: the newest of each beam, (beams,).
            parents: the beam whose state each beam continues, (beams,).
            scores: log-probability of each beam, (1, beams).
            over: which beams cannot win any more, (1, beams).
            ended: scores and places of the hypotheses that have ended, changed in place.
            rules: number of tokens so far, fewest tokens of a target, whether the unknown token is
                allowed, the length penalty of the longest target, the most tokens of a target, and
                the penalties of targets that end at each of the steps, (room, 1, 1).
            keeps_logits: whether the logits of all steps are returned.

        Returns:
            Arrays with an axis of steps first: tokens, parents and log-probabilities, (1, beams),
            scores and `over` after each step, attention, (beams, src_len), and logits.
        """
        room, width, sources = len(rules[-1]), len(tokens), self.state.sources
        next_tokens, next_parents = np.empty((2, room, 1, width), np.int64)
        log_probs = _floats(room, 1, width)
        # these have one more in front, from before the first step
        totals, cross = _floats(room + 1, 1, width), _floats(room + 1, *self.cross.shape)
        are_over = np.empty((room + 1, 1, width), np.bool_)
        totals[0], are_over[0], cross[0] = scores, over, self.cross
        logits = _floats(room if keeps_logits else 1, 1, width, len(self.weights.output))
        taken = np.zeros(1, np.int64)
        kernels.search_steps(
            *self.weights,
            *sources.keys,
            sources.values,
            sources.gates,
            self.scores,
            self.state.source.numpy(),
            sources.lengths,
            kernels.CELLS[self.steps.cell],
            self.steps.query_size,
            *rules,
            self.hidden,
            self.memory,
            self.known,
            *self._scratch,
            *ended,
            tokens,
            parents,
            next_tokens,
            totals,
            are_over,
            next_parents,
            log_probs,
            cross,
            logits,
            taken,
        )
        count = int(taken[0])
        if count % 2:  # the newest state is the second one
            self.hidden, self.known = self.hidden[::-1].copy(), self.known[::-1].copy()
            self.memory = self.memory[::-1].copy()
        self.cross = cross[count]
        written = (next_tokens, next_parents, log_probs)
        after = (totals, are_over, cross)
        return (
            *(array[:count] for array in written),
            *(array[1 : count + 1] for array in after),
            logits[:count, 0],
        )


def _floats(*shape: int) -> NDArray[np.float32]:
    return np.empty(shape, np.float32)


def _two_of(state: Tensor) -> NDArray[np.float32]:
    """Return room for two states of the beams, of which this is the first."""
    both = _floats(2, *state.shape)
    both[0] = state.numpy()
    return both
