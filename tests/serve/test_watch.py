"""The page of a run while it trains and after, through the application of `regard watch`."""

import hashlib
import json
import shutil

import pytest
from starlette.testclient import TestClient

from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.watch import RunWatcher, create_watch_app
from regard.training import RunError
from regard.training.reporting import HtmlReport
from regard.training.run_folder import RunFolder
from seeing.page.test_report import example
from serve.conftest import run_folder


def evaluated(path, *steps, report=True):
    """Adds evaluations to a run, as training does."""
    folder = RunFolder(path)
    page = HtmlReport(path, steps[0] - 1, {}) if report else None
    for step in steps:
        row = {"step": step, "epoch": step // 20, "tokens": 50 * step, "seconds": step / 5}
        row |= {"train_loss": 30 / step, "dev_loss": 25 / step, "dev_per": 5 / step}
        row |= {"dev_exact": 0.125}
        if page is not None:
            page.write(row, 0.01, [example(0.9), example(0.4)])
        folder.append_metrics(row)


@pytest.fixture
def run(tmp_path):
    return run_folder(tmp_path / "a run", "luong")


@pytest.fixture
def client(run):
    app = create_watch_app(RunWatcher(run), Limits(), Access(), Log(print))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def progress(client, since=""):
    answer = client.get("/api/progress", params={"since": since})
    assert answer.status_code == 200, answer.text
    return answer.json()


def content(folder):
    return {
        str(file.relative_to(folder)): (hashlib.sha256(file.read_bytes()).hexdigest(), file.stat())
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_a_run_is_followed_from_before_its_first_evaluation_to_its_end(client, run):
    first = progress(client)
    assert first["state"]["step"] is None
    assert "<polyline" not in first["html"]
    evaluated(run, 10, 20)
    second = progress(client, first["version"])
    assert second["html"].count("<polyline") == 6  # two losses, two metrics, rate and speed
    assert second["html"].count("<svg xmlns") == 4  # two examples at two evaluations
    state = {"step": 20, "epoch": 1, "metric": "dev per", "score": "0.25", "finished": False}
    assert second["state"] | {"age": 0.0} == state | {"note": "", "age": 0.0}
    assert 0 <= second["state"]["age"] < 600
    assert progress(client, second["version"])["html"] is None
    (run / "README.md").write_text("# done\n")
    third = progress(client, second["version"])
    assert third["state"]["finished"]
    assert third["version"] != second["version"]


def test_a_line_that_is_being_written_is_left_out_and_a_damaged_one_is_reported(client, run):
    evaluated(run, 10)
    with open(run / "report.jsonl", "a") as file:
        file.write('{"row": {"st')
    found = progress(client)["state"]
    assert (found["step"], found["note"]) == (10, "")
    with open(run / "report.jsonl", "a") as file:
        row = {"step": 30, "epoch": 1, "tokens": 1500, "seconds": 6.0}
        file.write("\n" + json.dumps({"row": row, "traces": []}) + "\n")
        file.write(json.dumps({"row": {**row, "dev_loss": "<b>"}, "traces": []}) + "\n")
        file.write(json.dumps({"row": {"step": 40}, "traces": []}) + "\n")
    found = progress(client)["state"]
    assert (found["step"], found["note"]) == (30, "3 damaged lines are left out")


def test_a_run_that_disappears_is_reported_in_a_sentence_and_may_come_back(client, run, tmp_path):
    evaluated(run, 10)
    shutil.move(run, tmp_path / "elsewhere")
    answer = client.get("/api/progress")
    assert answer.status_code == 503
    assert "No such file" in answer.json()["error"]["message"]
    shutil.move(tmp_path / "elsewhere", run)
    assert progress(client)["state"]["step"] == 10


def test_the_page_names_the_run_and_loads_nothing(client):
    answer = client.get("/")
    assert "<title>a run</title>" in answer.text
    assert "http" not in answer.text.replace("http-equiv", "").split("<style>")[0]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert client.get("/docs").status_code == 404
    assert client.get("/nothing").json()["error"]["code"] == "not_found"


def test_a_log_that_is_a_link_out_of_the_run_is_refused(tmp_path, run):
    (tmp_path / "secret").write_text("{}\n")
    (run / "metrics.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(RunError, match="must be in its folder"):
        RunWatcher(run)
