"""A run whose gradients are lost ends with a sentence, and keeps what it had."""

import pytest

from regard.errors import ArgumentError
from regard.training import resume_run
from training.tools import run, write_pairs


def test_gradients_that_are_no_numbers_end_a_run(tmp_path):
    data, output = write_pairs(tmp_path / "pairs.tsv"), tmp_path / "run"
    with pytest.raises(ArgumentError, match=r"lr must leave gradients finite, but it is 1e\+30"):
        run(data, output, lr=1e30, warmup=0, clip=1e30)


@pytest.mark.slow
def test_a_lost_run_can_go_on_from_where_it_was_well(tmp_path):
    data, output = write_pairs(tmp_path / "pairs.tsv"), tmp_path / "run"
    run(data, output, steps=6)
    with pytest.raises(ArgumentError, match="leave gradients finite"):
        resume_run(output, {"lr": 1e30, "clip": 1e30, "steps": 30}, quiet=True)
    resume_run(output, {"lr": 1e-3, "clip": 1.0, "steps": 30}, quiet=True)
    assert (output / "README.md").exists()
