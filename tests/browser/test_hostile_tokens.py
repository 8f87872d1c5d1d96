"""Pages of a model whose tokenizer is hostile, in a real browser: nothing of it runs."""

import pytest

from pretrained import hostile

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    hugging = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("hostile")
    folders = [hostile.save(hugging, root / name, seed) for seed, name in enumerate("ab")]
    return hostile.write_pages(folders, hostile.write_texts(root / "texts.txt"), root)


@pytest.mark.parametrize("name", ["page", "heads", "compare"])
def test_no_token_runs(chromium, pages, name):
    context = chromium.new_context(offline=True)
    try:
        page = context.new_page()
        asked, wrong, dialogs = [], [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: dialogs.append(dialog.message))
        page.goto(pages[name].as_uri())
        if name in ("page", "long"):
            for tab in ("text", "matrix", "heads", "checks"):
                page.click(f"#tab-{tab}")
                page.wait_for_selector(f"#app[data-tab={tab}]")
        assert page.title() != "run"
        assert page.eval_on_selector_all("img", "all => all.length") == 0
        assert [url for url in asked if not url.startswith("file:")] == []
        assert (wrong, dialogs) == ([], [])
        # tokens are there as text
        assert "<img/src=x" in page.content().replace("&lt;", "<") or name == "long"
    finally:
        context.close()
