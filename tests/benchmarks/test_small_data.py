"""The small-data benchmark: its scores, its list of jobs, and its page."""

import importlib.util
import json
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load(name, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page(monkeypatch):
    return load("small_data_page", monkeypatch)


@pytest.fixture
def bench(page, monkeypatch):
    load("small_data_job", monkeypatch)
    return load("small_data", monkeypatch)


def test_scores_by_hand(monkeypatch):
    job = load("small_data_job", monkeypatch)
    test = [job.Example("a", ["X Y", "X Y Z"]), job.Example("b", ["P Q"])]
    found = job.scores("cmudict", ["X Y Z", "P"], test)
    assert found == {"exact": 0.5, "error_rate": pytest.approx(1 / 5)}
    letters = job.scores("reversal", ["cba"], [job.Example("abd", ["dba"])])
    assert letters["error_rate"] == pytest.approx(1 / 3)


def test_every_job_after_the_change_has_a_twin_before_it(bench):
    jobs = [*bench.LISTS["first"](), *bench.LISTS["second"]()]
    keys = {tuple(map(str, asdict(job).values())) for job in jobs}
    assert all(("before", *key[1:]) in keys for key in keys if key[0] == "after")


def test_a_job_that_cannot_end_in_time_is_not_started_and_results_outlive_the_bench(
    bench, tmp_path, monkeypatch
):
    """A child that stands for a training: it says what a training would say."""
    child = tmp_path / "child.py"
    child.write_text('print("{\\"exact\\": 0.5, \\"step\\": 3}")\n')
    monkeypatch.setattr(bench, "CHILD", child)
    monkeypatch.setattr(bench, "CORES", {"cpu": 1, "cuda": 1})
    args = Namespace(
        out=tmp_path / "out", cpu_slots=1, cuda_slots=0, limit=100.0, before=tmp_path, site=[],
        data=tmp_path, before_commit="abc", list="trial", keep=None, limit_of_one=570.0,
    )  # fmt: skip
    quick, long = (bench.Job("before", "reversal", 300, "bahdanau", m, "cpu") for m in (0.01, 9))
    bench.Bench(args).run([long, quick])
    log = (tmp_path / "out" / "results.jsonl").read_text()
    rows = [json.loads(line) for line in log.splitlines()]
    assert [row["kind"] for row in rows] == ["machine", "result"]
    assert (rows[1]["job"], rows[1]["exact"]) == (asdict(quick), 0.5)
    assert rows[1]["commit"] == "abc"


def row(system, exact, *, pairs=4_000, model="bahdanau", **changes):
    job = {"system": system, "task": "cmudict", "pairs": pairs, "model": model}
    job |= {"minutes": 1, "machine": "cpu"}
    numbers = {"step": 1_234, "exact": exact, "error_rate": 0.25, "test": 500}
    made = {"kind": "result", "job": job, "commit": "a" * 40, "versions": {"torch": "2"}, **numbers}
    return made | changes


def kept(page, tmp_path, *rows):
    machine = {"kind": "machine", "cpu": "A chip", "cores": 16, "gpu": "A GPU"}
    machine |= {"slots": {"cpu": 6, "cuda": 4}, "source": {"commit": "a" * 40}}
    file, target = tmp_path / "log.jsonl", tmp_path / "kept.json"
    file.write_text("".join(json.dumps(one) + "\n" for one in (machine, *rows)))
    page.collect([file], target)
    return target


def test_a_row_has_all_systems_and_the_best_is_bold(page, tmp_path):
    peer = row("yoyodyne", 0.125, model="attentive-lstm")
    target = kept(page, tmp_path, row("before", 0.25), row("after", 0.5), peer)
    text = page.page(json.loads(target.read_text()))
    assert "## Two CPU cores, 1 minute\n" in text
    assert (
        "| cmudict | bahdanau | 4,000 | 25.0 (25.0), 1,234 steps | **50.0** (25.0), 1,234 steps "
        "| 12.5 (25.0), 1,234 steps |\n" in text
    )


def test_what_an_earlier_commit_has_measured_is_marked(page, tmp_path):
    rows = [row("before", 0.25, commit="old"), row("after", 0.5, commit="b" * 40)]
    text = page.page(json.loads(kept(page, tmp_path, *rows).read_text()))
    assert "| 25.0 (25.0), 1,234 steps | **50.0** (25.0), 1,234 steps† |" in text
    assert "† measured at an earlier commit" in text


def test_a_later_result_of_a_job_replaces(page, tmp_path):
    target = kept(page, tmp_path, row("after", 0.5), row("after", 0.75))
    assert [r["exact"] for r in json.loads(target.read_text())["results"]] == [0.75]


def test_a_job_that_failed_is_named_and_does_not_replace_a_result(page, tmp_path):
    failed = row("before", 0.0, failed=1)
    for name in ("exact", "error_rate", "step", "test"):
        failed.pop(name)
    other = json.loads(json.dumps(failed))
    other["job"]["pairs"] = 300
    target = kept(page, tmp_path, row("before", 0.25), failed, other)
    record = json.loads(target.read_text())
    assert ["exact" in result for result in record["results"]] == [False, True]
    assert "because the job failed: before bahdanau on cmudict" in page.page(record)


def test_check_tells_a_page_that_differs(page, tmp_path):
    source, target = kept(page, tmp_path, row("after", 0.5)), tmp_path / "page.md"
    assert page.render(check=True, source=source, target=target) == 1
    assert page.render(check=False, source=source, target=target) == 0
    assert page.render(check=True, source=source, target=target) == 0
    target.write_text(target.read_text() + "\n")
    assert page.render(check=True, source=source, target=target) == 1


def test_the_page_is_what_the_results_give(page):
    if not page.RESULTS.exists():
        pytest.skip("nothing has been measured yet")
    assert page.render(check=True) == 0
