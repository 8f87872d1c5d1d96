"""Parts of optimisation: counted losses, parameter groups, recorded batches, and the loop."""

import inspect
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shapes
from regard.data import BatchShape
from regard.errors import ArgumentError
from regard.training import RunError, RunFolder, loop, optimization
from regard.training.checkpoint import Checkpoint, Checkpoints
from regard.training.epochs import BatchShare
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.optimization import (
    CudaGraphGradients,
    Learner,
    check_finite,
    pack_optimizer,
    parameter_groups,
    unpack_optimizer,
    with_prefix,
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
    found.optimizer = torch.optim.SGD([group | ({} if share is None else {"share": share})], lr=1.0)
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


def test_the_state_of_an_optimiser_survives_names():
    module = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    packed = pack_optimizer(optimizer)
    assert sorted(packed)[:3] == ["0.exp_avg", "0.exp_avg_sq", "0.step"]
    other = torch.optim.AdamW(nn.Linear(2, 3).parameters(), lr=0.1)
    unpack_optimizer(other, packed)
    assert torch.equal(pack_optimizer(other)["1.exp_avg"], packed["1.exp_avg"])
    assert list(with_prefix(packed, "1.")) == ["step", "exp_avg", "exp_avg_sq"]


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


def call(graphs, *args, scale=0.5):
    return inspect.unwrap(CudaGraphGradients.__call__)(graphs, batch(*args), scale)


def test_a_shape_is_recorded_when_it_comes_for_the_third_time(graphs):
    weight = graphs.model.weight
    for seen in (1, 2, 3):
        weight.grad = None
        assert call(graphs, 2, 5).item() == 0.5 * 2 * 3 * 5
        assert weight.grad.item() == 15.0
        assert graphs.model.unused.grad.tolist() == [0.0, 0.0]
        assert len(graphs.recordings) == (seen == 3)
    ((shape, recording),) = graphs.recordings.items()
    assert shape == BatchShape(2, 4, 3)
    assert recording.graph.replays == 1
    call(graphs, 2, 7, scale=0.25)
    assert recording.graph.replays == 2
    assert recording.inputs[3].unique().tolist() == [7], "the targets of this batch"
    assert recording.inputs[5].item() == 0.25
    assert graphs.seen == {BatchShape(2, 4, 3): 4}
    assert weight.grad is graphs.gradients[0]
    call(graphs, 3, 7)
    call(graphs, 2, 7, 5)
    call(graphs, 2, 7, 4, 6)
    assert len(graphs.seen) == 4
    assert len(graphs.recordings) == 1


def test_graphs_are_limited(graphs, monkeypatch):
    assert (optimization.MAX_GRAPHS, optimization.EAGER_BATCHES) == (256, 2)
    assert optimization.CHECK_EVERY == 50
    monkeypatch.setattr(optimization, "MAX_GRAPHS", 1)
    for rows in (1, 2):
        for _ in range(4):
            call(graphs, rows, 5)
    assert list(graphs.recordings) == [BatchShape(1, 4, 3)]


def test_memory_of_eager_steps_is_given_back(graphs):
    graphs._release_unused_memory()
    assert graphs.cleared == []
    graphs.reserved[0] = 501
    graphs._release_unused_memory()
    assert graphs.cleared == [1]


def test_a_failure_ends_recording(graphs):
    Graph.fails = True
    for _ in range(2):
        call(graphs, 2, 5)
    with pytest.warns(UserWarning, match="are not replayed from CUDA graphs: no memory$"):
        assert call(graphs, 2, 5).item() == 15.0
    assert not graphs.records
    Graph.fails = False
    call(graphs, 2, 5)
    assert graphs.recordings == {}


def test_a_scaler_is_restored(tmp_path):
    """Half precision has a scale of the loss, which other precisions do not."""
    loaded = []
    processes = SimpleNamespace(
        loss_scaler=SimpleNamespace(load_state_dict=loaded.append),
        count=1,
        rank=0,
        device=torch.device("cpu"),
    )
    checkpoints = object.__new__(Checkpoints)
    checkpoints.folder, checkpoints.processes = RunFolder(tmp_path), processes
    checkpoints.learner = SimpleNamespace(load_state=lambda tensors: None)
    tensors = {"random.cpu": torch.get_rng_state()[None]}
    torch.rand(3)
    assert checkpoints.restore(Checkpoint(tensors, {"scaler": {"scale": 4.0}})) == []
    assert loaded == [{"scale": 4.0}]
    assert torch.equal(torch.get_rng_state(), tensors["random.cpu"][0])
    assert checkpoints.restore(Checkpoint(tensors, {"scaler": None})) == []
    assert len(loaded) == 1
    processes.count, processes.loss_scaler = 2, None
    (said,) = checkpoints.restore(Checkpoint(tensors, {"scaler": {"scale": 4.0}}))
    assert said.startswith("the run was saved by 1 processes and goes on with 2: ")

    def refuse(tensors):
        raise RuntimeError("size mismatch\nmore")

    checkpoints.learner.load_state = refuse
    with pytest.raises(RunError, match=r"is not \(size mismatch\): restore config"):
        checkpoints.restore(Checkpoint(tensors, {"scaler": None}))


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
            checkpoints=SimpleNamespace(
                save=lambda p: note(f"save {p.step}"), finish=lambda p: note("finish")
            ),
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
        "finish",
    ]


def test_the_loop_evaluates_at_its_end(monkeypatch):
    found = Loop(steps=5, eval_every=3, save_every=9)
    found.run(monkeypatch)
    assert found.events[3:] == ["save 5", "evaluate 5", "save 5", "finish"]
    found = Loop(steps=4, eval_every=3, save_every=4)
    found.run(monkeypatch)
    assert found.events[3:] == ["save 4", "evaluate 4", "save 4", "finish"]


def test_a_stopped_loop_saves(monkeypatch):
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=2)
    assert found.run(monkeypatch) is not None
    assert found.events == ["train", "save 2", "finish", "write", "note"], "it has no model yet"
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=4)
    found.run(monkeypatch)
    assert found.events == ["train", "evaluate 3", "save 3", "save 4", "finish"]
    found = Loop(steps=9, eval_every=3, save_every=9, stop_after=0)
    found.run(monkeypatch)
    assert found.events == ["train", "save 0", "finish"]


@pytest.mark.parametrize("first", [True, False])
def test_an_evaluation_is_recorded_by_the_first_process(first):
    events, result = [], Evaluation(0.5, {"loss": 2.0}, 1.5, None, [])
    processes = SimpleNamespace(
        is_first=first,
        fabric=SimpleNamespace(
            broadcast=lambda found: result, barrier=lambda: events.append("all")
        ),
    )
    learner = SimpleNamespace(
        processes=processes,
        take_losses=lambda: (6.0, 4),
        objective=SimpleNamespace(train=lambda: events.append("train")),
    )
    evaluator = SimpleNamespace(
        evaluate=lambda loss: events.append(loss) or result,
        metric=DevMetric("bleu", True),
    )
    best = SimpleNamespace(
        kept=2, keep=lambda p: events.append("keep"), write_model=lambda: events.append("write")
    )
    reporter = SimpleNamespace(
        evaluating=nullcontext,
        on_evaluation=lambda p, r, best: events.append(("report", best)),
    )
    recorder = SimpleNamespace(record=lambda p, r, rate: events.append(("record", rate)))
    progress = Progress(step=3)
    parts = SimpleNamespace(
        learner=learner, evaluator=evaluator, best=best, learning_rate=lambda p: 0.1
    )
    inspect.unwrap(loop._evaluate)(parts, progress, reporter, [recorder])
    assert progress.losses == (0.0, 0)
    assert (progress.evaluated, progress.best) == (3, [(0.5, 3, 2.0)])
    if first:
        mine = [1.5, "keep", "write", ("report", True), ("record", 0.1)]
        assert events == [*mine, "all", "train"]
    else:
        assert events == ["all", "train"]
    events.clear()
    result = Evaluation(0.4, {"loss": 2.0}, 1.5, None, [])
    progress.step = 4
    inspect.unwrap(loop._evaluate)(parts, progress, reporter, [recorder])
    assert ("write" in events, ("report", False) in events) == (False, first)
