"""The code in README.md and in the guide runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

# ```python is run, ```python no-run is not
BLOCK = re.compile(r"^```python *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)


def code(page, text):
    """The blocks of a page, each on the line where it stands, so that tracebacks point there."""
    for match in BLOCK.finditer(text):
        before = text[: match.start(1)].count("\n")
        yield compile("\n" * before + match.group(1), str(page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes goes there
    namespace = {"__name__": "__main__"}
    for block in code(page, page.read_text(encoding="utf-8")):
        exec(block, namespace)


TEXT = """
```python
x = 5
```
text
```python no-run
x = 7
```
```bash
x = 11
```
```python
y = x + 1
```
"""


def test_blocks_share_their_names_and_the_rest_is_left_out():
    namespace = {}
    for block in code("page.md", TEXT):
        exec(block, namespace)
    assert (namespace["x"], namespace["y"]) == (5, 6)


def test_a_broken_block_is_seen_on_its_line():
    (block,) = code("page.md", "one\n\n```python\nx = 1\nunknown\n```\n")
    with pytest.raises(NameError) as caught:
        exec(block, {})
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_page_with_code_is_read():
    assert any(list(code(page, page.read_text(encoding="utf-8"))) for page in PAGES)
