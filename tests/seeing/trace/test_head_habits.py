"""Planted heads are found: each has its one habit, at all of its attention."""

from contextlib import suppress

import numpy as np
import pytest
import torch

import regard
from regard.attention import MultiHeadAttention
from regard.seeing import Map, Text, Token, Trace
from regard.seeing.attribution.interventions import HeadSwitch, heads_muted
from regard.seeing.page.compare_page import HeadRow, render_heads
from regard.seeing.trace.head_habits import Habit, HeadHabits, head_habits
from seeing.planted import WIDE, PlantedCross, encoder_model, induction_model, labels, repeated
from seeing.tools import HOSTILE, of_labels


def seen_by(model, ids):
    with regard.capture(model, tokens=labels(ids)) as seen, torch.no_grad():
        model(ids)
    return seen.traces


@pytest.fixture(scope="module")
def found():
    return {one.key: one for one in head_habits(seen_by(induction_model(), repeated(11)))}


@pytest.mark.parametrize(
    ("layer", "head", "habit"),
    [
        (0, 0, "previous"),
        (0, 1, "first"),
        (0, 2, "same"),
        (0, 3, "separator"),
        (1, 0, "induction"),
        (1, 1, "position"),
        (1, 2, None),
        (1, 3, "same"),
    ],
)
def test_each_planted_head_is_found(found, layer, head, habit):
    one = found["decoder-self", layer, head]
    assert one.main == habit
    if habit is not None:
        assert one.habits[habit].share == pytest.approx(1.0, abs=1e-4)
        assert one.habits[habit].score == pytest.approx(1.0, abs=1e-4)
    if habit == "position":
        assert one.habits[habit].detail == 3


def test_heads_that_see_both_sides():
    found = head_habits(seen_by(encoder_model(), repeated(5)))
    assert [(one.kind, one.main) for one in found] == [
        ("encoder-self", habit) for habit in ("next", "previous", "first", "separator")
    ]
    assert found[0].habits["next"].share == pytest.approx(1.0, abs=1e-4)
    assert found[0].habits["induction"].share < 0.1  # a token is no earlier copy of itself


def test_heads_of_cross_attention():
    src, tgt = torch.tensor([[2, 3, 4, 5, 6, 2, 3]]), torch.tensor([[4, 3, 6, 5, 2]])
    model = PlantedCross().eval()
    with regard.capture(model) as seen, torch.no_grad():
        model(src, tgt)
    seen.label(labels(src), labels(tgt))
    found = head_habits(seen.traces)
    assert [(one.kind, one.main) for one in found] == [
        ("cross", habit) for habit in ("diagonal", None, "first", "same")
    ]
    assert found[0].habits["diagonal"].share == pytest.approx(1.0, abs=1e-4)
    # the middle of the turned diagonal is on the diagonal
    assert found[1].habits["diagonal"].share == pytest.approx(1 / 5, abs=1e-4)
    assert not {"previous", "next", "induction"} & found[0].habits.keys()


def test_shares_by_hand():
    """Two rows of a causal map after `<s>`: labels `x`, `x`; specials do not start the diagonal."""
    source = Text("x x", (Token("<s>", special=True), Token("▁x"), Token("x")))
    weights = np.array([[[1.0, 0, 0], [0.75, 0.25, 0], [0.125, 0.375, 0.5]]], dtype=np.float32)
    maps = (Map("decoder-self", 0, weights, None, "source", "source", True),)
    (one,) = head_habits([Trace(source, source, maps)])
    share = {name: habit.share for name, habit in one.habits.items()}
    assert share["previous"] == pytest.approx((0.75 + 0.375) / 2)
    assert share["first"] == pytest.approx((0.75 + 0.125) / 2)
    assert share["same"] == pytest.approx((0.25 + 0.875) / 2)
    assert share["induction"] == pytest.approx(0.5)
    assert one.habits["first"].chance == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert one.habits["induction"].rows == 1
    assert "separator" not in share


def test_a_head_is_off_inside_the_block_alone():
    model, ids = induction_model(), repeated(3)
    projections = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    first = [HeadSwitch(part.out_proj, 0, WIDE) for part in projections]
    with torch.no_grad():
        whole = model(ids)
        with heads_muted(first):
            assert not model(ids).any()
        assert torch.equal(model(ids), whole)
        with suppress(KeyError), heads_muted(first):
            raise KeyError
        assert torch.equal(model(ids), whole)


def rows_of(traces):
    return [HeadRow(one, (0.5, 0.25, 0.75)) for one in head_habits(traces)]


def test_a_page_is_safe_and_bounded(monkeypatch):
    hostile = of_labels(list(HOSTILE), list(HOSTILE), heads=3)
    page = render_heads(HOSTILE[0], {HOSTILE[1]: HOSTILE[0]}, rows_of([hostile]), [hostile])
    assert page.count("</script>") == 1
    assert "<b>" not in page
    assert page.count('class="head"') == page.count("<svg xmlns") == 3
    assert "script-src 'sha256-" in page
    monkeypatch.setattr("regard.seeing.page.compare_page.MOST_DRAWN", 5)
    monkeypatch.setattr("regard.seeing.page.compare_page.MOST_FIGURES", 10)
    many = of_labels("abc", "xyz", heads=7)
    page = render_heads("many", {}, rows_of([many]), [many, many, many])
    assert "2 more heads have no figures here" in page
    assert page.count("<svg xmlns") == 10


def test_evidence_by_hand():
    # Wilson's lower end of 9 of 10 is 0.596, and 0.438 of 3 of 3
    assert Habit(0.9, 0.2, 10).evidence == pytest.approx((0.596 - 0.2) / 0.8, abs=1e-3)
    assert Habit(1.0, 0.5, 3).evidence == pytest.approx((0.438 - 0.5) / 0.5, abs=1e-3)
    assert HeadHabits("cross", 0, 0, {"same": Habit(1.0, 0.5, 3)}).main is None
