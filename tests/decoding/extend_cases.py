"""Steps of beam search by kernels and by definition."""

from dataclasses import replace

import torch

from regard.decoding import DecodingOptions
from regard.decoding.beam_state import (
    BeamState,
    SearchPlan,
    extend_by_definition,
    extend_by_kernels,
    refuse_kernels,
)
from regard.decoding.candidates import Constraints
from regard.models.protocol import StepOutput
from regard.state import State
from regard.symbols import EOS

#: options and a size of the vocabulary
CASES = {
    "beam": (DecodingOptions(beam=3, nbest=2, max_len=9), 70),
    "nbest": (DecodingOptions(beam=4, nbest=4, max_len=3, length_penalty=1.3), 1100),
    "greedy": (DecodingOptions(beam=1, max_len=3), 41),
    "rules": (DecodingOptions(beam=2, max_len=7, min_len=2, forbid_unknown=True), 1024),
}
NEVER = float("-inf")
CLOSE = {"atol": 4e-6, "rtol": 2e-6}


def compare(options, vocab, dtype, device, rows=3, steps=5):
    """Raises where a step differs; hypotheses of equal scores may change places by rounding."""
    plan = SearchPlan.of(options)
    generator = torch.Generator().manual_seed(7)
    beams, ends = _start(options, rows, device), 0
    for step in range(steps):
        logits = 3 * torch.randn(beams.tokens.numel(), vocab, generator=generator)
        logits[:, EOS] += 12.0  # so that hypotheses end
        logits = logits.to(device, dtype)
        out = StepOutput(logits, State(), {})
        assert refuse_kernels(beams, logits, step, plan) is None
        after, move = extend_by_kernels(beams, out, step, options)
        expected, other = extend_by_definition(beams, out, step, options)
        alive = expected.scores > NEVER
        assert (after.scores > NEVER).equal(alive)
        torch.testing.assert_close(after.scores[alive], expected.scores[alive], **CLOSE)
        torch.testing.assert_close(after.scores[alive], _own(beams, logits, move)[alive], **CLOSE)
        codes = [m.parents * vocab + m.tokens for m in (move, other)]
        swapped = (codes[0] != codes[1]) & alive
        gaps = expected.scores.diff(dim=1).abs()
        tied = torch.nn.functional.pad(gaps, (1, 1), value=1.0).lt(1e-5)
        assert bool((~swapped | tied[:, 1:] | tied[:, :-1]).all()) or dtype != torch.float32
        assert after.over.equal(expected.over)
        ended = expected.finished.scores[..., 0] > NEVER
        assert (after.finished.scores[..., 0] > NEVER).equal(ended)
        torch.testing.assert_close(
            after.finished.scores[ended], expected.finished.scores[ended], **CLOSE
        )
        if dtype == torch.float32:
            assert after.finished.places[ended].equal(expected.finished.places[ended])
        assert after.finished.row.equal(expected.finished.row)
        ends += int(ended.sum())
        beams = expected
    assert ends


def _start(options, rows, device):
    lengths = torch.full((rows,), 5, device=device)
    constraints = Constraints.of(options, lengths)
    # limits that differ between rows
    limits = (constraints.limits - torch.arange(rows, device=device) % 2).clamp(min=0)
    constraints = replace(constraints, limits=limits, shortest=int(limits.min()))
    return BeamState.start(rows, constraints, options)


def _own(beams, logits, move):
    """Return the score of each beam's parent with its token, from the logits in double."""
    log_probs = logits.double().log_softmax(1)[move.parents, move.tokens]
    return (beams.scores.flatten()[move.parents] + log_probs).float()
