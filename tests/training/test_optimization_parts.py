"""Parts of optimisation: counted losses, parameter groups, recorded batches, and the loop."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shapes
from regard.errors import ArgumentError
from regard.training import loop, optimization
from regard.training.epochs import BatchShare
from regard.training.optimization import (
    CudaGraphGradients,
    Learner,
    check_finite,
    parameter_groups,
)
from regard.training.progress import Progress


def learner_of(module, *, world=1, share=None):
    """A learner whose objective is the sum of the module's weights times the number of rows."""
    found = object.__new__(Learner)
    fabric = SimpleNamespace(
        device=torch.device("cpu"),
        backward=lambda loss: loss.backward(),
        no_backward_sync=lambda objective, enabled: synced.append(enabled) or nullcontext(),
    )
    synced = found.synced = []
    found.processes = SimpleNamespace(
        fabric=fabric, count=world, shards=False, total=lambda loss: world * loss
    )
    group = {"params": list(module.parameters())}
    groups = [group | ({} if share is None else {"share": share})]
    found._optimizer = torch.optim.SGD(groups, lr=1.0)
    found.module, found.average, found.graphs, found.shapes = module, None, None, None
    found.objective = lambda rows: module.weight.sum() * len(rows)
    found._loss, found._losses = torch.zeros(()), 0
    return found


def share(rows, tokens, weight=1.0):
    return BatchShare(None, rows, weight, tokens, 0)


@pytest.fixture
def plain_batches(monkeypatch):
    """A batch is the tensor of its rows."""
    monkeypatch.setattr(
        optimization,
        "collate",
        lambda pairs, rows: SimpleNamespace(to=lambda device, non_blocking: torch.tensor(rows)),
    )
    monkeypatch.setattr(optimization, "_objective_inputs", lambda batch: (batch,))


@pytest.mark.usefixtures("plain_batches")
def test_losses_are_counted_until_they_are_taken():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 6.0)
    learner = learner_of(module)
    with shapes.unchecked():
        loss = learner.backward([share([0, 1], 4), share([2], 8)])
    # three rows of 6 for 12 tokens
    assert loss.item() == pytest.approx(1.5)
    assert module.weight.grad.item() == pytest.approx(3 / 12)
    assert learner.synced == [True, False], "gradients meet after the last batch"
    with shapes.unchecked():
        learner.backward([share([0], 2)])
    assert learner.take_losses() == (pytest.approx(4.5), 2)
    assert learner.take_losses() == (0.0, 0)
    learner.processes.shards = True
    learner.synced.clear()
    with shapes.unchecked():
        learner.backward([share([0, 1], 4), share([2], 8)])
    assert learner.synced == [False, False], "shards are summed after each batch"


@pytest.mark.usefixtures("plain_batches")
def test_stand_ins_do_not_count():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 6.0)
    learner = learner_of(module, world=2)
    with shapes.unchecked():
        loss = learner.backward([share([0, 1], 4), share([2], 8, weight=0.0)])
    assert loss.item() == pytest.approx(1.0), "its part of the loss of all processes"
    assert module.weight.grad.item() == pytest.approx(2 * 2 / 12), "which are averaged"
    assert learner.take_losses() == (pytest.approx(2.0), 1)


def test_a_step_has_the_share_of_its_group():
    module = nn.Linear(1, 1, bias=False)
    for part, moved in ((None, 0.5), (0.5, 0.25), (0.0, 0.0)):
        nn.init.constant_(module.weight, 1.0)
        learner = learner_of(module, share=part)
        module.weight.grad = torch.ones(1, 1)
        steps = []
        learner.average = SimpleNamespace(update=steps.append)
        learner.step(7, 0.5)
        assert module.weight.item() == 1.0 - moved
        assert module.weight.grad is None
        assert steps == [7]


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


class Graph:
    """Stands for a CUDA graph; counts replays."""

    replays, fails = 0, False

    def capture_begin(self, pool):
        if Graph.fails:
            raise RuntimeError("no memory\nmore")

    def capture_end(self):
        pass

    def replay(self):
        self.replays += 1


class Summed(nn.Module):
    """A loss that is the weight times the sum of the targets."""

    def __init__(self):
        super().__init__()
        self.weight, self.unused = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(2))

    def forward(self, src, lengths, tgt_in, tgt_out, places, *, padded):
        assert padded
        return self.weight * tgt_out.sum()


@pytest.fixture
def graphs(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    cleared = []
    fakes = {
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: 3,
        "Stream": lambda device: stream,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda: None,
        "empty_cache": lambda: cleared.append(1),
        "get_device_properties": lambda device: SimpleNamespace(total_memory=1001),
        "memory_reserved": lambda device: reserved[0],
    }
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(optimization, "reset_cuda_generator", lambda: None)
    monkeypatch.setattr(Graph, "fails", False)
    fabric = SimpleNamespace(device=torch.device("cpu"), backward=lambda loss: loss.backward())
    reserved = [500]
    found = made_unchecked(CudaGraphGradients, fabric, Summed())
    found.cleared, found.reserved = cleared, reserved
    return found


def made_unchecked(kind, *args):
    """Makes an object without the run-time checks of its arguments."""
    found = object.__new__(kind)
    inspect.unwrap(kind.__init__)(found, *args)
    return found


def batch(rows, value, src_len=4, tgt_len=3):
    tgt = torch.full((rows, tgt_len), value)
    src = torch.ones(rows, src_len, dtype=torch.long)
    return SimpleNamespace(
        src=src,
        src_lengths=torch.full((rows,), src_len),
        tgt_in=tgt,
        tgt_out=tgt,
        tgt_places=torch.arange(rows * tgt_len),
    )


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
