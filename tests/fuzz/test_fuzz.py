"""Forty crafted files and command lines; `make fuzz` runs thousands."""

import os

import pytest

from fuzz.cases import Case
from fuzz.runner import run_cases, summary

pytestmark = pytest.mark.plain  # what a user sees, and not what run-time type checks say first

CASES = int(os.environ.get("FUZZ_CASES", "40"))
SEED = 20


@pytest.mark.slow
def test_whatever_is_read_there_is_a_sentence_and_nothing_else_is_touched(tmp_path):
    verdicts = list(run_cases(list(range(CASES)), SEED, 2, tmp_path))
    told = summary(verdicts, SEED)
    print(told)
    assert len(verdicts) == CASES, told
    assert not any(verdict.problem for verdict in verdicts), told


class Breaks:
    """Faults that are planted, to see that each is found."""

    @staticmethod
    def raises(*words):
        raise ZeroDivisionError("planted")

    @staticmethod
    def writes(*words):
        with open(os.path.join("..", "canary", "notes.txt"), "a") as file:
            file.write("x")

    @staticmethod
    def hangs(*words):
        os.read(os.pipe()[0], 1)

    @staticmethod
    def dies(*words):
        os._exit(9)

    @staticmethod
    def fills_memory(*words):
        bytearray(1 << 40)

    @staticmethod
    def starts_a_process(*words):
        os.system("true")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raises", "internal error"),
        ("writes", "touched open"),
        ("hangs", "hang: more than 1 s"),
        ("dies", "killed"),
        ("fills_memory", "out of memory"),
        ("starts_a_process", "touched os.system"),
    ],
)
def test_a_planted_fault_is_found(tmp_path, monkeypatch, fault, said):
    from regard import api

    if fault == "hangs":
        monkeypatch.setattr("fuzz.runner.MOST_SECONDS", 1.0)
    monkeypatch.setattr("fuzz.runner.make_bases", lambda folder: None)
    case = ("planted", ["check", "run", "abc"], "")
    monkeypatch.setattr("fuzz.runner.make_case", lambda *given: Case(*case))
    monkeypatch.setattr(api, "load_own", lambda *runs, **options: getattr(Breaks, fault)())
    verdicts = list(run_cases([1, 2], 0, 1, tmp_path))
    assert [verdict.number for verdict in verdicts] == [1, 2]
    assert all(said in verdict.problem for verdict in verdicts), verdicts
