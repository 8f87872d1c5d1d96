"""The numpy search of exported folders finds what the search of the package finds, bit by bit."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from regard.decoding import DecodingOptions, decode
from regard.export import beam_search as exported
from regard.export.beam_search import TargetLimits
from regard.models import SequenceModel
from regard.models.protocol import Memory, StepOutput
from regard.state import State
from regard.symbols import BOS, EOS, PAD, UNK

#: the search of the package by its definition, bit by bit
pytestmark = pytest.mark.usefixtures("plain_steps")

ROWS = 211
HEADS, SRC_LEN = 3, 7


@dataclass(frozen=True)
class TableState(State):
    source: torch.Tensor
    code: torch.Tensor


class TableModel(SequenceModel):
    """Log-probabilities by source and prefix, drawn once; coarse ones are often equal."""

    def __init__(self, vocab, *, coarse=False, eos=0.0, seed=0, exact=None):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        logits = 2 * torch.randn(ROWS, vocab, generator=draw)
        logits[:, EOS] += eos
        self.table = logits.round() if coarse else logits
        self.looks = torch.rand(ROWS, HEADS, SRC_LEN, generator=draw)
        self.exact = exact

    def encode(self, src, lengths, *, need_weights=False):
        return Memory(src[..., None].float(), lengths)

    def start(self, memory):
        source = memory.output[:, 0, 0].long()
        return TableState(source, torch.zeros_like(source))

    def step(self, tokens, state, *, need_weights=False):
        code = (state.code * 31 + tokens * 7 + state.source * 13 + 1) % ROWS
        maps = {"cross": (self.looks[code][:, :, None],)} if need_weights else {}
        return StepOutput(self.table[code], replace(state, code=code), maps)

    def forward(self, *args, **options):
        raise NotImplementedError

    def tgt_lengths(self, memory):
        return self.exact


def both(model, options, count=11):
    """Hypotheses of both searches for as many sources, of which each has a length of its own."""
    src = torch.arange(count)[:, None].expand(-1, SRC_LEN)
    lengths = torch.arange(count) % SRC_LEN + 1
    chosen = DecodingOptions(max_len_ratio=1.0, max_len_extra=2, **options)
    ours = decode(model, src, lengths, chosen, need_weights=True)
    state = model.start(model.encode(src, lengths))

    def step(tokens, parents):
        nonlocal state
        assert parents is None or parents.shape == tokens.shape
        if parents is not None:
            state = state.reorder(torch.from_numpy(parents.ravel()))
        out = model.step(torch.from_numpy(tokens.ravel()), state, need_weights=True)
        state = out.state
        weights = [layer.squeeze(2).numpy() for layer in out.maps["cross"]]
        return out.logits.log_softmax(-1).numpy(), weights

    exact = None if model.exact is None else model.exact.numpy()
    if exact is not None:
        most = exact if chosen.max_len is None else np.minimum(exact, chosen.max_len)
    else:
        most = lengths.numpy() + 2
        most = most if chosen.max_len is None else np.full_like(most, chosen.max_len)
    never = [PAD, BOS] if exact is None else [PAD, BOS, UNK]
    limits = TargetLimits(most, exact, never, BOS, EOS)
    return ours, exported.beam_search(step, limits, chosen)


def assert_equal(ours, theirs):
    assert len(ours) == len(theirs)
    for own, several in zip(ours, theirs, strict=True):
        assert [one.tokens for one in several] == [one.tokens for one in own]
        for one, other in zip(several, own, strict=True):
            assert (one.score, one.log_prob) == (other.score, other.log_prob)
            assert one.token_log_probs == other.token_log_probs
            assert one.finished == other.finished
            (layer,), (expected,) = one.attention, other.attention["cross"]
            np.testing.assert_array_equal(layer[..., : expected.shape[2]], expected.numpy())


OPTIONS = [
    {"beam": 1},
    {"beam": 5},
    {"beam": 5, "nbest": 5, "length_penalty": 0.0},
    {"beam": 3, "nbest": 2, "max_len": 4, "length_penalty": 2.0},
    {"beam": 29, "nbest": 7},  # wider than a small vocabulary
    {"beam": 2, "max_len": 0},
    {"beam": 4, "nbest": 2, "max_len": 6, "early_stopping": "heuristic", "no_repeat_ngram": 2,
     "forced_end": True, "counted_end": False, "length_base": 0, "length_penalty": 1.0},
    {"beam": 3, "min_len": 5, "max_len": 8, "early_stopping": "full", "forced_end": True,
     "length_base": -3, "no_repeat_ngram": 1},
]  # fmt: skip


@pytest.mark.sample(11)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("coarse", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("vocab", [7, 331])  # searched whole, and by blocks
def test_hypotheses_are_those_of_the_package(vocab, coarse, options):
    ours, theirs = both(TableModel(vocab, coarse=coarse, eos=2.0, seed=1), options)
    assert_equal(ours, theirs)
    assert len({tuple(found[0].tokens) for found in ours}) > (options.get("max_len") != 0)


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"beam": 4, "nbest": 3}, {"beam": 3, "max_len": 2}]
)
def test_targets_of_known_length(options):
    model = TableModel(13, eos=3.0, exact=torch.arange(11) % 5)
    ours, theirs = both(model, options)
    assert_equal(ours, theirs)
    most = options.get("max_len", 9)
    assert [len(found[0].tokens) for found in theirs] == [min(i % 5, most) for i in range(11)]
    assert any(not found[0].finished for found in theirs) == ("max_len" in options)


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "but they are NaN"), (-np.inf, "but it forbids all")]
)
def test_a_model_without_predictions_is_refused(value, reason):
    with pytest.raises(ValueError, match=reason):
        exported.beam_search(
            lambda tokens, parents: (np.full((tokens.size, 7), value, np.float32), []),
            TargetLimits(np.array([3, 3]), None, [PAD, BOS], BOS, EOS),
            DecodingOptions(),
        )
