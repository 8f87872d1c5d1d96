"""The command line in this process, and files to give to it."""

import random
import re

from typer.testing import CliRunner

from regard.cli import app

#: a model of a few thousand weights, trained for a moment
SMALL = ("size=tiny", "hidden=32", "embed=16", "batch_sentences=32", "max_tgt_len=10")
BRIEF = (*SMALL, "steps=1")


def regard(*words, stdin=""):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def sentence(result, code, written=0):
    """The one sentence of a verb that went wrong, perhaps after it has written some lines."""
    assert result.exit_code == code, result.output
    assert len(result.stdout.splitlines()) == written
    *before, last = result.stderr.splitlines()
    assert last.startswith("regard: ")
    assert re.fullmatch(r".*\S\.", last)
    assert not last.endswith("..")
    assert "\x1b" not in result.stderr
    assert "Traceback" not in result.stderr
    assert not any(line.startswith("regard: ") for line in before)
    return last.removeprefix("regard: ")


def done(result):
    """What a verb has written, if all went well."""
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.stdout


def words(count, seed=1, letters="abcdefgh"):
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=draw.randint(3, 7))) for _ in range(count)]


def reversed_pairs(count, seed=1):
    return "".join(f"{word}\t{word[::-1]}\n" for word in words(count, seed))


def tagged_pairs(count, seed=1):
    """The tag decides whether a word is copied or reversed."""
    rows = enumerate(words(count, seed))
    return "".join(f"{w}\t{w[::-1]}\tV;PST\n" if i % 2 else f"{w}\t{w}\tV;PRS\n" for i, w in rows)
