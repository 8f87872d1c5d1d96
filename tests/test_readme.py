"""The code and the commands in README.md and in the guides run, on files made for them."""

import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from cli.tools import regard
from documentation import reader_files
from regard.cli import app
from regard.training import make_config, parse_overrides
from regard.training.config import check_model

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("results/*.md")]
PAGES = sorted([ROOT / "README.md", *PAGES, ROOT / "recipes" / "README.md"])
# the code of Chinese pages is that of the English ones, which is tested below
PAGES = [page for page in PAGES if not page.name.endswith(".zh.md")]

# ```python is run, ```python no-run is not
BLOCK = re.compile(r"^```python *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh *\n(.*?)^``` *$", re.MULTILINE | re.DOTALL)
#: a command in a table of the README
CELL = re.compile(r"^\|[^|\n]*\| `(regard [^`\n]+)` \|", re.MULTILINE)
ENDS = ("|", "&&", ";", ">")

#: why a command is checked by its parser alone: it begins with this word, or has one that does
NOT_RUN = {
    "serve": "does not end by itself",
    "--ray": "starts a cluster: tests/jobs",
    "strategy=": "trains in several processes: tests/training/test_sharded.py",
    "adapter=": "has no size, which pages are run with: tests/training/test_adapters.py",
    "runs/lora": "made by the command above",
    "recipes/": "takes minutes or public data: tests/recipes",
    "runs/recipes/": "resumes a run of a recipe: tests/recipes",
    "organisation/model": "needs a network",
    "lab": "takes minutes: tests/lab",
    "few.tsv": "has the size of its start: tests/training/test_fine_tuning.py",
    "./my-encoder": "has a size of its own: tests/imported trains from encoders",
    "--install-completion": "changes the reader's shell",
    "export": "takes seconds: tests/kinds/test_life.py exports each kind of data",
}
#: commands that are run nevertheless
RUN = (["lab", "--list"], ["export", "g2p"])
#: words of commands that take seconds, which `make long` runs
LONG = ("--methods", "--versus", "said.html", "heads.html", "export")
#: guides that take seconds: `make test` reads their commands, and `make long` runs them
LONG_PAGES = (
    *("any-model", "attribution", "compare", "distributed", "fine-tuning", "forecasting", "heads"),
    *("import", "labels", "language", "memory", "models", "monotonic", "numbers", "pictures"),
    *("python", "questions", "seeing", "shards", "sound", "summaries", "train", "vectors"),
    *("what-if", "word-vectors"),
)
#: steps, layers and heads that small models do not have
SHORTER = {
    "runs/enfr@500": "runs/enfr@1",
    "runs/a@500": "runs/a@1",
    "0-3,31": "0-1",
    "0,5": "0,3",
}


class Command(NamedTuple):
    """A command of a page: its words, what is piped into it, and where its output goes."""

    words: list[str]
    stdin: str = ""
    output: str | None = None


def code(page, text):
    """The blocks of a page, each on the line where it stands, so that tracebacks point there."""
    for match in BLOCK.finditer(text):
        before = text[: match.start(1)].count("\n")
        yield compile("\n" * before + match.group(1), str(page), "exec")


def parts(page):
    """The code of a page in its order, compiled Python and lines of a shell."""
    text = page.read_text(encoding="utf-8")
    places = [match.start() for match in BLOCK.finditer(text)]
    found = list(zip(places, code(page, text), strict=True))
    for pattern in (SHELL, CELL):
        for match in pattern.finditer(text):
            lines = match[1].replace("\\\n", " ").splitlines()
            found += [(match.start() + i / 1000, line) for i, line in enumerate(lines)]
    return [part for _, part in sorted(found, key=lambda pair: pair[0])]


def commands(line, folder=None):
    """Yield what is typed after `regard`; with a folder, `printf` writes files there."""
    line = re.sub(r"\$'([^']*)'", lambda match: f"'{escaped(match[1])}'", line)
    if folder is not None:
        line = re.sub(r"\$\(cat (\S+)\)", lambda match: (folder / match[1]).read_text(), line)
    reader = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    reader.whitespace_split, reader.commenters = True, "#"
    words, stdin = list(reader), ""
    while words:
        end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
        here, sign, words = words[:end], words[end : end + 1], words[end + 1 :]
        output = words.pop(0) if sign == [">"] else None
        start = here.index("regard") + 1 if "regard" in here else 0
        if start == 1 or (start and here[start - 2] == "-m"):
            yield Command(here[start:], stdin, output)
        text = escaped(here[1]) if here[0] in ("echo", "printf") else ""
        if folder is not None and output is not None and text:
            (folder / output).write_text(text)
        stdin = text + "\n" if here[0] == "echo" else text


def escaped(text):
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def reason_not_to_run(words):
    if words in RUN:
        return None
    for word, reason in NOT_RUN.items():
        if words[0] == word or any(other.startswith(word) for other in words[1:]):
            return reason
    return None


def is_run(words, whole):
    costs = not whole and any(word in words for word in LONG)
    return reason_not_to_run(words) is None and not costs


def check_options(words):
    """Let the parser of a command read its words, and that of settings those of `train`."""
    if words[0].startswith("-"):
        return
    verb, *rest = words
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), verb)
    assert command is not None, verb
    with typer.Context(command) as context:
        options, _, _ = command.make_parser(context).parse_args(list(rest))
    settings = [word for word in rest if re.fullmatch(r"[a-z_]+=\S+", word)]
    if verb == "train" and settings and not any("recipes/" in word for word in rest):
        changes = parse_overrides(settings)
        preset = {"preset": options["preset"]} if options.get("preset") else {}
        check_model(make_config({"data": "pairs.tsv", **preset, **changes}))


def run(command, folder):
    """Run a command in this process, a `train` of it for a step."""
    words = [SHORTER.get(word, word) for word in command.words]
    if words[0] == "train" and "--resume" not in words:
        # the next of several ways to say it has the folder for itself
        named = words[words.index("-o") + 1] if "-o" in words else "nothing"
        shutil.rmtree(folder / named, ignore_errors=True)
    if words[0] == "train":
        words += reader_files.BRIEF if "--resume" not in words else ["steps=2"]
    result = regard(*words, stdin=command.stdin)
    assert result.exit_code == 0, f"regard {' '.join(words)}\n{result.output[-2000:]}"
    if words[0] == "train" and "-o" not in words and "--resume" not in words:
        shutil.rmtree(folder / result.stdout.strip())
    if command.output is not None:
        (folder / command.output).write_text(result.stdout)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("reader")


@pytest.mark.parametrize(
    ("page", "whole"),
    [
        pytest.param(
            *(page, whole),
            id=f"{page.relative_to(ROOT)}{', all of it' * whole}",
            marks=[pytest.mark.long] if whole or page.stem in LONG_PAGES else [],
        )
        for page in PAGES
        for whole in (False, True)
    ],
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of libraries, which a reader would see and ignore
def test_code_and_commands_of_a_page_run(page, whole, tmp_path, kept, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what is written goes there
    namespace = {"__name__": "__main__"}
    for part in parts(page):
        if not isinstance(part, str):
            exec(part, namespace)
            continue
        typed = list(commands(part))
        if typed and not any(is_run(command.words, whole) for command in typed):
            continue
        for word in re.findall(r"[\w./@-]+", part.partition("  #")[0]):
            reader_files.provide(word, tmp_path, kept)
        for command in commands(part, tmp_path):
            if is_run(command.words, whole):
                run(command, tmp_path)


def test_pages_have_commands_of_many_verbs_with_options_that_exist():
    found = [
        command.words
        for page in PAGES
        for part in parts(page)
        if isinstance(part, str)
        for command in commands(part)
    ]
    for words in dict.fromkeys(map(tuple, found)):
        check_options(list(words))
    ran = [words for words in found if reason_not_to_run(words) is None]
    assert {"train", "predict", "show", "evaluate", "align", "lab"} <= {words[0] for words in ran}
    assert {"serve", "export"} <= {words[0] for words in found}
    assert len(ran) > len(found) / 2
    for word in NOT_RUN:  # none of the exceptions is left over
        assert any(words[0] == word or any(w.startswith(word) for w in words) for words in found)


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
    assert CELL.findall(chinese) == CELL.findall(english) != []
    index, translated = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("index.md", "index.zh.md")
    )
    assert blocks(translated) == blocks(index) != []
    links = [
        sorted(set(re.findall(r"\]\(([^)]+)\)", text)) - {"README.md", "README.zh.md"})
        for text in (english, chinese)
    ]
    assert links[0] == links[1]
    headings = [len(re.findall(r"^## ", text, re.MULTILINE)) for text in (english, chinese)]
    assert headings[0] == headings[1]
    assert "](README.zh.md)" in english.split("\n\n")[1]
    assert "](README.md)" in chinese.split("\n\n")[1]
