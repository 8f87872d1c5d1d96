"""The benchmark of the toolkit runs, and says what it has measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("REGARD_DATA", ROOT.parent / "shared" / "data"))
SPEEDS = ("tokens_per_s", "target_tokens_per_s", "sentences_per_s", "peak_rss_mb")


def toolkit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.toolkit", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.skipif(
    not (DATA / "cmudict_07b_cntk").is_dir(),
    reason="the data set cmudict_07b_cntk is not here: set REGARD_DATA",
)
def test_one_case_gives_one_record_a_mode(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["--data", str(DATA), "--cases", "c", "--threads", "1"]
    words += ["--steps", "3", "--warm-up", "1", "--sentences", "7", "--out", str(file)]
    done = toolkit(*words)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    written = json.loads(file.read_text())
    assert written["records"] == printed
    assert {"machine", "commit", "command"} <= set(written)
    assert [record["mode"] for record in printed] == ["train", "predict"]
    assert [record["sentences"] for record in printed] == [3 * 128, 7]
    for record in printed:
        assert record["case"] == "c"
        assert all(record[name] > 0 for name in SPEEDS)
        assert record["target_tokens_per_s"] < record["tokens_per_s"]
    # every output has 20 tokens and eos
    assert printed[1]["target_tokens_per_s"] == pytest.approx(21 * printed[1]["sentences_per_s"])
    here = [str(ROOT), str(tmp_path), str(DATA)]
    assert not any(folder in json.dumps(written) for folder in here)


def test_missing_data_are_one_sentence(tmp_path: Path) -> None:
    done = toolkit("--data", str(tmp_path), "--cases", "c")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "cmudict_07b_cntk/train.tsv.gz" in last
    assert "--data" in last
