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


def arguments(tmp_path, **changes):
    given = {"out": tmp_path / "out", "cpu_slots": 1, "cuda_slots": 0, "limit": 100.0}
    given |= {"before": tmp_path, "before_commit": "abc", "site": [], "data": tmp_path}
    return Namespace(**given | {"list": "trial", "keep": None, "limit_of_one": 570.0} | changes)


def test_a_job_that_cannot_end_in_time_is_not_started_and_results_outlive_the_bench(
    bench, tmp_path, monkeypatch
):
    """A child that stands for a training: it says what a training would say."""
    child = tmp_path / "child.py"
    child.write_text('print("{\\"exact\\": 0.5, \\"step\\": 3}")\n')
    monkeypatch.setattr(bench, "CHILD", child)
    monkeypatch.setattr(bench, "CORES", {"cpu": 1, "cuda": 1})
    quick, long = (bench.Job("before", "reversal", 300, "bahdanau", m, "cpu") for m in (0.01, 9))
    bench.Bench(arguments(tmp_path)).run([long, quick])
    log = (tmp_path / "out" / "results.jsonl").read_text()
    rows = [json.loads(line) for line in log.splitlines()]
    assert [row["kind"] for row in rows] == ["machine", "result"]
    assert (rows[1]["job"], rows[1]["exact"]) == (asdict(quick), 0.5)
    assert rows[1]["commit"] == "abc"


#: stands for a training that saves itself when it is stopped, and is ended by a second signal
STOPPED_ONCE = """
import signal, sys, time
from pathlib import Path
work = Path(sys.argv[3])
work.mkdir(exist_ok=True)
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    (work / "stopping").unlink()
    (work / "saved").touch()
    time.sleep(0.2)
    print('{"stopped": true}')
    sys.exit()
signal.signal(signal.SIGTERM, stop)
(work / "ready").touch()
time.sleep(60)
"""


def test_a_job_longer_than_a_command_is_stopped_once_and_its_folder_is_kept(
    bench, tmp_path, monkeypatch
):
    (tmp_path / "child.py").write_text(STOPPED_ONCE)
    monkeypatch.setattr(bench, "CHILD", tmp_path / "child.py")
    monkeypatch.setattr(bench, "CORES", {"cpu": 1, "cuda": 1})
    made = bench.Bench(arguments(tmp_path, keep=tmp_path / "keep"))
    job = bench.Job("before", "reversal", 300, "bahdanau", 10, "cpu")
    assert made.needs(job) < 100  # although it takes ten minutes
    one = made.start(job)
    while not (one.work / "ready").exists():
        assert one.process.poll() is None
    made.stop(one)
    while one.process.poll() is None:
        made.stop(one)
    made.finish(one)
    (result,) = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert (result["kind"], one.process.returncode) == ("stopped", 0)
    assert (one.work / "saved").exists()


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


def test_what_former_defaults_have_measured_is_marked(page, tmp_path):
    (former,) = page.FORMER
    rows = [row("before", 0.25, commit=former), row("after", 0.5, commit=former)]
    text = page.page(json.loads(kept(page, tmp_path, *rows).read_text()))
    assert "| 25.0 (25.0), 1,234 steps | **50.0** (25.0), 1,234 steps† |" in text
    assert "\n† measured at an earlier commit" in text


def seeded(exact, seed, **settings):
    made = row("after", exact)
    made["job"]["settings"] = {"seed": seed, **settings}
    return made


def test_a_cell_is_the_mean_of_its_seeds_without_those_of_former_defaults(page, tmp_path):
    (former,) = page.FORMER
    rows = [seeded(0.5, 1), seeded(0.25, 2), {**seeded(0.9, 3), "commit": former}]
    text = page.page(json.loads(kept(page, tmp_path, *rows).read_text()))
    assert "| 37.5 (25.0), 1,234 steps, 2 runs |" in text
    assert "†" not in text


def test_settings_beside_the_defaults_have_a_section_of_their_own(page, tmp_path):
    rows = [row("after", 0.5), seeded(0.75, 1, ema=0.999), seeded(0.25, 2, ema=0.999)]
    text = page.page(json.loads(kept(page, tmp_path, *rows).read_text()))
    cells, tried = text.split("## Other settings beside the defaults")
    assert "50.0 (25.0), 1,234 steps |" in cells
    assert "75.0" not in cells
    assert "| after | defaults | 50.0 | 25.0 | 1,234 |" in tried
    assert "| after | ema=0.999 | 50.0 (75.0, 25.0) | 25.0 | 1,234 |" in tried


def test_jobs_that_were_stopped_or_only_compile_kernels_are_no_results(page, tmp_path):
    short = row("after", 0.5)
    short["job"]["minutes"] = 0.1
    target = kept(page, tmp_path, short, row("after", 0.5, kind="stopped"), row("before", 0.5))
    assert [r["job"]["system"] for r in json.loads(target.read_text())["results"]] == ["before"]


def test_a_later_result_of_a_job_replaces(page, tmp_path):
    target = kept(page, tmp_path, row("after", 0.5), row("after", 0.75))
    assert [r["exact"] for r in json.loads(target.read_text())["results"]] == [0.75]


def test_a_run_beside_fewer_others_does_not_replace_but_counts_too(page, tmp_path):
    beside = [row("after", e, slots={"cpu": 6, "cuda": n}) for e, n in ((0.5, 4), (0.75, 2))]
    target = kept(page, tmp_path, *beside)
    assert "62.5 (25.0), 1,234 steps, 2 runs" in page.page(json.loads(target.read_text()))


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
