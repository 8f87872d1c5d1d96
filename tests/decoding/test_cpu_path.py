"""A step of beam search by the CPU kernel, against the step of torch operations."""

import pytest
import torch

from regard.decoding.beam_state import BeamState, extend
from regard.decoding.candidates import Constraints
from regard.decoding.search_history import Alternatives
from regard.decoding_options import DecodingOptions
from regard.models.protocol import StepOutput
from regard.ops.backend import HAS_NUMBA
from regard.state import State

if not HAS_NUMBA:
    pytest.skip("numba is not installed", allow_module_level=True)

from regard.decoding.search_steps import alternatives_by_kernel, extend_by_kernel, refuse_kernel

# not part of `make check`: where nothing is cached, its kernels take many seconds to compile
pytestmark = pytest.mark.slow

ROWS, LENGTHS = 5, torch.tensor([1, 2, 3, 5, 7])


def start(options):
    return BeamState.start(ROWS, Constraints.of(options, LENGTHS), options)


@pytest.mark.sample(8)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [23, 131, 641])
@pytest.mark.parametrize(
    ("beam", "kept", "more"),
    [(1, 1, {}), (3, 2, {"min_len": 2}), (4, 4, {"forbid_unknown": True, "length_penalty": 0.0})],
)
def test_steps_are_those_of_torch(beam, kept, more, vocab, ties):
    options = DecodingOptions(beam=beam, nbest=kept, max_len_ratio=1.0, max_len_extra=1, **more)
    slow = start(options)
    fast = slow
    assert refuse_kernel(slow, options) is None
    for step in range(1 if ties else 9):  # between beams, rounding decides what ties
        width = slow.tokens.shape[1]
        logits = torch.randn(ROWS * width, vocab)
        logits[:, 2] += step / 2  # eos gets likelier
        if ties:
            logits = logits.round()
        out = StepOutput(logits, State(), {})
        slow, move = extend(slow, out, step, options)
        fast, by_kernel = extend_by_kernel(fast, out, step, options)
        live = slow.scores > float("-inf")
        assert torch.equal(fast.scores > float("-inf"), live)
        assert torch.equal(fast.tokens[live], slow.tokens[live])
        assert torch.equal(by_kernel.parents[live], move.parents[live])
        torch.testing.assert_close(by_kernel.log_probs[live], move.log_probs[live])
        torch.testing.assert_close(fast.scores, slow.scores)
        assert torch.equal(fast.over, slow.over)
        torch.testing.assert_close(fast.finished.scores, slow.finished.scores)
        ended = slow.finished.scores[..., 0] > float("-inf")
        assert torch.equal(fast.finished.places[ended], slow.finished.places[ended])
        fast = slow  # rounding must not add up to another choice


@pytest.mark.parametrize(
    "more",
    [
        {"no_repeat_ngram": 2},
        {"num_samples": 2},
    ],
)
def test_other_searches_are_refused(more):
    options = DecodingOptions(beam=2, **more)
    assert refuse_kernel(start(options), options) is not None


@pytest.mark.sample(8)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [3, 23, 64, 65, 641])
def test_alternatives_are_those_of_torch(vocab, ties):
    logits = 3 * torch.randn(7, vocab)
    logits = logits.round() if ties else logits
    logits[0, 1:] = float("-inf")
    logits[1, 0] = 50.0
    found, expected = alternatives_by_kernel(logits, 6), Alternatives.of(logits, 6)
    real = expected.log_probs > float("-inf")
    assert torch.equal(found.tokens[real], expected.tokens[real])
    torch.testing.assert_close(found.log_probs, expected.log_probs)
