"""The models in the package do what their cards say. Each test is skipped until there is one."""

import gzip
import os
import re
import resource
import subprocess
import sys

import pytest

import regard
from regard.api import bundled_models
from regard.data import read_pairs
from regard.evaluation import score

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        "g2p" not in bundled_models.names(), reason="src/regard/bundled/g2p is not there yet"
    ),
]
TEST = bundled_models.HOME / "cmudict" / "test.tsv.gz"
#: every so many of the test words are answered
EVERY = 40


@pytest.fixture(scope="module")
def g2p():
    return regard.load("g2p", device="cpu")


def shares(text):
    """The percentages of a card's score: errors of phonemes, and words that are right."""
    return [float(number) / 100 for number in re.findall(r"([\d.]+)%", text)]


def test_it_is_small_and_holds_nothing_else():
    files = {path.name: path.stat().st_size for path in (bundled_models.HOME / "g2p").iterdir()}
    assert sorted(files) == [
        "LICENSE.txt",
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.src.json",
        "tokenizer.tgt.json",
    ]
    assert sum(files.values()) < 12e6


def test_nothing_is_said_of_a_machine():
    for path in (bundled_models.HOME / "g2p").glob("*.[jm]*[nd]"):
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("/home/", "/root/", "/tmp/", "/work/"))


def test_it_pronounces_words_of_either_case(g2p):
    assert g2p("attention").text == g2p("ATTENTION").text == "AH T EH N SH AH N"
    assert g2p("cat").text == "K AE T"
    assert g2p("naïve").unknown == ("ï",)


def test_a_head_looks_at_the_letters_in_their_order(g2p):
    heads = [head for layer in g2p.trace("attention").of_kind("cross") for head in layer.weights]
    strongest = [[int(row.argmax()) for row in head[:-1]] for head in heads]
    assert any(places == sorted(places) and places[0] < places[-1] for places in strongest)


def test_its_score_is_that_of_its_card(g2p):
    pairs = list(read_pairs(TEST, references=True))[::EVERY]
    answers = [out.text for out in g2p.predict([p.src for p in pairs], attention=False)]
    references = [[p.tgt, *p.more] for p in pairs]
    said_per, said_exact = shares(bundled_models.card("g2p")["score"])
    # three standard errors of a share of 300 words
    assert score("exact", answers, references).value == pytest.approx(said_exact, abs=0.08)
    assert score("per", answers, references).value == pytest.approx(said_per, abs=0.025)


def test_it_has_not_seen_the_test_words():
    with gzip.open(
        bundled_models.HOME / "cmudict" / "train.tsv.gz", "rt", encoding="utf-8"
    ) as file:
        seen = {line.partition("\t")[0] for line in file}
    assert not seen & {pair.src for pair in read_pairs(TEST, references=True)}


def test_the_first_map_takes_less_than_five_seconds(tmp_path):
    command = [sys.executable, "-c", "from regard.cli import main; main()", "show", "g2p"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "attention"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "SH" in done.stdout
    # of the processor, so that a machine with other work does not make the test fail
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
