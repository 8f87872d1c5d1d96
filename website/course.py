"""Read the chapters of docs/course, run their code, and write them as pages and notebooks.

A chapter is a folder. `chapter.toml` has its formulas, figures, claims and numbers, and `code.py`
its code, in cells that begin with `# %% name`. `en.md` and `zh.md` are texts that name them, so
that both languages have the same formulas, code and numbers:

    {{ formula NAME }}   a formula              {{ figure NAME }}   a figure with its caption
    {{ code NAME }}      a cell and its output  {{ claim NAME }}    a claim and the lab's verdict
    {{ NAME }}           a number, within a sentence
"""

import contextlib
import io
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from website.lab_results import HELPERS, claim

Language = Literal["en", "zh"]
#: a Python expression, or one with the format of its number
Expression = str | list[str]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)
ROOT: Final = Path(__file__).resolve().parents[1]
COURSE: Final = ROOT / "docs" / "course"
#: parts that a text names, and that both languages must name
PARTS: Final = ("formula", "code", "figure", "claim", "number")
CELL: Final = re.compile(r"^# %% (\S+)\n", re.MULTILINE)
BLOCK: Final = re.compile(r"^( *)\{\{ (formula|code|figure|claim) ([\w-]+) \}\}$", re.MULTILINE)
NUMBER: Final = re.compile(r"\{\{ ([\w-]+) \}\}")
#: a link from the text of one chapter to that of another
TO_CHAPTER: Final = re.compile(r"\]\(\.\./([\w-]+)/(?:en|zh)\.md(#[\w-]+)?\)")
LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\([^)]+\)")
#: a line break within a Chinese sentence
BREAK: Final = re.compile(
    r"([\u3001-\u3011\uff01-\uff5e])\n *(?=\S)(?![#|>?]|\d+\. |\{\{ (?:code|claim|figure|formula) )"
    r"|([\u4e00-\u9fff\u201d])\n *(?=[\u4e00-\u9fff\u201c\uff08])"
)
#: a folded answer, with its indented lines
ANSWER: Final = re.compile(r'^( *)\?\?\? \w+ "([^"]+)"\n((?:(?:\1 {4}.*)?\n)+)', re.MULTILINE)

WORDS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "output": "output",
        "lab": "The lab",
        "holds": "holds",
        "holds with limits": "holds with limits",
        "does not hold": "does not hold",
        "experiment": "experiment",
        "stop": ".",
        "notebook": "This chapter as a notebook",
        "other": "中文",
    },
    "zh": {
        "output": "输出",
        "lab": "实验",
        "holds": "成立",
        "holds with limits": "有条件地成立",
        "does not hold": "不成立",
        "experiment": "实验",
        "stop": "。",
        "notebook": "下载本章的笔记本",
        "other": "English",
    },
}


@dataclass(frozen=True)
class Chapter:
    """A chapter: its texts, and the parts that they name."""

    name: str
    titles: Mapping[str, str]
    formulas: Mapping[str, str]
    cells: Mapping[str, str]
    figures: Mapping[str, Mapping[str, str]]
    claims: Mapping[str, Mapping[str, str]]
    numbers: Mapping[str, Expression]
    texts: Mapping[Language, str]

    def named(self, part: str) -> set[str]:
        """Return the names of all formulas, or of another of `PARTS`."""
        return set(getattr(self, "cells" if part == "code" else f"{part}s"))

    def used(self, part: str, language: Language) -> list[str]:
        """Return the names of a part that a text uses, in order."""
        text = self.texts[language]
        if part == "number":
            return NUMBER.findall(text)
        return [name for _, kind, name in BLOCK.findall(text) if kind == part]


def read(folder: Path) -> Chapter:
    """Read a chapter from its folder."""
    table = tomllib.loads((folder / "chapter.toml").read_text("utf-8"))
    _, *pieces = CELL.split((folder / "code.py").read_text("utf-8"))
    cells = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    return Chapter(
        name=folder.name,
        titles=table["title"],
        formulas={name: formula.strip() for name, formula in table.get("formulas", {}).items()},
        cells=cells,
        figures=table.get("figures", {}),
        claims=table.get("claims", {}),
        numbers=table.get("numbers", {}),
        texts={language: (folder / f"{language}.md").read_text("utf-8") for language in LANGUAGES},
    )


def chapters() -> list[Chapter]:
    """Read all chapters, in order."""
    return [read(path.parent) for path in sorted(COURSE.glob("*/chapter.toml"))]


@dataclass(frozen=True)
class ChapterRun:
    """Results of the code of a chapter.

    Attributes:
        outputs: what each cell printed.
        numbers: the numbers of the text, formatted.
        folder: the files that the code wrote.
    """

    outputs: Mapping[str, str]
    numbers: Mapping[str, str]
    folder: Path


def run(chapter: Chapter, folder: Path) -> ChapterRun:
    """Run the cells of a chapter in a folder, and compute its numbers."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = {}
    with contextlib.chdir(folder):
        for name, code in chapter.cells.items():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"{chapter.name}: {name}", "exec"), namespace)
            outputs[name] = printed.getvalue().rstrip()
    known = {**namespace, **HELPERS}
    numbers = {name: _number(entry, known) for name, entry in chapter.numbers.items()}
    return ChapterRun(outputs, numbers, folder)


def _number(entry: Expression, known: dict[str, Any]) -> str:
    """Return the formatted value of an expression; several values are separated by commas."""
    expression, style = (entry, "") if isinstance(entry, str) else entry
    value = eval(expression, known)
    if isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        return format(value, style)
    return ", ".join(format(one, style) for one in value)


def localised(number: str, language: Language) -> str:
    """Return a number with the words around it in a language: `0.1 to 0.2`, `0.1 至 0.2`."""
    if language == "en":
        return number
    return re.sub(r"(?<=[\d%]) to (?=[-\d])", " 至 ", number).replace(" times", " 倍")


def joined(text: str) -> str:
    """Return a text without line breaks after Chinese letters, which would be shown as spaces.

    A break before Latin letters stays, since a space belongs there, unless a punctuation mark ends
    the line.
    """
    return BREAK.sub(lambda found: found[1] or found[2], text)


@dataclass(frozen=True)
class Expansion:
    """Expands the text of a chapter to Markdown.

    Attributes:
        chapter: the chapter.
        result: the results of its code.
        language: of the text.
        image: returns the address of a figure, from the file that `chapter.toml` names.
        code: returns the Markdown of a cell, from its name.
        lab_link: returns the address of an experiment's section in the report; None for no links.
    """

    chapter: Chapter
    result: ChapterRun
    language: Language
    image: Callable[[str], str]
    code: Callable[[str], str]
    lab_link: Callable[[str], str] | None

    def text(self) -> str:
        """Return the whole text, with its title, and with the answers still folded."""
        body = BLOCK.sub(self._block, joined(self.chapter.texts[self.language]))
        body = NUMBER.sub(self._number, body)
        return f"# {self.chapter.titles[self.language]}\n\n{body}"

    def _number(self, match: re.Match[str]) -> str:
        return localised(self.result.numbers[match[1]], self.language)

    def _block(self, match: re.Match[str]) -> str:
        indent, kind, name = match.groups()
        made = {
            "formula": lambda: f"$$\n{self.chapter.formulas[name]}\n$$",
            "code": lambda: self.code(name),
            "figure": lambda: self._figure(name),
            "claim": lambda: self._claim(name),
        }[kind]()
        return "\n".join(f"{indent}{line}".rstrip() for line in made.splitlines())

    def _figure(self, name: str) -> str:
        figure = self.chapter.figures[name]
        caption = figure[self.language]
        return f"![{caption}]({self.image(figure['file'])})\n\n*{caption}*"

    def _claim(self, name: str) -> str:
        entry, words = self.chapter.claims[name], WORDS[self.language]
        found = claim(entry["experiment"], entry["text"])
        said = found.text if self.language == "en" else entry["zh"]
        where = f"{words['experiment']} `{entry['experiment']}`"
        if self.lab_link is not None:
            where = f"[{where}]({self.lab_link(entry['experiment'])})"
        return (
            f"> **{words['lab']}: {words[found.verdict]}{words['stop']}** {said}"
            f"{' ' if self.language == 'en' else ''}({where})"
        )


def page(chapter: Chapter, result: ChapterRun, language: Language) -> str:
    """Return a chapter as a page of the site, course/LANGUAGE/NAME.md."""
    words = WORDS[language]

    def image(file: str) -> str:
        if (result.folder / file).exists():
            return f"../figures/{chapter.name}/{file}"
        return f"../../{file.removeprefix('results/')}"

    def code(name: str) -> str:
        printed = result.outputs[name]
        shown = f'\n\n```text title="{words["output"]}"\n{printed}\n```' if printed else ""
        return f"```python\n{chapter.cells[name]}\n```{shown}"

    text = Expansion(
        chapter, result, language, image, code, lambda name: f"../../lab-report/README.md#{name}"
    ).text()
    other = next(one for one in LANGUAGES if one != language)
    head, title, rest = text.partition("\n\n")
    links = (
        f"[{words['other']}](../{other}/{chapter.name}.md){{ hreflang={other} }} · "
        f"[{words['notebook']}](../notebooks/{chapter.name}.{language}.ipynb)"
    )
    body = TO_CHAPTER.sub(lambda found: f"]({found[1]}.md{found[2] or ''})", rest)
    return f"---\nlang: {language}\n---\n\n{head}{title}{links}\n\n{body}"


def notebook(chapter: Chapter, result: ChapterRun, language: Language) -> dict[str, Any]:
    """Return a chapter as a notebook, with its figures inside and the outputs of its cells.

    Links lead out of the notebook and become their text. Code in an answer is part of the text.
    """
    from nbformat import v4

    attachments: dict[str, dict[str, str]] = {}

    def image(file: str) -> str:
        path = result.folder / file
        source = path if path.exists() else ROOT / "docs" / file
        stem = source.name
        attachments[stem] = {"image/svg+xml": source.read_text("utf-8")}
        return f"attachment:{stem}"

    text = Expansion(
        chapter, result, language, image, lambda name: f"\0{name}\0", lab_link=None
    ).text()
    text = ANSWER.sub(lambda found: _folded(found, chapter), text)
    *texts_and_names, last = text.split("\0")
    cells = []
    for part, name in zip(texts_and_names[::2], texts_and_names[1::2], strict=True):
        cells.append(v4.new_markdown_cell(LINK.sub(r"\1", part.strip())))
        printed = result.outputs[name]
        outputs = [v4.new_output("stream", text=f"{printed}\n")] if printed else []
        cells.append(v4.new_code_cell(chapter.cells[name], outputs=outputs))
    cells.append(v4.new_markdown_cell(LINK.sub(r"\1", last.strip())))
    for number, made in enumerate(cells):
        made["id"] = f"cell-{number}"  # the same at every build
        own = {stem: content for stem, content in attachments.items() if f":{stem})" in made.source}
        if own:
            made["attachments"] = {stem: _encoded(content) for stem, content in own.items()}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found: dict[str, Any] = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    return found


def _folded(found: re.Match[str], chapter: Chapter) -> str:
    """Return an answer as `details`, which notebooks fold."""
    indent, summary, body = found.groups()
    lines = [line[len(indent) + 4 :] for line in body.splitlines()]
    inside = re.sub(
        "\0([\\w-]+)\0", lambda name: f"```python\n{chapter.cells[name[1]]}\n```", "\n".join(lines)
    )
    whole = f"<details><summary>{summary}</summary>\n\n{inside.strip()}\n\n</details>"
    return "\n".join(f"{indent}{line}".rstrip() for line in whole.splitlines()) + "\n\n"


def _encoded(content: Mapping[str, str]) -> dict[str, str]:
    """Return the attachment with its SVG in base64, as notebooks store pictures."""
    import base64

    return {kind: base64.b64encode(text.encode()).decode() for kind, text in content.items()}
