"""The what-if panel of the live page in a real browser."""

from dataclasses import replace

import numpy as np
import pytest

from browser import samples
from browser.conftest import SCREENS
from browser.test_live import live  # noqa: F401  (a fixture)
from browser.test_page import until_here
from regard.seeing import Map
from regard.seeing.attribution.interventions import Intervention, WhatIf
from regard.seeing.trace.storage import to_json


def changed(trace):
    """A trace whose first map has its rows turned by one column."""
    first, *rest = trace.maps
    weights = np.ascontiguousarray(np.roll(first.weights, 1, axis=2))
    turned = Map(first.kind, first.layer, weights, first.missing, first.rows, first.columns)
    return replace(trace, maps=(turned, *rest), derived={}, checks={})


def reply(trace):
    found = WhatIf.of(Intervention.of(prefix="x"), (trace, changed(trace)))
    return {**found.to_json(), "answers": [trace.target.text, "<b>another</b>"]}


@pytest.fixture
def asked(live):  # noqa: F811
    """The live page after an answer, whose server also answers what-ifs."""
    usual = live.answer

    def answer(route, address):
        if address == "api/what-if":
            route.fulfill(json=reply(live.trace))
        elif address == "api/answers":
            told = [{"text": text, "score": -1.0, "log_prob": -1.25} for text in ("un", "deux")]
            route.fulfill(json={"answers": told})
        else:
            usual(route, address)

    live.answer, live.trace = answer, samples.sentence()
    live.fill("#live-text", "the cat")
    live.wait_for_selector(".texts")
    live.questions.clear()
    return live


@pytest.mark.long
def test_other_answers_are_listed_and_looked_at(asked):
    asked.click("text=Other answers")
    asked.fill(".fields input >> nth=1", "2")
    asked.click("button:has-text('Search')")
    asked.wait_for_selector(".answers li")
    address, question = asked.questions[-1]
    assert address == "api/answers"
    assert (question["nbest"], question["text"]) == (2, "the cat")
    usual, bare = asked.answer, to_json(replace(asked.trace, derived={}, checks={}))

    def answer(route, address):
        return route.fulfill(json=bare) if address == "api/run" else usual(route, address)

    asked.answer = answer
    asked.click(".answers button >> nth=1")
    until_here(asked, lambda: asked.questions[-1][0] == "api/run")
    assert asked.questions[-1][1]["target"] == "deux"
    asked.click("#tab-checks")
    asked.click("text=Measure now")  # of what is shown
    until_here(asked, lambda: asked.questions[-1][0] == "api/check")
    assert asked.questions[-1][1]["target"] == "deux"
    asked.fill(".fields input >> nth=2", "0.7")
    asked.click("button:has-text('Sample')")
    until_here(asked, lambda: "temperature" in asked.questions[-1][1])
    assert asked.questions[-1][1]["temperature"] == 0.7
    asked.wait_for_selector(".answers li")
    asked.fill("#live-text", "a dog")
    until_here(asked, lambda: asked.locator(".answers li").count() == 0)
    assert asked.wrong == []


def test_a_cell_is_chosen_by_keyboard_and_set(asked):
    asked.focus("summary:has-text('What if')")
    asked.keyboard.press("Enter")
    asked.click("#tab-matrix")
    asked.wait_for_selector("canvas.map")
    asked.focus(".stage")
    asked.keyboard.press("ArrowDown")
    asked.keyboard.press("ArrowRight")
    assert "Selected in the figure" in asked.inner_text("#what-if-cell")
    asked.fill("input[aria-describedby=what-if-cell]", "0.4")
    asked.focus("button:has-text('Set this cell')")
    asked.keyboard.press("Enter")
    assert asked.locator(".changes li").count() == 1
    asked.focus("button:has-text('Decode again')")
    asked.keyboard.press("Enter")
    asked.wait_for_selector(".three figure")
    address, question = asked.questions[-1]
    (cell,) = question["cells"]
    assert address == "api/what-if"
    assert (cell["kind"], cell["row"], cell["weight"]) == ("cross", 1, 0.4)
    assert f"column={cell['column']}&" in asked.evaluate("location.hash")
    assert asked.locator(".three figure").count() == 3
    assert "<b>another</b>" in asked.inner_text(".result")
    asked.click(".changes button")
    assert asked.locator(".changes li").count() == 0
    assert asked.wrong == []


@pytest.mark.sample(1)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_tokens_are_replaced_heads_switched_off_and_a_prefix_forced(
    asked, accessible, scheme, width
):
    asked.emulate_media(color_scheme=scheme)
    asked.set_viewport_size({"width": width, "height": 900})
    asked.click("text=Other answers")
    asked.click("button:has-text('Search')")
    asked.wait_for_selector(".answers li")
    asked.click("summary:has-text('What if')")
    asked.select_option(".what-if select >> nth=0", "1")
    asked.fill("label:has-text('by') input", "dog")
    asked.click("button:has-text('Replace')")
    asked.fill("label:has-text('begins with') input", "un")
    asked.click("text=Switch this head off")
    asked.click("text=Decode again")
    asked.wait_for_selector(".three figure")
    question = asked.questions[-1][1]
    assert question["replace"] == [{"token": 1, "text": "dog"}]
    assert question["prefix"] == "un"
    assert question["heads_off"][0]["kind"] == "cross"
    accessible(asked)
