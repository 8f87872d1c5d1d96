"""Parts of optimisation: counted losses, parameter groups, recorded batches, and the loop."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.training import loop
from regard.training.optimization import (
    check_finite,
    parameter_groups,
)
from regard.training.schedule import Progress


def test_vectors_do_not_decay():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(5, 3))
    table = module[2].weight
    matrices, vectors = parameter_groups(module, 0.3, [], 1.0)
    assert [p.shape for p in matrices["params"]] == [(3, 2), (5, 3)]
    assert len(vectors["params"]) == 3
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    matrices, _, tables = parameter_groups(module, 0.3, [table], 0.0)
    assert [p.shape for p in matrices["params"]] == [(3, 2)]
    assert (tables["share"], tables["weight_decay"]) == (0.0, 0.3)
    assert not table.requires_grad
    parameter_groups(module, 0.3, [table], 0.1)
    assert table.requires_grad


def test_gradients_must_be_finite():
    check_finite(torch.tensor(1e30), 3, 0.5)
    for norm in (torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match=f"^lr must .* it is 0.5, and by step 3 .* {norm}"):
            check_finite(torch.tensor(norm), 3, 0.5)


class Loop:
    """Collaborators of the training loop that only take notes."""

    def __init__(self, *, steps, eval_every, save_every, stop_after=None):
        self.events, self.stop_after = [], stop_after
        self.steps, self.eval_every, self.save_every = steps, eval_every, save_every
        self.progress = Progress()

    def run(self, monkeypatch):
        note, progress = self.events.append, self.progress
        processes = SimpleNamespace(
            any=lambda asked: self.stop_after is not None and progress.step >= self.stop_after,
            is_first=True,
        )
        learner = SimpleNamespace(
            processes=processes,
            objective=SimpleNamespace(train=lambda: note("train")),
            evaluated_weights=nullcontext,
        )

        def step(*args):
            progress.step += 1
            return torch.tensor(0.0)

        def evaluate(parts, progress, *rest):
            note(f"evaluate {progress.step}")
            progress.evaluated = progress.step

        monkeypatch.setattr(loop, "_step", step)
        monkeypatch.setattr(loop, "_evaluate", evaluate)
        monkeypatch.setattr(
            loop, "_stop_on_signal", lambda reporter: nullcontext(loop.StopRequest())
        )
        parts = SimpleNamespace(
            learner=learner,
            budget=SimpleNamespace(is_over=lambda p: p.step >= self.steps, minutes=None),
            intervals=SimpleNamespace(
                at_start=False,
                evaluation_is_due=lambda p: p.step % self.eval_every == 0,
                save_is_due=lambda p: p.step % self.save_every == 0,
            ),
            checkpoints=SimpleNamespace(save=lambda p: note(f"save {p.step}")),
            best=SimpleNamespace(write_model=lambda: note("write")),
        )
        reporter = SimpleNamespace(on_step=lambda *_: None, note=lambda text: note("note"))
        return inspect.unwrap(loop.train)(parts, progress, reporter)


def test_the_loop_saves_after_evaluations_and_at_intervals(monkeypatch):
    found = Loop(steps=6, eval_every=3, save_every=2)
    assert found.run(monkeypatch) is None
    assert found.events == [
        "train",
        "save 2",
        "evaluate 3",
        "save 3",
        "save 4",
        "evaluate 6",
        "save 6",
    ]


def test_the_loop_evaluates_at_its_end(monkeypatch):
    found = Loop(steps=5, eval_every=3, save_every=9)
    found.run(monkeypatch)
    assert found.events[3:] == ["save 5", "evaluate 5", "save 5"]
    found = Loop(steps=4, eval_every=3, save_every=4)
    found.run(monkeypatch)
    assert found.events[3:] == ["save 4", "evaluate 4", "save 4"]


def test_a_stopped_loop_saves(monkeypatch):
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=2)
    assert found.run(monkeypatch) is not None
    assert found.events == ["train", "save 2", "write", "note"], "it has no model yet"
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=4)
    found.run(monkeypatch)
    assert found.events == ["train", "evaluate 3", "save 3", "save 4"]
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=0)
    found.run(monkeypatch)
    assert found.events == ["train", "save 0"]
