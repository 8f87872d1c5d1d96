"""Counters of a run, its schedules and the statistics of evaluations, with numbers by hand."""

import math

import numpy as np
import pytest
import torch

from regard.data import BatchShape
from regard.training import evaluator as evaluations
from regard.training.epochs import BatchShapes, Epoch, Epochs, TrainingBatches
from regard.training.evaluator import (
    AttentionHealth,
    attention_health,
    describe_attention,
    describe_outputs,
)
from regard.training.schedule import Budget, Progress, learning_rate


def test_ranks_of_scores():
    progress = Progress()
    found = []
    for progress.step, score in enumerate((0.5, 0.75, 0.25, math.nan, 0.75), 1):
        best = progress.rank(score, higher_is_better=True, kept=3)
        found.append((best, progress.stale, progress.improved))
    assert found == [(True, 0, 1), (True, 0, 2), (False, 1, 2), (False, 2, 2), (False, 3, 2)]
    assert [found[:2] for found in progress.best] == [(0.75, 2), (0.75, 5), (0.5, 1)]
    assert progress.lowest_loss is None


def budget(**limits):
    rest = {"steps": 100, "epochs": None, "minutes": None, "patience": None}
    return Budget(**rest | limits, batches_in_epoch=lambda epoch: 4 * epoch)


def test_the_budget_is_that_of_the_nearest_limit():
    progress = Progress(step=10, epoch=2, batch=2, seconds=45.0)
    assert budget().spent(progress) == 0.1
    assert budget(epochs=5).spent(progress) == (2 + 2 / 8) / 5
    assert budget(epochs=50).spent(progress) == 0.1
    assert budget(minutes=1.5).spent(progress) == 0.5
    assert budget(epochs=1).spent(Progress(batch=1)) == 1.0, "an epoch without batches"
    assert budget(steps=10).is_over(progress)
    assert not budget(steps=11).is_over(progress)
    assert budget(patience=2).is_over(Progress(step=1, stale=2))
    assert not budget(patience=2).is_over(Progress(step=1, stale=1))


def test_minutes_begin_with_the_setup_and_end_after_the_last_evaluations():
    progress = Progress(step=1, setup_seconds=10.0)
    progress.took_step(2.0)
    progress.took_evaluation(3.0)
    progress.took_step(1.5)
    assert progress.seconds == 6.5
    one = budget(minutes=1.0)  # ten seconds of setup, and two evaluations of three at the end
    assert one.spent(progress) == 6.5 / (60 - 10 - 6)
    progress.seconds = 42.5
    assert not one.is_over(progress), "there is time for the fastest step"
    progress.seconds = 42.6
    assert one.is_over(progress)
    progress.setup_seconds, progress.last_evaluation_seconds = 50.0, 40.0
    assert one.spent(progress) == 42.6 / (60 - 30 - 15), "half and a quarter at most"


RATES = [
    ("constant", 5, 10, 0.9, 1.0),
    ("constant", 10, 10, 0.9, 2.0),
    ("linear", 10, 10, 0.25, 1.5),
    ("linear", 10, 10, 0.999, 0.02),
    ("linear", 10, 10, 0.985, 0.03),
    ("cosine", 10, 10, 0.5, 1.0),
    ("cosine", 10, 10, 1 / 3, 1.5),
    ("cosine", 10, 10, 1.0, 0.02),
    ("cosine", 10, 10, 1.5, 0.02),
    # flat for ten times the warm-up, then with the root of the step
    ("inverse-sqrt", 100, 10, 0.9, 2.0),
    ("inverse-sqrt", 400, 10, 0.9, 1.0),
    ("inverse-sqrt", 40, 0, 0.9, 1.0),
    ("inverse-sqrt", 8_000, None, 0.9, 1.0),
]


def test_learning_rates():
    for schedule, step, warmup, spent, rate in RATES:
        found = learning_rate(schedule, 2.0, step=step, warmup=warmup, spent=spent)
        assert found == pytest.approx(rate)


class Pairs:
    """Pairs that have lengths alone."""

    def __init__(self, *lengths):
        self.src_lengths, self.tgt_lengths = np.array(lengths, dtype=np.int32).T

    def gather(self, side, rows):
        raise NotImplementedError


def test_shapes_of_batches():
    some = Pairs((3, 5), (9, 3), (17, 30), (70, 2))
    shapes = BatchShapes(max_src_len=66, max_tgt_len=31, tokens=100)
    # targets have an end of sentence; 70 is rounded to 72, and the longest source has 66
    assert shapes.src_lengths(some).tolist() == [4, 12, 20, 66]
    assert shapes.tgt_lengths(some).tolist() == [8, 4, 31, 4]
    # room for 100 // (12 + 8) = 5 rows, by steps of 2
    assert shapes.of_batch(some, np.array([0, 1])) == BatchShape(2, 12, 8)
    assert shapes.of_batch(some, np.array([0, 1, 1])) == BatchShape(4, 12, 8)
    assert shapes.of_batch(some, np.array([0, 1, 1, 1, 1])) == BatchShape(5, 12, 8)
    # one row has room at least, although 66 + 31 tokens leave none
    tight = BatchShapes(max_src_len=66, max_tgt_len=31, tokens=10)
    assert tight.of_batch(some, np.array([2])) == BatchShape(1, 20, 31)
    by_rows = BatchShapes(max_src_len=66, max_tgt_len=31, sentences=16)
    assert by_rows.of_batch(some, np.array([0] * 5)) == BatchShape(8, 4, 8)
    assert by_rows.of_batch(some, np.array([0] * 16)) == BatchShape(16, 4, 8)


PASSES = [[[0, 1], [2, 3], [4]], [[4, 3], [2, 1], [0]]]


@pytest.fixture
def epochs(monkeypatch):
    """Passes of three batches each over five pairs, in turn in one of two orders."""
    pairs = Pairs((1, 2), (3, 4), (5, 6), (7, 8), (9, 10))

    def planned(self, number):
        return Epoch(pairs, [np.array(rows) for rows in PASSES[number % 2]])

    monkeypatch.setattr(Epochs, "__getitem__", planned)
    return Epochs(pairs, max_tokens=None, max_sentences=2, seed=1)


def test_batches_of_a_step(epochs):
    batches = TrainingBatches(epochs, accumulate=2)
    shares, epoch, batch = batches.take(0, 0)
    assert [share.rows.tolist() for share in shares] == [[0, 1], [2, 3]]
    # target tokens, with an end of sentence for each, and the source tokens
    assert [share.global_tgt_tokens for share in shares] == [8, 16]
    assert [share.global_tokens for share in shares] == [12, 28]
    assert [share.weight for share in shares] == [1.0, 1.0]
    assert (epoch, batch) == (0, 2)
    shares, epoch, batch = batches.take(0, 2)
    assert [share.rows.tolist() for share in shares] == [[4], [4, 3]]
    assert (epoch, batch) == (1, 1)
    assert batches.in_epoch(1) == 3


def test_a_position_past_the_last_batch_is_the_start_of_the_next_pass(epochs):
    batches = TrainingBatches(epochs)
    for batch in (3, 7):
        shares, *position = batches.take(0, batch)
        assert shares[0].rows.tolist() == [4, 3]
        assert position == [1, 1]
    assert batches.take(1, 2)[1:] == (2, 0)


def test_processes_share_a_batch(epochs):
    first, second = (TrainingBatches(epochs, rank=rank, processes=2) for rank in (0, 1))
    assert first.take(0, 0)[0][0].rows.tolist() == [0]
    assert second.take(0, 0)[0][0].rows.tolist() == [1]
    # the second has no example of its own in a batch of one, and counts none
    (stand_in,) = second.take(0, 2)[0]
    assert (stand_in.rows.tolist(), stand_in.weight) == ([4], 0.0)
    assert (stand_in.global_tgt_tokens, stand_in.global_tokens) == (11, 20)


def test_health_of_attention_by_hand():
    maps = torch.zeros(4, 2, 4, 5)
    # the first example: 3 targets, 4 sources; two heads whose mean is taken
    maps[0, 0, :3, :4] = torch.tensor([[0.8, 0.2, 0, 0], [0, 0.6, 0.4, 0], [0, 0, 0, 1.0]])
    maps[0, 1, :3, :4] = torch.tensor([[0.8, 0.2, 0, 0], [0, 0.6, 0.4, 0], [0, 0, 0.4, 0.6]])
    # the second: 4 targets and 5 sources, all on the last
    maps[1, :, :, 4] = 1.0
    # two that are too short
    maps[2], maps[3] = 0.2, 0.2
    found = attention_health(maps, torch.tensor([4, 5, 2, 5]), torch.tensor([3, 4, 4, 2]))
    sharp, column = (0.8 + 0.6 + 0.8) / 3, 0.8 / 3
    assert found.sharpness == pytest.approx((sharp + 1) / 2)
    assert found.column == pytest.approx((column + 1) / 2)
    assert found.last == pytest.approx((0.8 / 3 + 1) / 2)
    assert found.even == pytest.approx((1 / 4 + 1 / 5) / 2)
    nothing = attention_health(maps[2:], torch.tensor([2, 5]), torch.tensor([4, 2]))
    assert nothing == (0.0, 0.0, 0.0, 0.0)
    just = attention_health(maps[:1], torch.tensor([3]), torch.tensor([3]))
    assert just.even == pytest.approx(1 / 3), "three tokens are enough"


STATES = [
    ((0.9, 0.9, 0.81, 0.1), "eos"),
    ((0.9, 0.81, 0.8, 0.1), "column"),
    ((0.51, 0.8, 0.8, 0.1), "formed"),
    ((0.5, 0.8, 0.8, 0.1), "even"),
    ((0.61, 0.1, 0.1, 0.3), "formed"),
    ((0.6, 0.1, 0.1, 0.3), "even"),
    ((0.9, 0.1, 0.1, 0.0), "even"),
]


def test_states_of_attention():
    for numbers, state in STATES:
        health = AttentionHealth(*numbers)
        assert evaluations._state(health) == state
        sentence = describe_attention(health, None)
        assert (sentence is None) == (state == "even")
        assert describe_attention(health, health) is None
        other = AttentionHealth(0.0, 0.0, 0.9 if state != "eos" else 0.0, 0.0)
        assert describe_attention(health, other) == sentence


def test_outputs_that_hardly_depend_on_their_sources():
    sources = [str(i) for i in range(10)]
    references = [[f"target {i}"] for i in range(10)]
    half = ["same"] * 5 + list("abcde")
    assert describe_outputs(half, sources, references) is not None
    assert "5 of 10" in describe_outputs(half, sources, references)
    assert describe_outputs(["same"] * 4 + list("abcdef"), sources, references) is None
    assert describe_outputs(half[:9], sources[:9], references[:9]) is None, "too few sources"
    # half of the references are the same, too
    assert describe_outputs(half, sources, [["same"]] * 5 + references[5:]) is None
    # as uniform as the references, although they are others
    assert describe_outputs(half, sources, [["other"]] * 5 + references[5:]) is None
    assert describe_outputs(half, sources, [["other"]] * 4 + references[4:]) is not None
    # a quarter of all are wrong: three of ten are, and two are not
    right = [["same"], ["same"], ["same"], *references[3:]]
    assert describe_outputs(half, sources, right) is None
    assert describe_outputs(half, sources, right[:2] + references[2:]) is not None
