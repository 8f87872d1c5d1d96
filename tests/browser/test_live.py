"""The live page in a real browser, against a server that answers as `regard serve` does."""

import json
import time
from dataclasses import replace

import pytest

from browser import samples
from browser.test_page import until, until_here
from regard.seeing.page import html_page, writer
from regard.seeing.trace.storage import to_json

INFO = {"models": [{"name": "enfr"}, {"name": "g2p <b>"}], "limits": {"chars": 1000}}


def event(name, data):
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def answered(trace):
    rows = trace.maps[0].weights[0].tolist()
    tokens = zip(trace.target.tokens, rows, strict=True)
    words = [
        event("token", {"token": token.text, "prob": token.prob, "row": row})
        for token, row in tokens
    ]
    source = event("source", {"tokens": trace.source.labels})
    return "".join([source, *words, event("done", {"trace": to_json(trace)})])


@pytest.fixture
def live(open_window):
    """The live page, and the questions that it has asked."""
    page = open_window("about:blank", width=1000)
    page.questions = []
    page.reply = answered(samples.sentence())

    def answer(route):
        address = route.request.url.removeprefix("http://regard.test/")
        name = address.removeprefix("page/")
        if address.split("#")[0] == "":
            route.fulfill(body=html_page.render_live(page.info), content_type="text/html")
        elif name in writer.module_names():
            route.fulfill(body=writer.text_of(name), content_type="text/javascript")
        elif address.startswith("api/"):
            page.questions.append((address, json.loads(route.request.post_data)))
            page.answer(route, address)
        else:
            route.fulfill(status=404)

    def usual(route, address):
        if address in ("api/check", "api/run"):
            route.fulfill(json=to_json(samples.sentence()))
        else:
            route.fulfill(body=page.reply, content_type="text/event-stream")

    page.answer = usual
    page.route("**/*", answer)
    page.info = INFO
    page.goto("http://regard.test/")
    page.wait_for_selector("#live-text")
    return page


def test_what_is_typed_is_answered_and_shown(live):
    live.is_spent = True  # nothing takes the clock out again
    live.clock.install()  # the page's clock stands still: how fast the test types plays no part
    live.clock.pause_at(time.time() + 3600)
    for letter in "the cat":
        live.type("#live-text", letter)
        live.clock.run_for(100)
    assert live.questions == []
    trace = samples.sentence()
    live.reply = answered(replace(trace, maps=trace.maps[::-1]))
    live.clock.run_for(10_000)
    live.wait_for_selector(".texts")
    assert live.questions == [("api/stream", {"text": "the cat", "model": "enfr"})]
    assert "tapis" in live.inner_text(".stage")
    assert live.locator(".stream li").count() == 0
    assert "text=the+cat" in live.evaluate("location.hash")
    assert "kind=cross" in live.evaluate("location.hash")  # whichever map comes first
    assert live.wrong == []


def test_rows_that_arrive_say_what_they_looked_at(live):
    trace = samples.sentence()
    live.reply = live.reply.split("event: done")[0]  # the rest is still on its way
    live.fill("#live-text", "the cat")
    until(live, f"document.querySelectorAll('.stream li').length > {len(trace.target.tokens)}")
    names, *rows = (item.inner_text().split("\n") for item in live.locator(".stream li").all())
    inputs = trace.source.labels
    assert [name for name in names if name in inputs] == inputs
    weights = trace.maps[0].weights[0]
    for token, row, shown in zip(trace.target.tokens, weights, rows, strict=True):
        assert shown[0] == token.text
        assert f"← {inputs[row.argmax()]} {row.max():.2f}" in shown
    assert live.wrong == []


def test_a_question_that_is_stale_is_given_up(live):
    gone = []
    live.on("requestfailed", lambda request: gone.append(request.url))
    usual, live.answer = live.answer, lambda route, address: None  # it never answers
    live.fill("#live-text", "slow")
    until_here(live, lambda: live.questions)
    live.answer = usual
    live.fill("#live-text", "quick")
    live.wait_for_selector(".texts")
    assert [question["text"] for _, question in live.questions] == ["slow", "quick"]
    until_here(live, lambda: gone)
    assert gone == ["http://regard.test/api/stream"]


def test_a_refusal_is_said_in_its_words(live):
    told = {"error": {"code": "too_long", "message": "text is too long", "hint": "send less"}}
    live.answer = lambda route, address: route.fulfill(status=413, json=told)
    live.fill("#live-text", "x")
    until(live, "document.querySelector('.status').textContent.includes('text is too long: send')")


def test_checks_are_made_when_they_are_asked_for(live):
    bare = samples.sentence()
    object.__setattr__(bare, "derived", {})
    object.__setattr__(bare, "checks", {})
    live.reply = answered(bare)
    live.fill("#live-text", "the cat")
    live.wait_for_selector(".texts")
    live.click("#tab-checks")
    live.click("text=Measure now")
    live.wait_for_selector(".numbers")
    assert live.questions[-1][0] == "api/check"
    assert "ablation" in live.inner_text("table.checks")
    assert live.wrong == []


def again(live, *models):
    """Loads the page of a server with other models."""
    live.info = {"models": list(models), "limits": {"chars": 1000}}
    live.questions.clear()
    live.goto("http://regard.test/#")
    live.reload()
    live.wait_for_selector("#live-text")


def test_the_page_begins_with_an_example_and_says_what_the_model_reads(live):
    examples = ["night", "choir"]
    again(live, {"name": "g2p", "beam": 5, "reads": "text, letter by letter", "examples": examples})
    live.wait_for_selector(".texts")
    assert live.input_value("#live-text") == "night"
    assert live.inner_text("#live-reads").startswith("g2p reads text, letter by letter.")
    assert live.questions == [("api/run", {"text": "night"})]
    assert live.locator(".examples button").all_inner_texts() == examples
    live.click(".examples button:last-child")
    until_here(live, lambda: len(live.questions) == 2)
    assert live.input_value("#live-text") == "choir"
    assert live.wrong == []


@pytest.mark.long
def test_frames_are_pasted_as_rows_of_numbers(live):
    vectors = {"tokenizer": "vectors", "numbers": 2, "stack": 1}
    model = {"name": "speech", "beam": 1, "source": vectors, "example": [[0.5, 1], [2, -3]]}
    again(live, model)
    live.wait_for_selector(".texts")
    assert live.input_value("#live-text") == "0.5 1\n2 -3"
    assert live.questions == [("api/stream", {"frames": [[0.5, 1], [2, -3]]})]
    live.fill("#live-text", "1, 2\n3;4e-1\n\n")
    until_here(live, lambda: len(live.questions) == 2)
    assert live.questions[-1][1] == {"frames": [[1, 2], [3, 0.4]]}
    live.fill("#live-text", "1 2\n3 x")
    until(live, "document.querySelector('.status').textContent.includes('Line 2 has “x”')")
    assert live.wrong == []


FILES = {"name": "viewer", "reads": "pictures", "source": {"files": [".png", ".jpg"]}, "beam": 1}


def test_files_are_chosen_or_dropped(live):
    live.info = {"models": [FILES, {"name": "enfr"}], "limits": {"file_bytes": 9}}
    live.questions.clear()
    live.goto("http://regard.test/")
    live.wait_for_selector("#live-file")
    assert live.questions == []
    assert live.locator("#live-text").is_hidden()
    assert live.locator("#live-file").get_attribute("accept") == ".png,.jpg"
    picture = {"name": "cat.png", "mimeType": "image/png", "buffer": b"a picture"}
    live.set_input_files("#live-file", picture)
    until_here(live, lambda: len(live.questions) == 1)
    assert live.questions[0] == ("api/stream", {"file": "YSBwaWN0dXJl", "model": "viewer"})
    live.set_input_files("#live-file", {**picture, "buffer": b"too large."})
    until(live, "document.querySelector('.status').textContent.includes('10 bytes')")
    assert "takes 9 at most" in live.inner_text(".status")
    drop = """() => {
      const data = new DataTransfer();
      data.items.add(new File(["dropped"], "dog.png"));
      const place = document.querySelector('[data-place="live"]');
      for (const name of ["dragenter", "drop"]) {
        const about = { dataTransfer: data, bubbles: true, cancelable: true };
        place.dispatchEvent(new DragEvent(name, about));
      }
    }"""
    live.evaluate(drop)
    until_here(live, lambda: len(live.questions) == 2)
    assert live.questions[1][1]["file"] == "ZHJvcHBlZA=="
    live.select_option("select[aria-label=Model]", "enfr")
    assert live.locator("#live-text").is_visible()
    assert live.locator("#live-file").is_hidden()
    assert live.wrong == []


FORECAST = {
    "format": "regard-forecast",
    "version": 1,
    "name": "file",
    "title": "file: 4 steps after 2020-01-05",
    "legend": "line: history",
    "figure": '<svg xmlns="http://www.w3.org/2000/svg" width="90"><text>load</text></svg>',
    "notes": [],
}


def test_a_forecast_is_drawn_and_a_trace_takes_its_place(live):
    source = {"tokenizer": "series", "files": [".csv"]}
    models = [
        {"name": "load", "beam": 2, "source": source, "target": {"tokenizer": "numbers"}},
        {"name": "enfr", "beam": 2, "example": "the cat"},
    ]
    live.info = {"models": models, "limits": {"chars": 1000, "file_bytes": 100}}

    def answer(route, address):
        model = json.loads(route.request.post_data)["model"]
        checked = {**FORECAST, "notes": ["load: it changes most"]}
        found = checked if address == "api/check" else FORECAST
        route.fulfill(json=found if model == "load" else to_json(samples.sentence()))

    live.answer = answer
    live.goto("http://regard.test/")
    live.wait_for_selector("#live-file")
    rows = {"name": "load.csv", "mimeType": "text/csv", "buffer": b"a,b"}
    live.set_input_files("#live-file", files=[rows])
    live.wait_for_selector(".forecast svg")
    assert live.text_content(".forecast h2") == "load.csv: 4 steps after 2020-01-05"
    assert not live.is_visible(".workspace")
    live.click(".forecast .primary")
    live.wait_for_selector("text=load: it changes most")
    assert [address for address, _ in live.questions] == ["api/run", "api/check"]
    live.select_option("select", "enfr")
    live.wait_for_selector("#app[data-ready] .workspace")
    assert live.is_visible(".workspace")
    assert not live.is_visible(".forecast")
    live.select_option("select", "load")  # whose file is still chosen
    live.wait_for_selector(".forecast:not([hidden]) svg")
    assert not live.is_visible(".workspace")
    assert live.wrong == []


@pytest.mark.long
def test_a_picture_is_opened_as_one_after_a_text(live):
    source = {"tokenizer": "picture", "files": [".png"]}
    models = [
        {"name": "enfr", "beam": 2, "example": "the cat"},
        {"name": "digits", "beam": 2, "source": source},
        {"name": "words", "beam": 2, "source": {"tokenizer": "sound", "files": [".wav"]}},
    ]
    live.info = {"models": models, "limits": {"chars": 1000, "file_bytes": 100}}
    traces = {"enfr": samples.sentence(), "digits": samples.pictured()}

    def answer(route, address):
        route.fulfill(json=to_json(traces[json.loads(route.request.post_data)["model"]]))

    live.answer = answer
    live.goto("http://regard.test/")
    live.wait_for_selector("#app[data-ready][data-tab=text]")
    live.select_option("select", "digits")
    files = [{"name": "7.png", "mimeType": "image/png", "buffer": b"png"}]
    live.set_input_files("#live-file", files=files)
    live.wait_for_selector("#app[data-ready][data-tab=picture]")
    live.click("#tab-text")
    live.set_input_files("#live-file", files=[{**files[0], "name": "8.png"}])
    until_here(live, lambda: len(live.questions) == 3)
    live.wait_for_selector("#app[data-ready][data-tab=text]")
    live.select_option("select", "words")  # which reads no picture
    until(live, "document.querySelector('.workspace').offsetParent === null")
    assert live.input_value("#live-file") == ""
    assert len(live.questions) == 3
    assert live.wrong == []
