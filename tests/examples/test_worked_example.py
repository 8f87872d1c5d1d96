import math
import re
import runpy
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from examples.worked_example import main
from regard.lab.experiments import worked_example as example

ROOT = Path(__file__).parents[2]
RIGHT, CARRIED, WRONG = example.RIGHT, example.CARRIED, example.WRONG
PRINTED = example.PRINTED

KEY = [[Fraction(3 * i + j, 10) for j in (1, 2, 3)] for i in range(4)]
VALUE = [[entry + Fraction(9, 10) for entry in row] for row in KEY]


def softmax(scores):
    exp = [math.exp(score) for score in scores]
    return [e / sum(exp) for e in exp]


def mix(weights):
    columns = zip(*VALUE, strict=True)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) for column in columns]


SCORES = [sum(q * k for q, k in zip(KEY[0], key, strict=True)) for key in KEY]
SCALED = [float(score) / math.sqrt(3) for score in SCORES]
WEIGHTS = softmax(SCALED)
CONTEXT = mix(WEIGHTS)


def of(stage, field):
    return [getattr(line, field) for line in example.printed_numbers() if line.stage == stage]


def test_the_right_numbers_without_torch():
    assert [Fraction(14, 100), Fraction(32, 100), Fraction(1, 2), Fraction(68, 100)] == SCORES
    assert of("score", "right") == pytest.approx([float(s) for s in SCORES], abs=1e-12)
    assert of("scaled score", "right") == pytest.approx(SCALED, abs=1e-12)
    assert of("weight", "right") == pytest.approx(WEIGHTS, abs=1e-12)
    assert of("context", "right") == pytest.approx(CONTEXT, abs=1e-12)


def test_the_page_holds_what_the_script_prints(capsys):
    main(["--markdown"])
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "results" / "worked-example.md").read_text(encoding="utf-8")
    assert f"\n\n{printed}\n" in page
    rest = page.replace(printed, "")
    prose = re.sub(r"```.*?```", "", rest, flags=re.DOTALL)
    assert not re.search(r"\d", prose), "a number in the prose of the page is not generated"


def test_it_runs_as_a_script_and_is_plain_when_piped(capsys, monkeypatch):
    path = ROOT / "examples" / "worked_example.py"
    monkeypatch.setattr(sys, "argv", [str(path)])
    monkeypatch.setenv("COLUMNS", "80")
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["weight", "1", "0.15", "0.2070", "0.2125", "wrong", "in", "itself"] in rows
    assert ["scaled", "score", "2", "0.20", "0.2021", "0.1848", "carried", "over"] in rows
    assert len([row for row in rows if row]) == 1 + sum(map(len, PRINTED.values()))
