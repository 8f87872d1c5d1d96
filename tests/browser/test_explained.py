"""Query, key and score of a cell, in a real browser."""

from browser.test_page import go_to, stage


def test_a_cell_is_explained_by_its_query_and_key(visit):
    page = visit("explained", "#tab=matrix&head=1&layer=0&row=0&column=0")
    text = page.inner_text(".explained")
    names, values = (page.locator(f".explained {tag}").all_inner_texts() for tag in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    # q.k = 4 * 2 - 1 = 7, and the softmax of 3.5 and three zeros is 0.92
    assert facts == {"q · k": "7.000", "scale": "0.500", "score": "3.500", "weight": "0.92"}
    bars = page.locator(".explained li").all_inner_texts()
    assert [" ".join(bar.split()) for bar in bars[:2]] == [
        "dimension 0 4.000",
        "dimension 3 −0.500",
    ]
    assert "Largest of 5 dimensions" in text
    stage(page).press("ArrowRight")
    assert "0.000" in page.locator(".explained dd").first.inner_text()
    assert page.wrong == []


def test_a_mean_of_heads_is_not_explained(visit):
    page = visit("explained", "#tab=matrix&head=mean&layer=0")
    assert "Choose one head" in page.inner_text(".explained")
    go_to(page, "text")
    assert page.wrong == []
