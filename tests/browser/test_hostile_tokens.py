"""Pages of a model whose tokenizer is hostile, in a real browser: nothing of it runs."""

import pytest

from browser.test_page import TABS, go_to
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
def test_no_token_runs(open_window, pages, name):
    page = open_window(pages[name].as_uri())
    if name == "page":
        for tab in TABS:
            go_to(page, tab)
    assert page.title() != "run"
    assert page.eval_on_selector_all("img", "all => all.length") == 0
    assert [url for url in page.asked if not url.startswith("file:")] == []
    assert page.wrong == []
    assert "<img/src=x" in page.content().replace("&lt;", "<")  # tokens are there as text
