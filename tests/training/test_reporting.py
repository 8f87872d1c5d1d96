import json

import pytest
import torch

from regard.training import RunFolder, make_config, start_run
from regard.training.reporting import PAGE, ROWS, HtmlReport, example_places, example_traces
from training.tools import SETTINGS

BRIEF = {**SETTINGS, "steps": 9, "eval_every": 3, "save_every": 9}


def run(data, output, **settings):
    start_run(make_config({"data": str(data), **BRIEF, **settings}), output, quiet=True)
    return RunFolder(output)


@pytest.mark.slow
def test_a_run_has_a_report_with_its_maps(data, tmp_path):
    folder = run(data, tmp_path / "run")
    page = (folder.path / PAGE).read_text(encoding="utf-8")
    assert "<script" not in page
    for step in (3, 6, 9):
        assert page.count(f"step {step}</strong>") == 4
    rows = [json.loads(line) for line in (folder.path / ROWS).read_text().splitlines()]
    metrics = folder.read_metrics()
    more = ("lr", "evaluation_seconds")
    assert [{k: v for k, v in r["row"].items() if k not in more} for r in rows] == metrics
    assert all(r["row"]["lr"] > 0 for r in rows[:2])


def test_looking_draws_nothing_random_and_leaves_the_model_as_it_was(make_task):
    task = make_task()
    task.learner.module.train()
    before = torch.get_rng_state()
    traces = example_traces(task.evaluator, ["out"] * len(task.evaluator.dev.sources))
    assert torch.equal(before, torch.get_rng_state())
    assert task.learner.module.training
    assert [trace.source.text for trace in traces] == [
        task.evaluator.dev.sources[i] for i in example_places(task.evaluator)
    ]
    assert all(trace.maps[0].weights.shape[0] == 1 for trace in traces)


def test_what_was_kept_survives_a_stop_and_later_steps_are_forgotten(make_task):
    task = make_task()
    folder, traces = (
        task.folder.path,
        example_traces(task.evaluator, ["out"] * len(task.evaluator.dev.sources)),
    )
    report = HtmlReport(folder, 0, {})
    for step in (3, 6, 9):
        report.write({"step": step, "tokens": step, "seconds": step, "dev_loss": 1.0}, 0.1, traces)
    with open(folder / ROWS, "a", encoding="utf-8") as file:
        file.write('{"row": {"st')  # the power went
    again = HtmlReport(folder, 6, {})
    assert [row["step"] for row in again.history] == [3, 6]
    again.write({"step": 9, "tokens": 9, "seconds": 9, "dev_loss": 0.5}, 0.1, traces)
    page = (folder / PAGE).read_text(encoding="utf-8")
    assert "location.reload()" in page  # until the run has ended
    assert [page.count(f"step {step}</strong>") for step in (3, 6, 9)] == [4, 4, 4]
    assert len((folder / ROWS).read_text(encoding="utf-8").splitlines()) == 3
