"""Through the command line alone: sounds as vectors, a model, a score, a run that goes on."""

import json

import pytest

from cli.tools import done, regard
from sounds import spoken, write_jsonl, write_npy

pytestmark = pytest.mark.system

SMALL = ("size=tiny", "batch_sentences=64", "average=1", "warmup=50", "device=cpu", "precision=32")


@pytest.mark.long
def test_it_learns_to_write_what_it_hears(tmp_path):
    train = write_jsonl(tmp_path / "train.jsonl", spoken(1500))
    test = write_npy(tmp_path / "test.tsv", spoken(200, seed=2))
    settings = ("steps=250", "eval_every=250", *SMALL)
    run = done(regard("train", train, "-o", tmp_path / "run", *settings)).strip()
    found = json.loads(done(regard("evaluate", run, test, "--json")))
    metrics = {row["name"]: row["value"] for row in found["metrics"]}
    print(metrics)
    assert metrics["exact"] >= 0.9
    answers = done(regard("predict", run, tmp_path / "test" / "0.npy", tmp_path / "test" / "1.npy"))
    right = [line.split("\t")[1] for line in test.read_text().splitlines()]
    every = done(regard("predict", run, write_jsonl(tmp_path / "t.jsonl", spoken(200, seed=2))))
    assert answers.splitlines() == every.splitlines()[:2]
    same = sum(a == b for a, b in zip(every.splitlines(), right, strict=True)) / len(right)
    assert same == metrics["exact"]
