"""A precision that a chip cannot do is refused before the first step."""

import pytest
import torch
from torch import nn

from regard.errors import ArgumentError
from regard.training import make_config, start_run
from regard.training.distributed import make_fabric
from training.tools import SETTINGS, assert_same

SEEN = "could not create a primitive descriptor for the LSTM forward propagation primitive"
LSTM = {"preset": "seq2seq", "cell": "lstm", "hidden": 8, "embed": 4}


def test_it_is_refused_and_nothing_is_left(data, tmp_path, monkeypatch):
    """As on a CPU whose oneDNN has no LSTM in half precision."""

    def refuse(self, *args):
        raise RuntimeError(f"{SEEN}\nand more")

    monkeypatch.setattr(nn.LSTM, "forward", refuse)
    given = {"data": str(data), **SETTINGS, **LSTM, "precision": "bf16"}
    with pytest.raises(ArgumentError) as caught:
        start_run(make_config(given), tmp_path / "run", quiet=True)
    said = "precision must be one that this CPU has kernels for, but it is bf16, and torch says: "
    assert str(caught.value) == f"{said}{SEEN}: give precision=32."
    assert not (tmp_path / "run").exists()


def test_the_trial_changes_nothing(make_task, monkeypatch):
    tried = make_task(precision="bf16")
    state = torch.get_rng_state()
    assert all(weight.grad is None for weight in tried.learner.module.parameters())
    monkeypatch.setattr("regard.training.setup.check_precision", lambda *args: None)
    untried = make_task(precision="bf16")
    assert torch.equal(torch.get_rng_state(), state)
    assert_same(tried.learner.module.state_dict(), untried.learner.module.state_dict())


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("32", torch.float32)])
def test_inputs_keep_their_type(precision, dtype):
    """Ids in float32 and numbers to predict are no longer those in half precision."""
    seen = []

    class Model(nn.Linear):
        def forward(self, x):
            seen.append((x.dtype, super().forward(x).dtype))
            return x.sum()

    fabric, _ = make_fabric("cpu", precision)
    fabric.setup(Model(3, 2))(torch.tensor([[1.0, 257.0, 3.0]]))
    assert seen == [(torch.float32, dtype)]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_learns_as_in_float32(data, tmp_path, precision):
    given, losses = {"data": str(data), **SETTINGS, "steps": 4, "eval_every": 4}, []
    for name in ("32", precision):
        run = start_run(make_config({**given, "precision": name}), tmp_path / name, quiet=True)
        losses.append(run.metrics.rows()[-1]["train_loss"])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.01)


@pytest.mark.parametrize("precision", ["32", "fp16"])
def test_a_run_that_diverges_ends(data, tmp_path, precision):
    wild = {"lr": 1e8, "warmup": 0, "clip": 1e8, "eval_every": 24, "precision": precision}
    config = make_config({"data": str(data), **SETTINGS, **wild})
    told = r"^lr must leave gradients finite, but it is 1e\+08, and by step \d+ .* (nan|inf): lower"
    with pytest.raises(ArgumentError, match=told):
        start_run(config, tmp_path / "run", quiet=True)
