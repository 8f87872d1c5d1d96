import math

import pytest

from regard.training.epochs import Epoch
from regard.training.progress import Progress
from regard.training.schedule import SCHEDULES, learning_rate


def rates(schedule, *, steps=100, warmup=10, highest=2.0):
    return [
        learning_rate(schedule, highest, step=step, warmup=warmup, spent=step / steps)
        for step in range(1, steps + 1)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_rises_in_a_line(schedule):
    # ten steps of two hundred hardly move the factor that follows
    rising = rates(schedule, steps=10_000)[:10]
    assert rising == pytest.approx([0.2 * step for step in range(1, 11)], rel=2e-3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_never_ends_and_never_exceeds(schedule):
    assert all(0 < rate <= 2.0 for rate in rates(schedule))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_falls_or_stays_after_the_rise(schedule):
    falling = rates(schedule, steps=1000)[10:]
    assert falling == sorted(falling, reverse=True)


def test_constant():
    assert rates("constant")[9:] == [2.0] * 91


def test_linear():
    assert rates("linear")[49] == pytest.approx(1.0)
    assert rates("linear")[74] == pytest.approx(0.5)
    assert rates("linear")[99] == pytest.approx(0.02), "a hundredth is left at the end"


def test_cosine():
    assert rates("cosine")[49] == pytest.approx(1.0)
    assert rates("cosine")[74] == pytest.approx(1 + math.cos(0.75 * math.pi))
    assert rates("cosine")[99] == pytest.approx(0.02)


def test_inverse_sqrt_is_flat_for_ten_warmups():
    found = rates("inverse-sqrt", steps=1000)
    assert found[9:100] == [2.0] * 91
    assert found[399] == pytest.approx(1.0), "four times as late, half as high"


def test_no_warmup():
    assert learning_rate("constant", 3.0, step=1, warmup=0, spent=0.0) == 3.0
    assert learning_rate("inverse-sqrt", 3.0, step=40, warmup=0, spent=0.0) == pytest.approx(1.5)


def test_a_budget_may_be_overspent():
    assert learning_rate("cosine", 1.0, step=50, warmup=0, spent=1.5) == pytest.approx(0.01)
    assert learning_rate("linear", 1.0, step=50, warmup=0, spent=1.5) == pytest.approx(0.01)


def test_passes_are_taken_to_their_end_however_many_batches_they_have(make_task):
    """How many there are changes from pass to pass, with the order and with how words are cut."""
    task = make_task(steps=None, epochs=2)
    pairs, batches = task.batches.epochs[0]
    rows = [batches[i] for i in range(len(batches))]
    task.batches.epochs = [Epoch(pairs, rows), Epoch(pairs, 3 * rows), Epoch(pairs, rows)]
    progress = Progress()
    while not task.budget.is_over(progress):
        _, progress.epoch, progress.batch = task.batches.take(progress.epoch, progress.batch)
        progress.step += 1
    assert (progress.epoch, progress.batch) == (2, 0)
    assert progress.step == 4 * len(rows)
