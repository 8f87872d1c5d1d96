"""`regard train`: what it makes, and what it says when it cannot."""

import os
import signal
import subprocess
import time

import pytest

from cli.tools import BRIEF, done, regard, reversed_pairs, sentence
from forked_python import forked_python
from regard.data import Corpus
from regard.training import RunFolder

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

GOOD = reversed_pairs(60).encode()


def test_it_makes_a_run_folder_and_names_it(pairs, in_folder):
    result = regard("train", pairs, "--preset", "luong", *BRIEF)
    assert done(result) == "runs/luong\n"
    made = {path.name for path in (in_folder / "runs" / "luong").iterdir()}
    assert {"config.json", "model.safetensors", "README.md", "metrics.jsonl"} <= made
    assert "source tokens: char" in result.stderr
    assert "held out by hash" in result.stderr


@pytest.mark.parametrize("setting", ["data", "tgt", "dev", "dev_tgt", "src_vectors"])
def test_a_pipe_is_refused_since_it_flows_once(pairs, in_folder, setting):
    os.mkfifo(in_folder / "pipe")
    files = {"data": pairs} | {setting: in_folder / "pipe"}
    said = sentence(regard("train", *(f"{k}={v}" for k, v in files.items()), *BRIEF), 2)
    assert said.startswith(f"{setting} must be a file that can be read more than once")
    assert said.endswith(
        "which is a pipe or a device: write it to a file first"
        + (", or pipe it to `regard train -`." if setting == "data" else ".")
    )
    assert not (in_folder / "runs").exists()


SETTINGS = {
    "wrong preset": (["--preset", "bahdanu"], ["preset", "'bahdanu'", "'bahdanau' is meant"]),
    "typo": (["hiden=5"], ["'hiden'", "'hidden' is meant"]),
    "key of another preset": (["-p", "transformer", "cell=gru"], ["'cell'", "bahdanau"]),
    "text for a number": (["steps=many"], ["steps", "a whole number", "'many'"]),
    "no rate": (["lr=0"], ["lr", "more than 0", "0"]),
    "text for a switch": (["skip_bad=maybe"], ["skip_bad", "true or false", "'maybe'"]),
    "not a choice": (["metric=foo"], ["metric", "'bleu'", "'foo'"]),
    "too few positions": (["-p", "conv", "max_len=64"], ["max_len", "max_tgt_len", "64"]),
    "one column": (["columns=0"], ["columns", "two or three"]),
    "no such option": (["--colour"], ["--colour", "regard train --help"]),
    "three files": (["b.tsv", "c.tsv"], ["data", "'c.tsv'"]),
    "resumed and put elsewhere": (["--resume", "x"], ["data", "left out"]),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", SETTINGS)
def test_bad_usage(pairs, in_folder, case):
    args, fragments = SETTINGS[case]
    said = sentence(regard("train", pairs, *args), 2)
    assert all(fragment in said for fragment in fragments), said
    assert list(in_folder.iterdir()) == [pairs], "nothing is made"


BAD_LINES = {
    "empty file": (b"", ["no pairs"]),
    "empty target": (GOOD + b"abc\t\n", ["line 61", "target side is empty"]),
    "invalid UTF-8": (GOOD + b"ab\xff\tcd\n", ["line 61", "UTF-8", "0xff"]),
    "missing tab": (GOOD + b"ab cd\n", ["line 61", "no tab"]),
    "one source": (b"".join(b"abc\t%d\n" % i for i in range(60)), ["too few", 'dev="FILE"']),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_data(in_folder, case):
    content, fragments = BAD_LINES[case]
    path = in_folder / "pairs.tsv"
    path.write_bytes(content)
    said = sentence(regard("train", "pairs.tsv", *BRIEF), 1)
    assert said.startswith("pairs.tsv")
    assert all(fragment in said for fragment in fragments), said
    assert not (in_folder / "runs" / "pairs").exists(), "the folder is free for another try"


def test_skipped_lines_are_counted(in_folder):
    (in_folder / "pairs.tsv").write_bytes(GOOD + b"ab cd\n" + b"ef gh\n")
    result = regard("train", "pairs.tsv", "--skip-bad", *BRIEF)
    done(result)
    assert result.stderr.count("2 bad lines were left out (2 missing tab)") == 1


def test_no_source_is_held_out_and_learned_in_another_case(in_folder):
    rows = reversed_pairs(60)
    (in_folder / "pairs.tsv").write_text(rows + rows.upper())
    done(regard("train", "pairs.tsv", "-q", *BRIEF, "src_case=lower"))
    data = RunFolder("runs/pairs").data
    learned, held = (Corpus(data / name) for name in ("train.arrow", "dev.arrow"))
    assert len(held) > 0
    assert len(learned) + len(held) == 120
    seen = {tuple(learned.src(i)) for i in range(len(learned))}
    assert not any(tuple(held.src(i)) in seen for i in range(len(held)))


def test_pairs_from_stdin(in_folder):
    assert done(regard("train", "-", *BRIEF, "-q", stdin=GOOD)) == "runs/stdin\n"
    assert "stdin: there are no pairs" in sentence(
        regard("train", "-", "-o", "empty", *BRIEF, stdin=b""), 1
    )
    said = sentence(regard("train", "-", "-o", "bad", *BRIEF, stdin=GOOD + b"ab cd\n"), 1)
    assert said.startswith("stdin, line 61")


def test_two_parallel_files(in_folder):
    rows = [line.split("\t") for line in GOOD.decode().splitlines()]
    (in_folder / "a.txt").write_text("".join(f"{src}\n" for src, _ in rows))
    (in_folder / "b.txt").write_text("".join(f"{tgt}\n" for _, tgt in rows))
    done(regard("train", "a.txt", "b.txt", *BRIEF, "-q"))
    (in_folder / "c.txt").write_text("abc\n")
    said = sentence(regard("train", "a.txt", "c.txt", "-o", "x", *BRIEF), 1)
    assert "60 lines" in said


def test_settings_from_toml(pairs, in_folder):
    lines = [f'data = "{pairs}"', 'size = "tiny"', "steps = 1", "[model]", "hidden = 32"]
    (in_folder / "run.toml").write_text("\n".join(lines))
    done(regard("train", "run.toml", "seed=5", "-q"))
    config = RunFolder("runs/pairs").read_config()
    assert (config.seed, config.model) == (5, {"hidden": 32})


def test_a_run_is_not_overwritten(pairs, run):
    before = (run / "model.safetensors").read_bytes()
    said = sentence(regard("train", pairs, "-o", run, *BRIEF), 1)
    assert f"regard train --resume {run}" in said
    assert (run / "model.safetensors").read_bytes() == before


def test_files_of_the_user_are_not_overwritten(pairs, in_folder):
    (in_folder / "README.md").write_text("mine")
    assert "README.md" in sentence(regard("train", pairs, "-o", ".", *BRIEF), 1)
    assert (in_folder / "README.md").read_text() == "mine"


RESUMES = {
    "another preset": (["--preset", "luong"], 2, ["preset", "stay 'bahdanau'", "'luong'"]),
    "another batch": (["batch_sentences=5"], 2, ["batch_sentences", "stay 32"]),
    "another dev set": (["--dev", "x.tsv"], 2, ["dev", "stay None"]),
    "other data": (["x.tsv"], 2, ["data", "left out"]),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", RESUMES)
def test_what_a_resumed_run_may_not_change(run, case):
    args, code, fragments = RESUMES[case]
    said = sentence(regard("train", "--resume", run, *args), code)
    assert all(fragment in said for fragment in fragments), said


def test_what_is_wrong_inside_is_reported_without_a_traceback(pairs, in_folder, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("the first line\nthe second")

    monkeypatch.setattr("regard.training.setup.train", broken)
    said = sentence(regard("train", pairs, *BRIEF), 1)
    assert "RuntimeError: the first line)" in said
    path = said.split()[-1].removesuffix(".")
    with open(path, encoding="utf-8") as file:
        assert "the second" in file.read()
    os.unlink(path)


def stopped(pairs, number):
    """A run of its own process that gets a signal in its first steps."""
    words = ["train", pairs, "-o", "run", "size=tiny", "steps=100000", "save_every=1"]
    process = subprocess.Popen(
        [forked_python(), "-m", "regard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    end = time.monotonic() + 240
    while not list(pairs.parent.glob("run/checkpoints/*[1-9].json")):  # that of step 0 is too early
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@pytest.mark.sample(1)
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_it_saves_and_says_how_to_go_on(pairs, in_folder, number, expected):
    code, out, err = stopped(pairs, number)
    assert (code, out) == (expected, "")
    assert "stopped and saved; go on with: regard train --resume run\n" in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    step = max(int(path.stem[5:]) for path in in_folder.glob("run/checkpoints/*.json"))
    assert f"the weights of step {step} are kept as the model, but they have not been" in err
    assert done(regard("predict", "run", stdin="abc\n")).endswith("\n")
    result = regard("train", "--resume", "run", f"steps={step + 1}")
    assert done(result) == "run\n"
    assert f"going on from step {step}." in result.stderr
