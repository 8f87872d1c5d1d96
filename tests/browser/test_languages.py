"""The page in Chinese: the switch, what it leaves in English, and what the server is told."""

import pytest

from browser.test_live import again, event, live  # noqa: F401
from browser.test_page import until, until_here

#: Latin words of texts and labels that a reader meets; tokens and code are data
WORDS = """() => {
  const found = new Set();
  const add = (text) => (text.match(/[A-Za-z]{3,}/g) ?? []).forEach((word) => found.add(word));
  const data = "bdi, code, kbd, script, style, h1, output, [lang=en], " +
    ".meta, .numbers li, .numbers dl, .help dt, .what-if select";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (!node.parentElement.closest(data) && node.parentElement.checkVisibility()) add(node.data);
  }
  for (const name of ["aria-label", "placeholder"]) {
    for (const node of document.querySelectorAll(`#app [${name}]`)) add(node.getAttribute(name));
  }
  return [...found];
}"""
#: names of files and methods, and the tokens that the sentence about the selection quotes
NAMES = {"SVG", "PNG", "CSV", "JSON", "regard", "tau", "the", "chat", "cat"}


def test_the_switch_turns_every_text_chinese_and_is_remembered(visit):
    page = visit("sentence")
    assert page.inner_text("#language") == "中文"
    assert page.get_attribute("html", "lang") == "en"
    page.click("#language")
    until(page, "document.querySelector('.sentence').textContent.includes('关注了')")
    assert page.get_attribute("html", "lang") == "zh-CN"
    assert page.inner_text("#language") == "English"
    for tab in ("text", "matrix", "heads", "checks"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#app[data-tab={tab}]")
        assert set(page.evaluate(WORDS)) <= NAMES, tab
    page.click('[data-place="help"]')
    assert set(page.evaluate(WORDS)) <= NAMES
    page.keyboard.press("Escape")
    page.reload()
    page.wait_for_selector("#app[data-ready]")
    assert page.inner_text("#tab-text") == "文本"
    page.click("#language")
    assert page.inner_text("#tab-text") == "Text"
    assert page.wrong == []


MODEL = {
    "name": "g2p",
    "beam": 1,
    "about": "words to phonemes",
    "reads": "text",
    "examples": ["night", "choir"],
    "said": {"zh": {"about": "单词转音素", "reads": "文本"}},
}


def test_the_live_page_speaks_and_asks_in_the_language_of_the_reader(live):  # noqa: F811
    asked = []
    live.on("request", lambda request: asked.append(request.headers.get("accept-language")))
    again(live, MODEL)
    live.wait_for_selector(".texts")
    assert live.inner_text("#live-reads") == "g2p: words to phonemes. g2p reads text."
    live.click("#language")
    assert live.inner_text("#live-reads") == "g2p：单词转音素。g2p 读取文本。"
    assert live.get_attribute("#live-text", "placeholder") == "输入内容，看答案关注了哪里"
    live.eval_on_selector_all(
        ".what-if > details", "all => all.forEach((one) => { one.open = true })"
    )
    assert set(live.evaluate(WORDS)) <= NAMES
    asked.clear()
    live.click(".examples button:last-child")
    until_here(live, lambda: "zh" in asked)
    assert live.wrong == []


@pytest.mark.long
def test_a_refusal_and_a_length_reach_the_reader_and_the_server(live):  # noqa: F811
    again(live, MODEL)
    live.wait_for_selector(".texts")
    live.click("#language")
    live.eval_on_selector(".what-if > details", "one => { one.open = true }")
    live.fill("text=最多词元数 >> xpath=.. >> input", "7")
    live.press("text=最多词元数 >> xpath=.. >> input", "Enter")
    until_here(live, lambda: live.questions[-1][1].get("max_len") == 7)
    live.answer = lambda route, address: route.fulfill(
        body=event("error", {"error": {"message": "文本太长", "hint": "少写一些"}}),
        content_type="text/event-stream",
    )
    live.fill("#live-text", "y")
    until(live, "document.querySelector('.status').textContent === '文本太长：少写一些。'")


@pytest.mark.long
def test_the_link_opens_the_same_text(live):  # noqa: F811
    again(live, MODEL)
    live.wait_for_selector(".texts")
    live.context.grant_permissions(["clipboard-read", "clipboard-write"])
    live.click("#tab-matrix")
    live.click("text=Copy link")
    until(live, "document.querySelector('.plain [role=status]').textContent.includes('link')")
    # a page without https may not use the clipboard, and then names the address itself
    link = live.evaluate("location.href")
    live.goto("about:blank")
    live.goto(link)
    live.wait_for_selector("canvas.map")
    assert live.input_value("#live-text") == "night"
    assert live.get_attribute("#tab-matrix", "aria-selected") == "true"
