"""Rows that leave late change nothing."""

from itertools import chain

import pytest
import torch
from torch import nn

from decoding.toys import Toy, sources
from regard.decoding import DecodingOptions, decode, sample
from regard.decoding.batch_pruning import BatchPruning, lag_for
from regard.decoding.beam_state import SearchPlan
from regard.decoding.candidates import select
from regard.decoding.search import CROSS, search
from regard.models import PRESETS

MAX_LEN = 6
OPTIONS = {
    "greedy": DecodingOptions(beam=1, max_len=MAX_LEN),
    "beam": DecodingOptions(beam=3, nbest=3, max_len=MAX_LEN),
    "one of a beam": DecodingOptions(beam=4, nbest=1, max_len=MAX_LEN, min_len=1),
    "penalties": DecodingOptions(
        beam=3, nbest=2, max_len=MAX_LEN, length_penalty=0.7, coverage_penalty=0.3
    ),
    "rules": DecodingOptions(
        beam=3, max_len=MAX_LEN, no_repeat_ngram=2, prefix=[[4], [], [5, 4], *[[]] * 6]
    ),
    "limits that differ": DecodingOptions(beam=2, nbest=2, max_len_ratio=1.0, max_len_extra=1),
}


def searched(toy, options, lag):
    def choose(log_probs, scores, over, noise):
        return select(log_probs, scores, over, 2 * options.beam if options.beam > 1 else 1)

    src, lengths = sources(0, 3, 5, 1, 2, 6, 4, 0, 1)
    lengths[1], lengths[4] = 2, 1
    plan = SearchPlan(choose, beams=options.beam, kept=options.nbest, lag=lag)
    toy.rows_per_step.clear()
    return search(toy, src, lengths, options, plan, CROSS), list(toy.rows_per_step)


@pytest.mark.sample(12)
@pytest.mark.parametrize("lag", [1, 3, 99])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("seed", range(2))
def test_an_answer_that_comes_late_gives_the_same_hypotheses(options, lag, seed):
    toy = Toy(7, MAX_LEN, seed=seed)
    toy.logits[..., 2] += 1.5  # so that sources end at different steps
    soon, now = searched(toy, options, 0)
    late, then = searched(toy, options, lag)
    assert late == soon
    for one, other in zip(chain(*soon), chain(*late), strict=True):
        assert one.attention["cross"][0].equal(other.attention["cross"][0])
    # the test is of use only where rows leave at more steps than one, and later if late
    assert len(set(now)) > 2
    assert sum(then) > sum(now) or len(now) == 1


def conv(positions):
    torch.manual_seed(3)
    model = PRESETS["conv"](11, 7, "tiny", dropout=0.0, max_len=64).eval()
    # of the decoder alone; what is learned does not depend on how many there are
    positional = model.decoder.embedding.positions
    positional.table = nn.Parameter(positional.table[:positions])
    with torch.no_grad():
        model.decoder.output.bias[2] += 1.0  # so that all rows are over before their limits
    steps, own = [], model.step

    def step(tokens, state, **named):
        steps.append(len(tokens))
        return own(tokens, state, **named)

    model.step = step
    return model, steps


def test_rows_that_leave_late_never_reach_past_the_last_position(monkeypatch):
    source = torch.randint(4, 11, (5, 3)), torch.tensor([3, 1, 2, 3, 2])
    options = DecodingOptions(beam=3, nbest=2, max_len_ratio=1.0, max_len_extra=30)
    free, steps = conv(64)
    soon = decode(free, *source, options, need_weights=True)
    assert max(len(row[0].tokens) for row in soon) < len(steps) < 30
    monkeypatch.setattr("regard.decoding.search.lag_for", lambda device: 1)
    tight, late = conv(len(steps))
    assert decode(tight, *source, options, need_weights=True) == soon
    assert len(late) <= len(steps)
    # a row that would need one more position ends with the last that there is
    short, late = conv(2)
    found = decode(short, *source, options)
    assert max(len(one.tokens) for row in found for one in row) == 1
    assert len(late) <= 2


def test_rows_leave_so_many_steps_after_they_were_over():
    pruning = BatchPruning(2)
    over = torch.tensor
    assert pruning.after(over([False, True, False])) is None
    assert pruning.after(over([True, True, False])) is None
    pruned = pruning.after(over([True, True, True]))
    assert pruned.gone.tolist() == [1]
    assert pruned.stay.tolist() == [0, 2]
    # answers about rows that had other numbers are forgotten
    assert pruning.after(over([True, True])) is None
    assert pruning.after(over([True, True])) is None
    pruned = pruning.after(over([True, True]))
    assert (pruned.gone.tolist(), pruned.stay.tolist()) == ([0, 1], [])


def test_without_a_lag_it_is_at_once():
    pruning = BatchPruning(0)
    assert pruning.after(torch.tensor([False, False])) is None
    pruned = pruning.after(torch.tensor([True, False]))
    assert (pruned.gone.tolist(), pruned.stay.tolist()) == ([0], [1])


def test_only_a_gpu_answers_later():
    assert lag_for(torch.device("cpu")) == 0
    assert lag_for(torch.device("cuda")) > 0


def test_samples_do_not_depend_on_when_a_gpu_answers(monkeypatch):
    toy = Toy(7, MAX_LEN)
    options = DecodingOptions(num_samples=5, max_len=MAX_LEN, seed=3)
    found = {}
    for lag in (0, 1, 3):
        monkeypatch.setattr("regard.decoding.search.lag_for", lambda device, lag=lag: lag)
        found[lag] = sample(toy, *sources(0, 1, 5, 3), options)
    assert found[0] == found[1] == found[3]
    assert len({tuple(one.tokens) for row in found[0] for one in row}) > 5
