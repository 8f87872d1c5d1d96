"""Files of checkpoints and of the best weights: which are kept, dropped, verified and averaged."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from regard.training import RunError, RunFolder
from regard.training.checkpoint import (
    BestWeights,
    Checkpoint,
    Checkpoints,
    _averaged,
    average,
    best_file,
    checkpoint_name,
    has_checkpoint,
    load_checkpoint,
    remove_tensors,
    save_checkpoint,
    saved_steps,
    seal_shards,
    weights_of_step,
)
from regard.training.evaluator import DevMetric, Evaluation
from regard.training.progress import Progress, RankedEvaluation
from regard.training.weights_file import write_weights


def save(folder, step, value, **options):
    tensors = {"model.w": torch.full((2,), float(value))}
    return save_checkpoint(folder, step, Checkpoint(tensors, {"value": value}), **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_names_sort_by_step():
    assert checkpoint_name(7) == "step-00000007"
    assert checkpoint_name(123_456_789) == "step-123456789"


def test_as_many_are_kept_as_asked_for(tmp_path):
    for kept, left in ((1, [4]), (3, [5, 4]), (2, [6, 5])):
        step = {1: 4, 3: 5, 2: 6}[kept]
        save(tmp_path, step, step, kept=kept)
        assert saved(tmp_path) == left


def saved(folder):
    return sorted(
        (int(name[5:13]) for name in names(folder) if name.endswith("json")), reverse=True
    )


def test_unfinished_ones_go_first(tmp_path):
    save(tmp_path, 1, 1)
    (tmp_path / "step-00000002.safetensors").write_bytes(b"")
    (tmp_path / ".step-00000002.json.99.part").write_bytes(b"")
    assert load_checkpoint(tmp_path).complaints == [
        "checkpoint step-00000002 was never finished and is not used."
    ]
    save(tmp_path, 3, 3)
    assert saved(tmp_path) == [3, 1]
    assert names(tmp_path) == [
        f"step-0000000{step}.{end}" for step in (1, 3) for end in ("json", "safetensors")
    ]
    (tmp_path / "step-00000002.safetensors").write_bytes(b"")
    assert load_checkpoint(tmp_path).complaints == [], "a newer one is there"


def test_the_record_of_other_tensors_is_never_beside_new_ones(tmp_path, monkeypatch):
    """A kill between both files leaves an unfinished checkpoint, not one that is damaged."""
    save(tmp_path, 1, 1)

    def killed(path, content):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.training.checkpoint.write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 1, 2)
    assert names(tmp_path) == ["step-00000001.safetensors"]


def test_tensors_that_are_there_are_not_written_again(tmp_path):
    path = save(tmp_path, 1, 1)
    before = path.stat().st_ino
    tensors = {"model.w": torch.full((2,), 1.0)}
    save_checkpoint(tmp_path, 1, Checkpoint(tensors, {"value": 9}))
    assert path.stat().st_ino == before
    assert load_checkpoint(tmp_path).checkpoint.numbers == {"value": 9}
    save(tmp_path, 1, 2)
    assert path.stat().st_ino != before


def test_a_folder_of_shards_of_the_same_step_is_replaced(tmp_path):
    shards = tmp_path / "step-00000001"
    shards.mkdir()
    (shards / "0.safetensors").write_bytes(b"")
    save(tmp_path, 1, 1)
    assert not shards.exists()


def test_shards_take_the_place_of_a_file(tmp_path):
    save(tmp_path, 1, 1)
    part = tmp_path / ".step-00000001.part"
    part.mkdir()
    (part / "rank-0.safetensors").write_bytes(b"x")
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / "step-00000001" / "old").write_bytes(b"")
    seal_shards(part, {"rank-0.safetensors": "sum"}, step=1, numbers={"value": 5})
    assert names(tmp_path) == ["step-00000001", "step-00000001.json"]
    assert names(tmp_path / "step-00000001") == ["rank-0.safetensors"]
    sealed = json.loads((tmp_path / "step-00000001.json").read_text())["record"]
    assert sealed == {"step": 1, "shards": {"rank-0.safetensors": "sum"}, "numbers": {"value": 5}}
    remove_tensors(tmp_path / "step-00000001.safetensors")
    assert names(tmp_path) == []
    assert not has_checkpoint(tmp_path)


def test_what_is_damaged_is_named_once_a_valid_one_is_found(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, step, kept=9)
    for step in (1, 3):
        (tmp_path / f"step-0000000{step}.safetensors").write_bytes(b"other")
    found = load_checkpoint(tmp_path)
    assert found.checkpoint.numbers == {"value": 2}
    assert found.damaged == ["step-00000003"], "an older one does not matter"
    assert [text.split()[1] for text in found.complaints] == ["step-00000003", "step-00000001"]
    assert all("do not match their checksum" in text for text in found.complaints)


def test_a_record_that_was_changed_is_damaged(tmp_path):
    path = save(tmp_path, 1, 1).with_suffix(".json")
    path.write_text(path.read_text().replace('"value": 1', '"value": 2'))
    (complaint,) = load_checkpoint(tmp_path).complaints
    assert "its record does not match its checksum" in complaint


def test_shared_weights_have_one_average():
    own = {"a": torch.ones(2), "b": torch.ones(2), "c": torch.zeros(2), "n": torch.tensor(3)}
    found = _averaged(own, {"a": torch.full((2,), 5.0), "c": torch.full((2,), 7.0)})
    assert {name: t.flatten()[0].item() for name, t in found.items()} == {
        "a": 5.0,
        "b": 5.0,
        "c": 7.0,
        "n": 3,
    }


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.best.mkdir(exist_ok=True)
    return folder


def test_weights_of_a_step(folder):
    write_weights(best_file(folder.best, 3), {"w": torch.full((2,), 3.0)})
    save(folder.checkpoints, 3, 9)
    save(folder.checkpoints, 5, 5)
    (folder.checkpoints / "step-00000007.safetensors").write_bytes(b"")
    assert saved_steps(folder) == [3, 5]
    assert weights_of_step(folder, 3)["w"].tolist() == [3.0, 3.0], "those that were evaluated"
    assert weights_of_step(folder, 5)["w"].tolist() == [5.0, 5.0]
    for step in (4, 7):
        with pytest.raises(RunError, match=f"weights of step {step}, but it has those of 3, 5: "):
            weights_of_step(folder, step)
    (folder.checkpoints / "step-00000005.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="the weights of step 5 must be whole"):
        weights_of_step(folder, 5)


def test_a_run_without_weights(folder):
    with pytest.raises(RunError, match="but it has those of none: "):
        weights_of_step(folder, 1)


def test_integers_are_not_averaged():
    several = [{"w": torch.tensor([v]), "n": torch.tensor(n)} for v, n in ((1.0, 7), (4.0, 9))]
    found = average(several)
    assert (found["w"].item(), found["n"].item()) == (2.5, 7)


class Best:
    """Best weights 1, 2 and 3 of a model of one number, whose scores are errors."""

    def __init__(self, folder):
        self.module = torch.nn.Linear(1, 1, bias=False)
        self.folder, self.weights = folder, BestWeights(folder, self.module, kept=2)
        self.progress = Progress()

    def fill(self, value):
        torch.nn.init.constant_(self.module.weight, value)

    def evaluate(self, *scores):
        for score in scores:
            self.progress.step += 1
            self.fill(float(self.progress.step))
            self.progress.rank(score, higher_is_better=False, kept=2)
            self.weights.keep(self.progress)

    def end(self, score):
        """End the run; returns what is said, and the model that is written and loaded."""
        seen = []

        def evaluate():
            seen.append(self.module.weight.item())
            return Evaluation(score, {}, 0.0, None, [])

        said = self.weights.write_final(self.progress, evaluate, DevMetric("per", False))
        written = load_file(self.folder.model_file)["weight"].item()
        assert self.module.weight.item() == written
        return said, seen, written


def test_the_average_is_taken_if_it_is_better(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.2)
    best.fill(99.0)
    said, seen, written = best.end(0.05)
    assert [(each.name, each.found.score, each.taken) for each in said] == [
        ("best", 0.1, False),
        ("average", 0.05, True),
    ]
    assert (seen, written) == ([2.5], 2.5)


def test_the_best_is_restored_if_the_average_is_worse(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.2)
    said, seen, written = best.end(0.1)
    assert ([each.taken for each in said], seen, written) == ([True, False], [2.5], 2.0)


def test_a_single_one_is_restored(folder):
    best = Best(folder)
    best.evaluate(0.3)
    best.fill(99.0)
    assert best.end(0.0) == ([], [], 1.0)


def test_weights_are_kept_and_dropped(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1, 0.9)
    assert names(folder.best) == ["step-00000001.safetensors", "step-00000002.safetensors"]
    best.evaluate(0.2)
    best.weights.drop_worse(best.progress, also=[RankedEvaluation(0.3, 1)])
    assert len(names(folder.best)) == 3, "those of the last checkpoint are left"
    best.weights.drop_worse(best.progress)
    assert names(folder.best) == ["step-00000002.safetensors", "step-00000004.safetensors"]


def test_damaged_weights_do_not_become_the_model(folder):
    best = Best(folder)
    best.evaluate(0.3, 0.1)
    best_file(folder.best, 2).write_bytes(b"other")
    with pytest.raises(RunError, match="must hold weights to end the run with, but it is damaged"):
        best.end(0.0)


class Writer:
    """Stands for processes that write shards; notes what is asked of them."""

    def __init__(self):
        self.calls, self.pending = [], False

    def wait(self):
        self.calls.append("wait")
        was, self.pending = self.pending, False
        return was

    def start(self, name, tensors, seal):
        self.calls.append((name, sorted(tensors)))
        self.pending = True


def test_a_sharded_checkpoint_is_awaited_before_the_next(folder):
    """Weights that the last checkpoint needs are dropped once the next is written."""
    dropped, writer = [], Writer()
    processes = SimpleNamespace(
        stack=lambda states: {name: state[None] for name, state in states.items()},
        device=torch.device("cpu"),
        is_first=True,
        loss_scaler=None,
        rank=0,
        count=1,
    )
    checkpoints = object.__new__(Checkpoints)
    checkpoints.folder, checkpoints.processes, checkpoints._writer = folder, processes, writer
    checkpoints.learner = SimpleNamespace(
        take_losses=lambda: (6.0, 3), state=lambda: {"model.w": torch.ones(2)}
    )
    checkpoints.best = SimpleNamespace(
        drop_worse=lambda progress, also=(): dropped.append(list(also))
    )
    checkpoints._started = []
    progress = Progress(step=4, best=[RankedEvaluation(0.5, 4)])
    save = checkpoints.save
    save(progress)
    assert progress.losses == (6.0, 3)
    assert writer.calls == ["wait", ("step-00000004", ["model.w", "random.cpu"])]
    assert dropped == []
    progress.step, progress.best = 8, [RankedEvaluation(0.7, 8)]
    save(progress)
    assert writer.calls[2:] == ["wait", ("step-00000008", ["model.w", "random.cpu"])]
    assert dropped == [[RankedEvaluation(0.5, 4)]]
    processes.is_first = False
    checkpoints.finish(progress)
    assert writer.calls[4:] == ["wait"]
    assert len(dropped) == 1, "the first process drops them"
    processes.is_first = True
    checkpoints.finish(progress)
    assert len(dropped) == 1, "nothing was written since"
