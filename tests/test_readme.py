"""The code in README.md and in the guide runs, and its commands are such as regard knows."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from regard.cli import app
from regard.training import make_config, parse_overrides
from regard.training.config import check_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").glob("*.md")])

# ```python is run, ```python no-run is not
BLOCK = re.compile(r"^```python *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)


def code(page, text):
    """The blocks of a page, each on the line where it stands, so that tracebacks point there."""
    for match in BLOCK.finditer(text):
        before = text[: match.start(1)].count("\n")
        yield compile("\n" * before + match.group(1), str(page), "exec")


#: pages whose code takes more than half a second, as where it loads transformers
SLOW = ("any-model.md", "what-if.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in SLOW else ())
        for page in PAGES
    ],
)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what a block writes goes there
    namespace = {"__name__": "__main__"}
    for block in code(page, page.read_text(encoding="utf-8")):
        exec(block, namespace)


SHELL = re.compile(r"^```sh *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)
ENDS = ("|", "&&", ">", "2>")
MORE = [ROOT / folder / "README.md" for folder in ("recipes", "benchmarks/sweeps")]
#: where the settings of a recipe are, which are not those of its command
RECIPE = "recipes/"


def commands(text):
    """What is typed after `regard` in a page's blocks of sh, split into words."""
    for block in SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True, posix=True)
            for start, word in enumerate(words):
                if word == "regard" and (start == 0 or words[start - 1] in ("|", "&&")):
                    rest = words[start + 1 :]
                    ends = [
                        i for i, w in enumerate(rest) if w in ("|", ">", "&&", "2>") or ";" in w
                    ]
                    yield rest[: min(ends, default=len(rest))]


EVERY = [
    pytest.param(words, id=f"{page.stem}: {' '.join(words)}"[:90])
    for page in (
        *PAGES,
        ROOT / "recipes" / "README.md",
        ROOT / "benchmarks" / "sweeps" / "README.md",
    )
    for words in commands(page.read_text(encoding="utf-8"))
    if words and not words[0].startswith("-")
]


@pytest.mark.parametrize("words", EVERY)
def test_commands_of_the_pages_are_known(words):
    verb, *rest = words
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), verb)
    assert command is not None, verb
    with typer.Context(command) as context:
        options, _, _ = command.make_parser(context).parse_args(list(rest))
    settings = [word for word in rest if re.fullmatch(r"[a-z_]+=\S+", word)]
    if verb == "train" and settings and not any(RECIPE in word for word in rest):
        changes = parse_overrides(settings)
        preset = {"preset": options["preset"]} if options.get("preset") else {}
        check_model(make_config({"data": "pairs.tsv", **preset, **changes}))


def test_pages_have_commands_of_many_verbs():
    verbs = {param.values[0][0] for param in EVERY}
    assert {"train", "predict", "show", "evaluate", "serve", "export", "align", "lab"} <= verbs


def blocks(text):
    """All blocks of code, without their comments, which may be in another language."""
    found = re.findall(r"^```(\w+) *\n(.*?)^``` *$", text, re.MULTILINE | re.DOTALL)
    return [(kind, re.sub(r" *# .*", "", code)) for kind, code in found]


def test_the_chinese_readme_has_the_same_code_links_and_sections():
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh.md")
    )
    assert len(blocks(english)) == 5
    assert blocks(chinese) == blocks(english)
    links = [
        sorted(set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh.md"})
        for text in (english, chinese)
    ]
    assert links[0] == links[1]
    headings = [len(re.findall(r"^## ", text, re.MULTILINE)) for text in (english, chinese)]
    assert headings[0] == headings[1]
    assert "](README.zh.md)" in english.split("\n\n")[1]
    assert "](README.md)" in chinese.split("\n\n")[1]


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
