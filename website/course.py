"""Run the code of the course's chapters, and write docs/course/NN-name/en.md and zh.md.

    python -m website.course           # write all chapters
    python -m website.course 03 05     # write these

A chapter's source is a folder of docs/course/source. `chapter.toml` has its formulas, figures,
claims and numbers, and `code.py` its code, in cells that begin with `# %% name`. `en.md` and
`zh.md` are texts that name them, so that both languages have the same formulas, code and numbers:

    {{ formula NAME }}   a formula              {{ figure NAME }}   a figure with its caption
    {{ code NAME }}      a cell and its output  {{ claim NAME }}    a claim and the lab's verdict
    {{ NAME }}           a number, within a sentence

The code of the Chinese chapter is that of the English one with the replacements of `[chinese]`,
and runs in Chinese, so that its figures and its output are Chinese too. The site and the notebooks
are made from the written chapters.
"""

import base64
import contextlib
import io
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from regard.messages import use_language
from website.lab_results import HELPERS, claim

Language = Literal["en", "zh"]
#: a Python expression, or one with the format of its number
Expression = str | list[str]
LANGUAGES: Final[tuple[Language, ...]] = get_args(Language)
DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
COURSE: Final = DOCS / "course"
SOURCE: Final = COURSE / "source"
#: parts that a text names, and that both languages must name
PARTS: Final = ("formula", "code", "figure", "claim", "number")
CELL: Final = re.compile(r"^# %% (\S+)\n", re.MULTILINE)
BLOCK: Final = re.compile(r"^( *)\{\{ (formula|code|figure|claim) ([\w-]+) \}\}$", re.MULTILINE)
NUMBER: Final = re.compile(r"\{\{ ([\w-]+) \}\}")
IMAGE: Final = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\([^)]+\)")
LABEL: Final = re.compile(r"(?<=>)[^<>\n]+(?=</text>)")
#: a line break within a Chinese sentence
BREAK: Final = re.compile(
    r"([\u3001-\u3011\uff01-\uff5e])\n *(?=\S)(?![#|>?]|\d+\. |\{\{ (?:code|claim|figure|formula) )"
    r"|([\u4e00-\u9fff\u201d])\n *(?=[\u4e00-\u9fff\u201c\uff08])"
)
INLINE_FORMULA: Final = re.compile(r"\$[^$\n]+\$")
#: an answer of a source, and of a written chapter, with their indents
ANSWER: Final = re.compile(r'^( *)\?\?\? \w+ "([^"]+)"\n((?:(?:\1 {4}.*)?\n)+)', re.MULTILINE)
DETAILS: Final = re.compile(
    r"^( *)<details><summary>([^<]+)</summary>\n(.*?)^\1</details>\n", re.MULTILINE | re.DOTALL
)
MATHS: Final = re.compile(r"^( *)```math\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
#: a cell of a written chapter that is in no answer, and what it printed
WRITTEN_CELL: Final = re.compile(
    r'^```python\n(.*?)\n```\n(?:\n```text title="\w+"\n(.*?)\n```\n)?', re.MULTILINE | re.DOTALL
)

WORDS: Final[dict[Language, dict[str, str]]] = {
    "en": {
        "output": "output",
        "lab": "The lab",
        "holds": "holds",
        "holds with limits": "holds with limits",
        "does not hold": "does not hold",
        "experiment": "experiment",
        "colon": ": ",
        "stop": ".",
        "all": "all chapters",
        "notebook": "this chapter as a notebook",
        "other": "中文",
    },
    "zh": {
        "output": "输出",
        "lab": "实验",
        "holds": "成立",
        "holds with limits": "有条件地成立",
        "does not hold": "不成立",
        "experiment": "实验",
        "colon": "：",
        "stop": "。",
        "all": "全部章节",
        "notebook": "下载本章的笔记本",
        "other": "English",
    },
}


@dataclass(frozen=True)
class Chapter:
    """The source of a chapter: its texts, and the parts that they name.

    Attributes:
        chinese: replacements in the code and the formulas of the Chinese chapter.
    """

    name: str
    titles: Mapping[str, str]
    formulas: Mapping[str, str]
    cells: Mapping[str, str]
    chinese: Mapping[str, str]
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

    def translated(self, text: str, language: Language) -> str:
        """Return a cell, a formula or an expression in a language."""
        for english in sorted(self.chinese, key=len, reverse=True) if language == "zh" else ():
            text = text.replace(english, self.chinese[english])
        return text


def read(folder: Path) -> Chapter:
    """Read a chapter from the folder of its source."""
    table = tomllib.loads((folder / "chapter.toml").read_text("utf-8"))
    _, *pieces = CELL.split((folder / "code.py").read_text("utf-8"))
    cells = dict(zip(pieces[::2], (piece.strip() for piece in pieces[1::2]), strict=True))
    return Chapter(
        name=folder.name,
        titles=table["title"],
        formulas={name: formula.strip() for name, formula in table.get("formulas", {}).items()},
        cells=cells,
        chinese=table.get("chinese", {}),
        figures=table.get("figures", {}),
        claims=table.get("claims", {}),
        numbers=table.get("numbers", {}),
        texts={language: (folder / f"{language}.md").read_text("utf-8") for language in LANGUAGES},
    )


def chapters() -> list[Chapter]:
    """Read the sources of all chapters, in order."""
    return [read(path.parent) for path in sorted(SOURCE.glob("*/chapter.toml"))]


@dataclass(frozen=True)
class ChapterRun:
    """Results of the code of a chapter in a language.

    Attributes:
        outputs: what each cell printed.
        numbers: the numbers of the text, formatted.
        folder: the files that the code wrote.
    """

    outputs: Mapping[str, str]
    numbers: Mapping[str, str]
    folder: Path


def run(chapter: Chapter, language: Language, folder: Path) -> ChapterRun:
    """Run the cells of a chapter in a folder, and compute its numbers."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = {}
    with contextlib.chdir(folder), use_language(language):
        for name in chapter.cells:
            printed = io.StringIO()
            code = chapter.translated(chapter.cells[name], language)
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"{chapter.name}: {name}", "exec"), namespace)
            lines = printed.getvalue().rstrip().splitlines()
            outputs[name] = "\n".join(line.rstrip() for line in lines)
    known = {**namespace, **HELPERS}
    numbers = {}
    for name, entry in chapter.numbers.items():
        expression, style = (entry, "") if isinstance(entry, str) else entry
        value = eval(chapter.translated(expression, language), known)
        numbers[name] = localised(_formatted(value, style), language)
    return ChapterRun(outputs, numbers, folder)


def _formatted(value: Any, style: str) -> str:
    """Return a value as text; several values are separated by commas."""
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


def spaced(text: str) -> str:
    """Return a text with a space before each formula, and between a formula and a Chinese letter.

    GitHub shows a formula in a line only if it stands apart.
    """

    def apart(found: re.Match[str]) -> str:
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        left = " " if before and not before.isspace() else ""
        right = " " if re.match(r"[\u4e00-\u9fff]", after) else ""
        return f"{left}{found[0]}{right}"

    return INLINE_FORMULA.sub(apart, text)


def chinese_labels(svg: str) -> str:
    """Return a figure of the lab with Chinese labels, as `source/labels.toml` translates them."""
    labels = tomllib.loads((SOURCE / "labels.toml").read_text("utf-8"))
    return LABEL.sub(lambda found: labels.get(found[0].strip(), found[0]), svg)


@dataclass
class Writer:
    """Writes a chapter in a language as Markdown that GitHub shows.

    Attributes:
        chapter: its source.
        result: the results of its code.
        language: of the text.
        files: figures of the chapter's own by name, filled by `text`.
    """

    chapter: Chapter
    result: ChapterRun
    language: Language
    files: dict[str, str]

    def text(self) -> str:
        """Return the whole text, with its title."""
        words, (other,) = WORDS[self.language], set(LANGUAGES) - {self.language}
        body = ANSWER.sub(_folded, joined(self.chapter.texts[self.language]))
        body = NUMBER.sub(
            lambda found: self.result.numbers[found[1]], BLOCK.sub(self._block, spaced(body))
        )
        links = f"[{words['other']}]({other}.md) · [{words['all']}](../README.md)"
        return f"# {self.chapter.titles[self.language]}\n\n{links}\n\n{body}"

    def _block(self, match: re.Match[str]) -> str:
        indent, part, name = match.groups()
        made = {
            "formula": self._formula,
            "code": self._code,
            "figure": self._figure,
            "claim": self._claim,
        }[part](name)
        return "\n".join(f"{indent}{line}".rstrip() for line in made.splitlines())

    def _formula(self, name: str) -> str:
        formula = self.chapter.translated(self.chapter.formulas[name], self.language)
        return f"```math\n{formula}\n```"

    def _code(self, name: str) -> str:
        code = self.chapter.translated(self.chapter.cells[name], self.language)
        printed = self.result.outputs[name]
        title = WORDS[self.language]["output"]
        shown = f'\n\n```text title="{title}"\n{printed}\n```' if printed else ""
        return f"```python\n{code}\n```{shown}"

    def _figure(self, name: str) -> str:
        figure = self.chapter.figures[name]
        caption = figure[self.language]
        return f"![{caption}]({self._image(figure['file'])})\n\n*{caption}*"

    def _image(self, file: str) -> str:
        """Return the address of a figure: one of the code's, translated, or one of docs/."""
        path = Path(self.result.folder / file)
        own = path if path.exists() else DOCS / file
        svg = own.read_text("utf-8")
        if self.language == "zh" and chinese_labels(svg) != svg:
            svg = chinese_labels(svg)
        elif own != path:
            return Path(os.path.relpath(own, COURSE / self.chapter.name)).as_posix()
        stem = f"{own.stem}.zh.svg" if self.language == "zh" else own.name
        self.files[stem] = svg
        return stem

    def _claim(self, name: str) -> str:
        entry, words = self.chapter.claims[name], WORDS[self.language]
        found = claim(entry["experiment"], entry["text"])
        said = found.text if self.language == "en" else entry["zh"]
        experiment = entry["experiment"]
        report = f"../../results/lab-report/README.md#{experiment}"
        said += " " if self.language == "en" else ""
        verdict = f"{words['lab']}{words['colon']}{words[found.verdict]}{words['stop']}"
        return f"> **{verdict}** {said}([{words['experiment']} `{experiment}`]({report}))"


def _folded(found: re.Match[str]) -> str:
    """Return an answer as `details`, which GitHub and notebooks fold."""
    indent, summary, body = found.groups()
    lines = [line.removeprefix("    ") for line in body.rstrip().splitlines()]
    inside = "\n".join(lines)
    return f"{indent}<details><summary>{summary}</summary>\n\n{inside}\n\n{indent}</details>\n\n"


def write(chapter: Chapter, language: Language) -> dict[str, str]:
    """Run a chapter's code and return the files of its folder: the text, and its figures."""
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(chapter, run(chapter, language, Path(folder)), language, {})
        return {f"{language}.md": writer.text().rstrip() + "\n"} | writer.files


def page(text: str, language: Language, name: str) -> str:
    """Return the text of a written chapter for the site, with a link to its notebook."""
    text = MATHS.sub(r"\1$$\n\2\1$$", text)
    text = DETAILS.sub(_details_of_the_site, text)
    head, links, rest = text.split("\n\n", 2)
    links += f" · [{WORDS[language]['notebook']}](../notebooks/{name}.{language}.ipynb)"
    return f"---\nlang: {language}\n---\n\n{head}\n\n{links}\n\n{rest}"


def _details_of_the_site(found: re.Match[str]) -> str:
    indent, summary, body = found.groups()
    inside = "\n".join(f"    {line}" if line else "" for line in body.strip("\n").splitlines())
    return f'{indent}??? success "{summary}"\n{inside}\n'


def notebook(path: Path) -> dict[str, Any]:
    """Return a written chapter as a notebook, with its figures inside and the outputs of its cells.

    Links lead out of the notebook and become their text. Code in an answer is part of the text.
    """
    from nbformat import v4

    head, _, text = MATHS.sub(r"\1$$\n\2\1$$", path.read_text("utf-8")).split("\n\n", 2)
    cells, end = [], 0

    def add_text(part: str) -> None:
        attachments = {}

        def attach(found: re.Match[str]) -> str:
            file = path.parent / found[2]
            encoded = base64.b64encode(file.read_bytes()).decode()
            attachments[file.name] = {"image/svg+xml": encoded}
            return f"![{found[1]}](attachment:{file.name})"

        source = IMAGE.sub(attach, LINK.sub(r"\1", part.strip()))
        if source:
            own = {"attachments": attachments} if attachments else {}
            cells.append(v4.new_markdown_cell(source, **own))

    for found in WRITTEN_CELL.finditer(text):
        add_text(("" if cells else f"{head}\n\n") + text[end : found.start()])
        outputs = [v4.new_output("stream", text=f"{found[2]}\n")] if found[2] else []
        cells.append(v4.new_code_cell(found[1], outputs=outputs))
        end = found.end()
    add_text(text[end:])
    for number, made in enumerate(cells):
        made["id"] = f"cell-{number}"  # the same at every build
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found_notebook: dict[str, Any] = v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    return found_notebook


def main(numbers: list[str]) -> None:
    """Write the chapters whose names begin with one of some numbers, or all."""
    for chapter in chapters():
        if numbers and not chapter.name.startswith(tuple(numbers)):
            continue
        folder = COURSE / chapter.name
        files = {name: text for one in LANGUAGES for name, text in write(chapter, one).items()}
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        print(f"docs/course/{chapter.name}: {', '.join(sorted(files))}")


if __name__ == "__main__":
    main(sys.argv[1:])
