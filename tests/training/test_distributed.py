"""What several processes must agree on, told by one that believes to be among them."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from regard.training import loop, setup
from regard.training.distributed import Fabric, Processes
from regard.training.progress import Progress
from training.tools import train_prepared


@pytest.mark.parametrize(("first", "sent"), [(True, 5.0), (False, 0.0)])
def test_one_clock_counts_where_minutes_do(make_task, first, sent):
    processes = make_task(minutes=1.0).learner.processes
    assert processes.of_first(5.0) == 5.0, "alone"
    summed = []

    def all_reduce(mine, reduce_op):
        assert reduce_op == "sum"
        summed.append(mine.item())
        return torch.tensor(7.0, dtype=torch.float64)

    processes.count, processes.is_first = 2, first
    processes.fabric = SimpleNamespace(all_reduce=all_reduce)
    assert processes.of_first(5.0) == 7.0
    assert summed == [sent], "the first process has the clock"


def test_the_clock_of_all_ends_the_run_and_lowers_the_rate(make_task, monkeypatch):
    task = make_task(steps=None, minutes=1.0, warmup=0, lr=1.0, schedule="linear", eval_every=9)
    monkeypatch.setattr(Processes, "of_first", lambda processes, seconds: 20.0)
    monkeypatch.setattr(loop, "_evaluate", lambda *args: None)
    rates = []

    def step(learner, batches, progress, *rest):
        progress.step += 1
        rates.append(1 - task.budget.spent(progress))
        return torch.zeros(())

    monkeypatch.setattr(loop, "_step", step)
    assert train_prepared(task, Progress()).step == 3
    assert rates == pytest.approx([1, 2 / 3, 1 / 3])


def test_one_process_reads_stdin_before_the_others_look_for_it(make_task, monkeypatch):
    """Two that read one pipe get a part of the lines each, and one part is lost."""
    inside, read = [], setup.prepare_data

    @contextmanager
    def rank_zero_first(fabric, local=False):
        inside.append("begin")
        yield
        inside.append("end")

    def reading(*args, **more):
        inside.append("read")
        return read(*args, **more)

    monkeypatch.setattr(Fabric, "rank_zero_first", rank_zero_first)
    monkeypatch.setattr(setup, "prepare_data", reading)
    make_task()
    assert inside == ["begin", "read", "end"]
