"""The rest of a search with one source left, by a model that takes several steps at a time."""

from typing import Final

import numpy as np
import torch

from regard.decoding.beam_state import BeamState
from regard.decoding.hypothesis import length_penalty
from regard.decoding.search_history import FinishedHypotheses, Move, SearchHistory
from regard.decoding_options import DecodingOptions
from regard.models.protocol import SingleSearch, TakeSteps
from regard.preemption import preemption_point
from regard.symbols import UNK

#: Most steps at a time, after which others may have their turn.
STEPS: Final = 16


def search_single_source(
    take_steps: TakeSteps,
    beams: BeamState,
    first: int,
    options: DecodingOptions,
    history: SearchHistory,
) -> FinishedHypotheses:
    """Return the hypotheses at the end of a search, whose steps are put into its history.

    Args:
        take_steps: the model's, see `SequenceModel.single_steps`.
        beams: of one source, before step `first`.
        first: number of tokens so far.
        options: of decoding.
        history: of the search.
    """
    constraints, width = beams.constraints, beams.tokens.shape[1]
    ended, places = beams.finished.scores.numpy().copy(), beams.finished.places.numpy().copy()
    tokens, parents, step = beams.tokens[0].numpy(), np.arange(width), first
    scores, over = beams.scores.numpy(), beams.over.numpy()
    while step <= constraints.longest and not over.all():
        preemption_point()
        room = min(STEPS, constraints.longest + 1 - step)
        ends = [length_penalty(float(step + t + 1), options.length_penalty) for t in range(room)]
        found = take_steps(
            SingleSearch(
                step=step,
                room=room,
                min_len=constraints.min_len,
                unknown=UNK not in constraints.never,
                limits=constraints.limits.numpy(),
                longest=beams.longest.numpy(),
                penalties=np.array(ends, np.float32).reshape(room, 1, 1),
                tokens=tokens,
                parents=parents,
                scores=scores,
                over=over,
                ended_scores=ended,
                ended_places=places,
                keeps_logits=history.count > 0,
            )
        )
        taken = len(found.tokens)
        for t in range(taken):
            cross = torch.from_numpy(found.cross[t])[:, None, None] if history.kinds else None
            history.add_maps({} if cross is None else {"cross": (cross,)})
            if history.count:
                history.add_alternatives(torch.from_numpy(found.logits[t]))
            moved = (found.parents[t], found.tokens[t], found.log_probs[t])
            history.add_move(Move(*map(torch.from_numpy, moved)))
        tokens, parents = found.tokens[-1, 0], found.parents[-1, 0]
        scores, over, step = found.scores[-1], found.over[-1], step + taken
    kept = [torch.from_numpy(array) for array in (ended, places)]
    return FinishedHypotheses(beams.finished.row, *kept)
