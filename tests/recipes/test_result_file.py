"""What a result says of a run."""

import json

import pytest
import torch

from regard.recipes import Recipe, result_file
from regard.training import RunFolder


def run_with(folder, *rows):
    text = "".join(
        json.dumps({"step": step, "seconds": 10.0 * step, **row}) + "\n"
        for step, row in enumerate(rows, start=1)
    )
    (folder / "metrics.jsonl").write_text(text + '{"step": 9, "sec')  # a line that was cut off
    return RunFolder(folder)


@pytest.mark.parametrize(
    ("row", "metric", "value"),
    [
        ({"dev_loss": 2.5, "dev_per": 0.5, "dev_exact": 0.25}, "per", 0.5),
        ({"dev_loss": 2.5, "dev_perplexity": 12.5}, "perplexity", 12.5),
        ({"train_loss": 1.5, "dev_loss": 2.5}, "loss", 2.5),
    ],
)
def test_a_curve_is_that_of_the_metric_that_decides(tmp_path, row, metric, value):
    run = run_with(tmp_path, row, {**row, f"dev_{metric}": 7.0}, {**row, f"dev_{metric}": None})
    assert result_file.curve(run) == {"metric": metric, "points": [[10.0, value], [20.0, 7.0]]}


@pytest.mark.parametrize(("threads", "cores"), [(1, 1), (1_000_000, None)])
def test_a_result_says_how_many_cores_a_run_can_keep_busy(monkeypatch, threads, cores):
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    recipe = Recipe("some", "cmudict", settings={"threads": threads})
    assert result_file.begin(recipe, {}, torch.device("cpu"))["cores"] == (cores or 5)
