"""Beam search in numpy: the search of `regard predict`, for a model that is given as a function.

A row is a source, its beams are its live hypotheses. A hypothesis that ends leaves its beam to
another one, and a row leaves the batch when none of its live hypotheses can win any more. A step
records the parent of each beam, and at the end hypotheses are traced back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

if __package__:
    from regard.decoding_options import DecodingOptions
else:  # a copy in an exported folder
    from decoding_options import DecodingOptions  # type: ignore[import-not-found,no-redef]

#: tokens whose maximum stands for all of them where a vocabulary is searched
BLOCK = 64

#: From the newest tokens (rows, beams), and the beams of the step before that they extend, counted
#: through all rows (None at the first step), to the log-probabilities of the next tokens
#: (rows * beams, vocab) and attention weights by layer, (rows * beams, heads, source).
Step = Callable[[np.ndarray, np.ndarray | None], tuple[np.ndarray, list[np.ndarray]]]


class TargetLimits(NamedTuple):
    """Lengths of the targets of each row, and tokens that they never have.

    Attributes:
        most: most tokens of a target, eos not counted, (rows,).
        exact: number of tokens of a target, unless `most` is lower; None if the model chooses.
        never: tokens that are never written.
        bos: the token before the first.
        eos: the token after the last.
        prefix: first tokens of all targets, whose probability counts as 1.
    """

    most: np.ndarray
    exact: np.ndarray | None
    never: list[int]
    bos: int
    eos: int
    prefix: Sequence[int] = ()

    def select(self, rows: np.ndarray) -> "TargetLimits":
        """Return the limits of these rows."""
        exact = None if self.exact is None else self.exact[rows]
        return self._replace(most=self.most[rows], exact=exact)

    def allow(
        self, log_probs: np.ndarray, step: int, options: DecodingOptions, history: np.ndarray | None
    ) -> np.ndarray | None:
        """Set tokens that are not allowed to -inf, in place.

        Args:
            log_probs: of the next token, (rows, beams, vocab).
            step: how many tokens there are so far.
            options: of the search.
            history: the tokens so far, (rows, beams, steps), where n-grams may not repeat.

        Returns:
            Where `most` forbids a likelier token, (rows, beams); None if no row is at its limit.
        """
        for token in options.ends:
            log_probs[..., self.eos] = np.maximum(log_probs[..., self.eos], log_probs[..., token])
        first = options.suppressed_first if step == len(self.prefix) else ()
        end = log_probs[..., self.eos].copy()
        log_probs[..., [*self.never, *options.suppressed, *options.ends, *first]] = -np.inf
        if step < len(self.prefix):
            log_probs[:] = -np.inf
            log_probs[..., self.prefix[step]] = 0.0
            return None
        if history is not None:
            _forbid_repeats(log_probs, history, options.no_repeat_ngram)
        if self.exact is not None:
            log_probs[self.exact > step, :, self.eos] = -np.inf
        elif step < options.min_len:
            log_probs[..., self.eos] = -np.inf
            log_probs[..., self.eos] = np.where(log_probs.max(axis=2) == -np.inf, end, -np.inf)
        at_limit = self.most <= step
        if not at_limit.any():
            return None
        if self.exact is None:
            wants_more = log_probs.max(axis=2) > end
        else:
            wants_more = np.broadcast_to((self.exact > step)[:, None], end.shape)
        log_probs[at_limit] = -np.inf
        log_probs[at_limit, :, self.eos] = 0.0 if options.forced_end else end[at_limit]
        cut: np.ndarray = wants_more & at_limit[:, None]
        return cut


def _forbid_repeats(log_probs: np.ndarray, history: np.ndarray, n: int) -> None:
    """Forbid each token that would complete an n-gram for the second time."""
    step = history.shape[2]
    if step >= n:
        grams = np.lib.stride_tricks.sliding_window_view(history, n, axis=2)
        newest = history[..., None, step - n + 1 :]  # the n - 1 tokens that the next one follows
        row, beam, gram = np.nonzero((grams[..., :-1] == newest).all(axis=3))
        log_probs[row, beam, grams[row, beam, gram, -1]] = -np.inf


@dataclass(frozen=True)
class BeamHypothesis:
    """One target for a source.

    Attributes:
        tokens: the target, without eos.
        score: what hypotheses are ranked by: `log_prob` with the length penalty.
        log_prob: of the whole target, eos included.
        token_log_probs: its terms, one per token and one for eos.
        attention: weights by layer, (heads, tokens and eos, padded source), if the graph has them.
        finished: False if the length limit cut it off and the model would have gone on.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    attention: list[np.ndarray] = field(default_factory=list, compare=False)
    finished: bool = True


class StepCandidates(NamedTuple):
    """Extensions of hypotheses by one token, best first; each array is (rows, some).

    `scores` are the log-probabilities of extended hypotheses; -inf where there is none.
    """

    parents: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray
    scores: np.ndarray


def select(log_probs: np.ndarray, scores: np.ndarray, k: int) -> StepCandidates:
    """Return the k best extensions of all hypotheses of a row; fewer if there are fewer.

    Ties go to the lower hypothesis and then to the lower token. The k best tokens are in the k
    blocks with the largest maxima, so that a large vocabulary is neither copied nor sorted.

    Args:
        log_probs: of each token after each hypothesis, (rows, beams, vocab).
        scores: of the hypotheses so far, (rows, beams); -inf for one that is not extended.
        k: number of candidates.
    """
    rows, _, vocab = log_probs.shape
    starts = np.arange(0, vocab, BLOCK)
    highest = np.maximum.reduceat(log_probs, starts, axis=2)
    # in the order of the vocabulary again, so that the earlier of equals stays the earlier
    index = np.sort(top((highest + scores[..., None]).reshape(rows, -1), k), axis=1)
    beams, first = index // len(starts), starts[index % len(starts)]
    tokens = first[..., None] + np.arange(BLOCK)  # (rows, k, BLOCK)
    row = np.arange(rows)[:, None, None]
    own = log_probs[row, beams[..., None], np.minimum(tokens, vocab - 1)]
    totals = own + _along_rows(scores, beams)[..., None]
    totals[tokens >= vocab] = -np.inf
    flat = totals.reshape(rows, -1)
    best = top(flat, k)
    parts = (np.minimum(tokens, vocab - 1).reshape(rows, -1), own.reshape(rows, -1), flat)
    return StepCandidates(
        _along_rows(beams, best // BLOCK), *(_along_rows(part, best) for part in parts)
    )


def top(values: np.ndarray, k: int) -> np.ndarray:
    """Return the indices of the k largest values of each row, the earlier first among equals."""
    rows, n = values.shape
    k = min(k, n)
    found: np.ndarray
    if k == 1:
        found = values.argmax(axis=1)[:, None]
    else:
        edge = np.partition(values, n - k, axis=1)[:, n - k]
        row, column = np.nonzero(values >= edge[:, None])  # k of each row, or more with ties
        order = np.lexsort((-values[row, column], row))  # stable: the earlier of equals first
        first = np.searchsorted(row, np.arange(rows))
        found = column[order[first[:, None] + np.arange(k)]]
    return found


def _along_rows(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return `values[i, index[i, j]]`: `np.take_along_axis`, at a third of its cost."""
    found: np.ndarray = values[np.arange(len(values))[:, None], index]
    return found


class Ending(NamedTuple):
    """A hypothesis that has ended; `last` is the log-probability of its eos.

    `step` is its number of tokens, `beam` is counted through all rows, and `cut` says that the
    length limit ended it.
    """

    score: float
    log_prob: float
    last: float
    step: int
    beam: int
    cut: bool


class BeamMove(NamedTuple):
    """The parents of beams, counted through all rows, and the tokens that extend these."""

    parents: np.ndarray
    tokens: np.ndarray
    log_probs: np.ndarray


def beam_search(
    step: Step, limits: TargetLimits, options: DecodingOptions
) -> list[list[BeamHypothesis]]:
    """Return the hypotheses of each row, best first.

    A hypothesis ends when its eos is among the best `beam` candidates. When a row is done depends
    on `early_stopping`.
    """
    rows, beam, base = len(limits.most), options.beam, options.length_base + 1
    lengths = np.maximum(base + np.arange(limits.most.max() + 1), 1)
    penalty = (lengths / max(base, 1)) ** options.length_penalty
    kept = options.nbest if options.early_stopping == "never" else beam
    longest = penalty[limits.most][:, None]
    source: np.ndarray = np.arange(rows)  # of each row that is still searched
    ended: list[list[Ending]] = [[] for _ in range(rows)]
    # the score that an ending must beat to be kept
    worst: np.ndarray = np.full((rows, 1), -np.inf, np.float32)
    move = BeamMove(source[:, None], np.full((rows, 1), limits.bos), np.zeros((rows, 1)))
    scores: np.ndarray = np.zeros((rows, 1), np.float32)
    moves: list[BeamMove] = []
    looked: list[list[np.ndarray]] = []
    history = np.zeros((rows, 1, 0), int) if options.no_repeat_ngram else None
    for number in range(len(penalty)):
        log_probs, weights = step(move.tokens, move.parents if moves else None)
        looked.append(weights)
        width = move.tokens.shape[1]
        log_probs = log_probs.reshape(len(source), width, -1)
        if np.isnan(log_probs[..., limits.eos]).any():
            raise ValueError(
                "the model must give log-probabilities, but they are NaN: train it again."
            )
        cut = limits.allow(log_probs, number, options, history)
        # each hypothesis has one eos at most, so enough others go on; a beam of 1 is greedy
        found = select(log_probs, scores, 2 * beam if beam > 1 else 1)
        first = np.arange(0, width * len(source), width)[:, None]
        ends = (found.tokens == limits.eos) & (found.scores > -np.inf)
        for i, j in np.argwhere(ends[:, :beam]).tolist():  # eos is among the best of a row
            parent, score = int(found.parents[i, j]), found.scores[i, j]
            short = not options.counted_end and limits.most[i] <= number
            lp = np.float32(penalty[max(number - short, 0)])
            numbers = (float(score / lp), float(score))
            was_cut = cut is not None and bool(cut[i, parent])
            last, place = float(found.log_probs[i, j]), int(first[i, 0]) + parent
            several = ended[source[i]]
            several.append(Ending(*numbers, last, number, place, was_cut))
            several.sort(key=lambda one: -one.score)  # stable: among equals the first to end
            del several[kept:]
            if len(several) == kept:
                worst[i] = several[-1].score
        live = _continuations(found, beam, limits.eos)
        # a hypothesis never gets likelier, and the longest one is divided by most
        over = live.scores / longest <= worst
        if options.early_stopping == "full":
            over = np.broadcast_to(worst > -np.inf, over.shape)
        elif options.early_stopping == "heuristic":
            present = live.scores[:, :1] / np.float32(penalty[number])
            over = np.broadcast_to(present <= worst, over.shape)
        if history is not None:
            past = _along_rows(history, live.parents)
            history = np.concatenate([past, live.tokens[..., None]], axis=2)
        scores = np.where(over, np.float32(-np.inf), live.scores)
        move = BeamMove(first + live.parents, live.tokens, live.log_probs)
        done = over.all(axis=1)
        if done.any():
            stay = np.flatnonzero(~done)
            if not len(stay):
                break
            source, scores = source[stay], scores[stay]
            longest, worst = longest[stay], worst[stay]
            history = None if history is None else history[stay]
            limits, move = limits.select(stay), BeamMove(*(part[stay] for part in move))
        moves.append(move)
    return _read([several[: options.nbest] for several in ended], moves, looked)


def _continuations(found: StepCandidates, width: int, eos: int) -> StepCandidates:
    """Return the best `width` candidates that end no hypothesis; -inf where there are fewer."""
    ends = found.tokens == eos
    if found.tokens.shape[1] > width:
        order = np.argsort(ends, axis=1, kind="stable")[:, :width]
        found = StepCandidates(*(_along_rows(part, order) for part in found))
        ends = found.tokens == eos
    return found._replace(scores=np.where(ends, np.float32(-np.inf), found.scores))


def _read(
    ended: list[list[Ending]], moves: list[BeamMove], looked: list[list[np.ndarray]]
) -> list[list[BeamHypothesis]]:
    """Trace the hypotheses of all rows back through the moves."""
    if not all(ended):
        raise ValueError(
            "the model must give some target a probability, but it forbids all: train it again."
        )
    step, beam = (
        np.array([getattr(one, name) for several in ended for one in several])
        for name in ("step", "beam")
    )
    last = len(looked) - 1
    beams = [np.where(step == last, beam, 0)]  # of each hypothesis at each step, the last first
    for t in range(last - 1, -1, -1):
        beams.append(np.where(step == t, beam, moves[t].parents.ravel()[beams[-1]]))
    beams.reverse()
    pairs = list(zip(moves, beams[1:], strict=False))  # no move comes after the last step
    tokens = [move.tokens.ravel()[after].tolist() for move, after in pairs]
    terms = [move.log_probs.ravel()[after].tolist() for move, after in pairs]
    found = iter(range(len(step)))

    def read(one: Ending) -> BeamHypothesis:
        i = next(found)
        steps = range(one.step)
        return BeamHypothesis(
            tokens=[tokens[t][i] for t in steps],
            score=one.score,
            log_prob=one.log_prob,
            token_log_probs=[*(terms[t][i] for t in steps), one.last],
            attention=[
                np.stack([looked[t][layer][beams[t][i]] for t in range(one.step + 1)], axis=1)
                for layer in range(len(looked[0]))
            ],
            finished=not one.cut,
        )

    return [[read(one) for one in several] for several in ended]
