"""Maps in the terminal."""

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from regard.seeing import Map, Text, Trace, select
from regard.seeing.draw.shapes import fit, number_duplicates, printable
from regard.seeing.draw.terminal import listing, matrix, plain
from seeing.tools import HOSTILE, of_labels, translation


def view(**options):
    return select(translation(), **options)


def test_the_matrix_the_list_and_the_sentences():
    assert matrix(view(), 100).splitlines() == [
        "each row is an output; its cells say where it looked"
        " · cross-attention · words · scale 0-1",
        "        the unhappy    cat   </s>   p",
        "  le ▓▓ .70◂ ░░ .20 ░░ .06      ·   0.90",
        "chat      ·  ▒▒ .40 ▓▓ .50◂░░ .07   0.40",
        "</s>      ·       · ░░ .06 ██ .90◂  0.99",
        "· below .05 (mass not drawn 0.04 per row)   ◂ strongest   p probability of the output",
    ]
    assert listing(view(), 100).splitlines() == [
        "each line is an output, and what it looked at · cross-attention · words",
        "  le ← ████████▌ the 0.70   ██▌ unhappy 0.20   rest 0.10   p 0.90",
        "chat ← ██████ cat 0.50   █████ unhappy 0.40   rest 0.10   p 0.40",
        "</s> ← ███████████ </s> 0.90   rest 0.10   p 0.99",
        "rest: mass of the inputs that are not named   p: probability of the output",
    ]
    assert plain(view()).splitlines()[:2] == [
        "Where each output looked: cross-attention, words.",
        'Output 1, "le", looked mostly at "the" (0.70), then "unhappy" (0.20), then "cat" (0.06); '
        "the other inputs got 0.04; its probability is 0.90.",
    ]
    assert 'Output 2, "chat", looked mostly at "cat" (0.50)' in plain(view())
    rare = replace(view(), probs=[1e-9, 0.0, 0.0049])
    assert [line[-5:] for line in matrix(rare).splitlines()[2:5]] == ["<0.01", " 0.00", "<0.01"]
    assert listing(rare).count("p <0.01") == plain(rare).count("probability is <0.01") == 2


def test_columns_line_up_whatever_the_letters():
    labels = ["今日は", "a", "👩‍👩‍👧", "e\u0301", "ｗｉｄｅ", "한국어"]
    lines = matrix(select(of_labels(labels, labels)), 100).splitlines()
    body = lines[1 : 2 + len(labels)]
    assert all("←" not in line for line in body)
    ends = [_ends(line) for line in body[1:]]
    assert len({tuple(found) for found in ends}) == 1


def _ends(line):
    """In which cells of the terminal the numbers and dots of a line end."""
    return [cell_len(line[: match.end()]) for match in re.finditer(r"\.\d\d|1\.0|·", line)]


def test_hostile_tokens_leave_the_terminal_alone():
    trace = of_labels(HOSTILE, HOSTILE)
    for text in (matrix(select(trace), 300), listing(select(trace), 80), plain(select(trace))):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", text)
        text.encode("utf-8")
    lines = matrix(select(trace), 300).splitlines()
    assert "←" not in lines[2]
    tokens = ("</script>", "<b>", "&amp;", '"', "👩‍👩‍👧", "今日", "xxxxxxxxxxx…", "^[[31m")
    for shown in (*tokens, *"∅↵␣⇥"):
        assert shown in lines[1]
    assert len(lines) == 2 + len(HOSTILE) + 1


def test_columns_of_right_to_left_text_run_from_the_right():
    source = ["שלום", "עולם", "طيب"]
    plain = matrix(select(of_labels(["a", "b", "c"], ["x", "y"])), 200).splitlines()
    lines = matrix(select(of_labels(source, ["x", "y"])), 200).splitlines()
    # each label is kept apart from what stands beside it
    assert lines[1].split() == [f"\u2068{word}\u2069" for word in reversed(source)]
    for line, forward in zip(lines[2:4], plain[2:4], strict=True):
        numbers = [re.findall(r"\.\d\d|·", one) for one in (line, forward)]
        assert len(numbers[0]) == 3
        assert numbers[0] == numbers[1][::-1]
    assert lines[-1] == "columns run from right to left, as their text does"
    for first in ("hi", "123, hi"):  # one foreign word does not turn the text around it
        mixed = matrix(select(of_labels([first, *source[:2]], ["x", "y"])), 200).splitlines()
        assert mixed[1].split()[-2:] == [f"\u2068{word}\u2069" for word in source[:2]]
    header = [cell_len(lines[1][: match.end()]) for match in re.finditer(r"\S+", lines[1])]
    assert header == _ends(lines[2])


def test_a_terminal_that_is_almost_too_narrow_gets_tight_cells():
    lines = matrix(view(), 36).splitlines()
    assert lines[2:] == [
        "      the unhappy  cat </s>   p",
        "  le ▓.70◂   ░.20 ░.06    ·   0.90",
        "chat    ·    ▒.40 ▓.50◂░.07   0.40",
        "</s>    ·       · ░.06 █.90◂  0.99",
        *lines[6:],
    ]


def test_a_narrow_terminal_gets_a_list_that_fits_and_says_why():
    labels = [f"wort{i}" for i in range(12)]
    text = matrix(select(of_labels(labels, labels, sharp=1.0)), 60)
    entries = [line for line in text.splitlines() if "←" in line]
    assert len(entries) == 12
    assert max(map(cell_len, entries)) <= 60
    assert re.search(
        r"^a list, since the matrix takes \d+ columns and the terminal has 60$", text, re.M
    )


def test_hidden_mass_and_a_row_of_nothing():
    lines = matrix(view(special="hide")).splitlines()
    assert lines[2].endswith("0.04  0.90")
    assert "hidden 0.07" in listing(view(special="hide"))
    assert "0.07 is hidden" in plain(view(special="hide"))
    trace = Trace(Text.of("ab"), Text.of("x"), (Map.of("cross", 0, [[[0, 0]]], missing=True),))
    line = matrix(select(trace)).splitlines()[2]
    assert "◂" not in line
    assert "nothing" in listing(select(trace))


def test_inputs_that_look_alike_are_told_apart_in_the_list():
    trace = Trace(Text.of("TaT"), Text.of("x"), (Map.of("cross", 0, [[[0.3, 0.1, 0.6]]]),))
    assert "T#2 0.60" in listing(select(trace))
    assert '"T#2" (0.60)' in plain(select(trace))
    assert number_duplicates(["a", "b", "a"]) == ["a#1", "b", "a#2"]


def test_an_empty_map_is_drawn():
    nothing = Map.of("cross", 0, np.zeros((1, 1, 0)), missing=True)
    trace = Trace(Text.of([]), Text.of("x"), (nothing,))
    assert matrix(select(trace)).splitlines()[2].startswith("x")
    assert plain(select(trace))
    assert matrix(select(translation(), special="hide"))


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("", "∅"),
        ("\u2003 \u202f", "⟨2003⟩␣⟨202F⟩"),
        ("a\u202fb", "a\u202fb"),
        ("\x1b[0m", "^[[0m"),
        ("\x7f", "^?"),
        ("\u0301", "◌\u0301"),
        ("\u200d", "⟨200D⟩"),
        ("\u200c\ufe0f", "⟨200C⟩⟨FE0F⟩"),
        ("👋\U0001f3fb", "👋\U0001f3fb"),
        ("\u3164", "⟨3164⟩"),
        ("\ud800", "⟨D800⟩"),
        ("\ufffe", "⟨FFFE⟩"),
        ("👩‍👩‍👧", "👩‍👩‍👧"),
    ],
)
def test_every_token_can_be_seen(token, shown):
    assert printable(token) == shown
    assert fit("👩‍👩‍👧👩‍👩‍👧", 3) == "👩‍👩‍👧…"
    assert fit("今日は", 4) == "今…"
    assert fit("e\u0301e\u0301e\u0301", 2) == "e\u0301…"
    assert fit("abc", 3) == "abc"
