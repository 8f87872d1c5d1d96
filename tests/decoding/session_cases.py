"""Sources that join a session at random moments, for the tests on the CPU and on a GPU."""

import random
from contextlib import contextmanager

import torch

from decoding.test_block_search import assert_same
from regard.decoding import DecodingOptions, decode
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.session import DecodingSession
from regard.state import map_leaves
from regard.symbols import EOS

KINDS = ("cross", "decoder-self", "decoder-history", "encoder-self", "encoder-history", "memory")
OPTIONS = {
    "greedy": DecodingOptions(beam=1, max_len_ratio=1.0, max_len_extra=9),
    "beam": DecodingOptions(beam=3, nbest=2, max_len_ratio=1.0, max_len_extra=9),
}


class SlotGraphs:
    """Graphs that keep states in slots, as recorded ones do, but run every function.

    Args:
        model: to search with.
        claims: of each claim, "replay"; "eager", as a call of a new shape is; "others", who have
            used the slots before; or "busy", when they use them now.
    """

    def __init__(self, model, claims):
        self._slots, self._claims = DecodingGraphs(model, records=False), claims
        self._now, self._last, self.replays, self.vocab = "", None, 0, None
        self.calls = 0

    @contextmanager
    def claim(self, src):
        self._now = next(self._claims)
        if self._now in ("others", "busy"):
            self._last, self.calls = None, self.calls + 1
            for slot in self._slots._slots.values():
                slot.fill_(255)  # NaN
        yield self._now != "busy"

    def holds(self, state):
        return self._last is not None and self._last is state

    def __call__(self, key, function, state, inputs):
        self.calls += 1
        if self._now == "eager":
            self._last = None
            return function(state, inputs)
        after, results = function(self._slots._fill_tree(state), inputs)
        results = map_leaves(results, lambda _, leaf, __: _copied(leaf))
        self._last, self.replays = self._slots._fill_tree(after), self.replays + 1
        return self._last, results


def _copied(leaf):
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def run_session(session, src, lengths, seed, *, removed=()):
    """Add sources a few at a time, at random moments, and take away those of `removed`.

    Returns the hypotheses and the streamed tokens of each source, and the most batches at a time.
    """
    draw, todo, most = random.Random(seed), list(range(len(src))), 0
    sources, numbers, found, streamed = {}, {}, {}, {}
    while todo or len(session):
        if todo and (not len(session) or draw.random() < 0.6):
            come, todo = todo[: (count := draw.randrange(1, 5))], todo[count:]
            width = max(1, int(lengths[come].max()))
            new = session.add(src[come, :width], lengths[come])
            sources.update(zip(new, come, strict=True))
            numbers.update(zip(come, new, strict=True))
            gone = [numbers[i] for i in come if i in removed and draw.random() < 0.5]
            session.remove(gone)
        done, written = session.step()
        late = [numbers[i] for i in removed if i in numbers and numbers[i] not in done]
        session.remove(late)
        found.update({sources[number]: hypotheses for number, hypotheses in done.items()})
        for number, token, log_prob, cross in written:
            streamed.setdefault(sources[number], []).append((token, log_prob, cross))
        most = max(most, len(session.batches))
    return found, streamed, most


def check_joins(model, src, lengths, options, graphs, *, seed=0, atol=1e-5, times=1):
    """Compare the hypotheses of sources that join a session with those of a plain search."""
    more = {"need_weights": True, "kinds": KINDS}
    plain = decode(model, src, lengths, options, alternatives=2, **more)
    stream = options.beam == 1
    for _ in range(times):
        session = DecodingSession(
            model, options, kinds=KINDS, alternatives=2, stream=stream, graphs=graphs
        )
        found, streamed, most = run_session(session, src, lengths, seed)
        assert most == 1, "newcomers join the others after their first block"
        assert sorted(found) == list(range(len(src)))
        assert_same([found[i] for i in range(len(src))], plain, atol)
        for i, hypotheses in found.items():
            for one, other in zip(hypotheses, plain[i], strict=True):
                assert len(one.alternatives) == len(other.alternatives)
                for place, same in zip(one.alternatives, other.alternatives, strict=True):
                    assert [token for token, _ in place] == [token for token, _ in same]
        if stream:
            check_streamed(streamed, plain)


def check_streamed(streamed, plain):
    for i, (best,) in enumerate(plain):
        ended = [EOS] if len(streamed[i]) > len(best.tokens) else []
        assert [token for token, _, _ in streamed[i]] == [*best.tokens, *ended]
        assert ended
        for (_, log_prob, cross), expected in zip(streamed[i], best.token_log_probs, strict=True):
            assert abs(log_prob - expected) < 1e-4
            assert cross is None or len(cross) == best.attention["cross"][-1].shape[2]
