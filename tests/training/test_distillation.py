"""Distillation token by token: the loss, the settings, and a student that learns its teachers."""

import pytest
import torch
import torch.nn.functional as F

from regard.errors import ArgumentError
from regard.training import RunFolder, make_config, resume_run, start_run
from regard.training.losses import distillation_loss
from regard.training.setup import check_settings
from training.tools import SETTINGS, assert_same, weights, write_pairs

# whole runs, whose parts are tested with the checks of shapes
pytestmark = pytest.mark.plain

TOKENS, VOCAB = 13, 11
BRIEF = {"steps": 6, "eval_every": 3, "save_every": 3, "max_tgt_len": 10, "report": False}
SMALL = {**SETTINGS, "hidden": 8, "embed": 8, **BRIEF}


def made(seed=0):
    rng = torch.Generator().manual_seed(seed)
    logits, other = 3 * torch.randn(2, TOKENS, VOCAB, generator=rng, dtype=torch.float64)
    return logits, torch.randint(0, VOCAB, (TOKENS,), generator=rng), other.softmax(dim=1)


@pytest.mark.parametrize("weight", [0.3, 1.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_a_mixture_of_two_cross_entropies(weight, smoothing, masked):
    logits, target, taught = made()
    real = torch.arange(TOKENS) % 3 > 0 if masked else None
    rows = slice(None) if real is None else real
    soft = F.cross_entropy(logits[rows], taught[rows], reduction="sum")
    hard = F.cross_entropy(logits[rows], target[rows], reduction="sum", label_smoothing=smoothing)
    found = distillation_loss(logits, target, taught, weight, smoothing, real)
    torch.testing.assert_close(found, weight * soft + (1 - weight) * hard, atol=1e-10, rtol=0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("distillation")
    data = write_pairs(folder / "pairs.tsv")
    for seed in (1, 2):
        start_run(
            make_config({"data": str(data), **SMALL, "seed": seed}), folder / f"t{seed}", quiet=True
        )
    return folder


def settings(folder, **more):
    teachers = f"{folder / 't1'},{folder / 't2'}"
    return {"data": str(folder / "pairs.tsv"), **SMALL, "teacher": teachers, **more}


def test_a_student_has_the_tokenisers_of_its_teachers_and_resumes(teacher, tmp_path):
    # other data would make other tokenisers
    other = write_pairs(teacher / "more.tsv", seed=5)
    other.write_text("zyxw\tz y x w\n" + other.read_text())
    chosen = settings(teacher, data=str(other), schedule="constant")
    whole = start_run(make_config(chosen), tmp_path / "whole", quiet=True)
    first = RunFolder(teacher / "t1")
    assert whole.src_tokenizer_file.read_bytes() == first.src_tokenizer_file.read_bytes()
    start_run(make_config({**chosen, "steps": 3}), tmp_path / "parts", quiet=True)
    resumed = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    plain = {name: value for name, value in chosen.items() if name != "teacher"}
    alone = start_run(
        make_config({**plain, "data": chosen["data"]}), tmp_path / "alone", quiet=True
    )
    assert_same(weights(resumed.path), weights(whole.path))
    assert alone.src_tokenizer_file.read_bytes() != first.src_tokenizer_file.read_bytes()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"teacher": "nowhere"}, "teacher must name run folders, but it is 'nowhere'"),
        ({"rdrop": 1.0}, "rdrop must be 0 where a teacher is given"),
        ({"preset": "classifier-rnn"}, "teacher must be given to presets that write tokens"),
        ({"teacher": (), "teacher_weight": 0.3}, "teacher_weight must be left out"),
    ],
)
def test_settings_that_do_not_go_with_a_teacher(teacher, more, reason):
    plain = {n: v for n, v in settings(teacher).items() if n not in ("hidden", "embed")}
    with pytest.raises(ArgumentError, match=reason):
        check_settings(make_config({**plain, **more}))


def test_teachers_have_one_vocabulary(teacher, tmp_path):
    data = tmp_path / "other.tsv"
    data.write_text("\n".join(f"{'xyz'[i % 3] * 3}\tq {'uvw'[i % 3]}" for i in range(40)))
    start_run(make_config({"data": str(data), **SMALL}), tmp_path / "t3", quiet=True)
    chosen = settings(teacher, teacher=(str(teacher / "t1"), str(tmp_path / "t3")))
    with pytest.raises(ArgumentError, match="runs with the same tokenisers"):
        start_run(make_config(chosen), tmp_path / "student", quiet=True)
