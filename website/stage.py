"""Collect the pages of the site in one folder: guides, course, gallery and reference.

Links between files of the repository become links between pages. A linked file that is no page is
copied, so that every link works without a network.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from website import course

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
#: pages from outside of docs/, and where they go
MOVED: Final = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "conduct.md",
    "RELEASING.md": "releasing.md",
    "SECURITY.md": "security.md",
    "README.md": "readme.md",
    "deploy/README.md": "launch.md",
    "README.zh.md": "zh/readme.md",
    "docs/index.zh.md": "zh/index.md",
    "recipes/README.md": "recipes-guide.md",
    "benchmarks/peers/README.md": "peers.md",
}
#: folders of docs/ that are copied as they are, and where they go
FOLDERS: Final = {
    "figures": "figures",
    "results/lab-report": "lab-report",
    "course/drawings": "course/drawings",
}
#: the sections of the site; `*` stands for pages of a folder that are named nowhere else
NAV: Final[dict[str, Any]] = {
    "Start": ["index.md", "readme.md"],
    "Course": ["course/README.md", "course/en/*"],
    "中文课程": ["zh/index.md", "zh/readme.md", "course/zh/*"],
    "Guides": {
        "Use": ["models.md", "python.md"],
        "Train": [
            *("train.md", "fine-tuning.md", "tasks.md", "labels.md", "numbers.md"),
            *("language.md", "questions.md", "summaries.md", "sound.md"),
            *("pictures.md", "forecasting.md", "vectors.md", "word-vectors.md", "small_data.md"),
            *("copying.md", "memory.md", "monotonic.md", "runs.md"),
        ],
        "See": [
            *("seeing.md", "any-model.md", "attribution.md", "heads.md", "what-if.md"),
            *("compare.md", "viewers.md", "zoo.md", "words.md"),
        ],
        "Deploy": ["prediction.md", "export.md"],
        "Scale": ["scale.md", "distributed.md", "shards.md", "launch.md"],
        "More": ["*"],
    },
    "Gallery": ["gallery.md"],
    "Results": [
        *("recipes.md", "recipes-guide.md", "benchmarks.md", "decoding-speed.md", "kernels.md"),
        *("lab.md", "lab-report/README.md", "worked-example.md", "peers.md"),
    ],
    "Reference": ["mechanisms.md", "reference/*", "maths/*"],
    "Contribute": [
        *("architecture.md", "contributing.md", "changelog.md"),
        *("releasing.md", "security.md", "conduct.md"),
    ],
}
FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[`~]* *$", re.MULTILINE | re.DOTALL)
INLINE_CODE: Final = re.compile(r"(`+).+?\1", re.DOTALL)
LINK: Final = re.compile(r"(\]\()([^)\s]+)((?: \"[^\"]*\")?\))")
#: an item of a list that follows a line of text, which Python-Markdown reads as part of it
TIGHT_LIST: Final = re.compile(r"^((?!\s|[-*|>#]|\d+\.).+)\n(?=(?:- |\d+\. ))", re.MULTILINE)
NESTED_ITEM: Final = re.compile(r"^ {2}(- .*(?:\n {4}(?! *-).*)*)", re.MULTILINE)


class BrokenLinkError(Exception):
    """A link of a page that leads nowhere."""


def site_path(path: Path) -> str | None:
    """Return the page or file of the site that a file of the repository becomes; None if none."""
    name = path.relative_to(ROOT).as_posix()
    if name in MOVED:
        return MOVED[name]
    if found := re.fullmatch(r"docs/course/([\w-]+)/(en|zh)\.md", name):
        return f"course/{found[2]}/{found[1]}.md"
    if found := re.fullmatch(r"src/regard/ops/(\w+)/README\.md", name):
        return f"maths/{found[1]}.md"
    # pages of the rooms of docs/ keep short addresses
    return re.sub("^docs/(guides/|results/)?", "", name) if name.startswith("docs/") else None


def sources() -> dict[Path, str]:
    """Return the Markdown files that become pages, but for the course, with their paths."""
    files = [*DOCS.glob("*.md"), *DOCS.glob("guides/*.md"), *DOCS.glob("results/**/*.md")]
    files.append(DOCS / "course" / "README.md")
    files += [ROOT / name for name in MOVED if not name.startswith("docs/")]
    files += sorted((ROOT / "src" / "regard" / "ops").glob("*/README.md"))
    return {path: site_path(path) or "" for path in files if path.exists()}


def outside_code(text: str, change: Any) -> str:
    """Apply a function to all parts of a Markdown text that are no code."""

    def without(pattern: re.Pattern[str], part: str, then: Any) -> str:
        made, end = [], 0
        for found in pattern.finditer(part):
            made += [then(part[end : found.start()]), found[0]]
            end = found.end()
        return "".join([*made, then(part[end:])])

    return without(FENCE, text, lambda part: without(INLINE_CODE, part, change))


def links(text: str) -> Iterator[str]:
    """Return the targets of all relative links of a Markdown text."""
    found: list[str] = []

    def collect(part: str) -> str:
        found.extend(target for _, target, _ in LINK.findall(part))
        return part

    outside_code(text, collect)
    return (target for target in found if not re.match(r"[a-z]+:|#|/", target))


def relink(text: str, source: Path, page: str, out: Path | None = None) -> str:
    """Return the text of a file with its links as those of a page; files go to `out`.

    Raises BrokenLinkError if a link leads to no file.
    """

    def new_target(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        if re.match(r"[a-z]+:|#|/", target):
            return found[0]
        file, mark, anchor = target.partition("#")
        path = Path(os.path.normpath(source.parent / file))
        if not path.exists() or ROOT not in path.parents:
            raise BrokenLinkError(f"{source.relative_to(ROOT)} links to {target}, which is missing")
        goal = site_path(path)
        if goal is None:
            goal = f"files/{path.relative_to(ROOT).as_posix()}"
            if path.is_dir():
                raise BrokenLinkError(
                    f"{source.relative_to(ROOT)} links to the folder {target}; link to a file"
                )
            if out is not None:
                (out / goal).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, out / goal)
        relative = os.path.relpath(goal, os.path.dirname(page) or ".")
        return f"{before}{Path(relative).as_posix()}{mark}{anchor}{after}"

    return outside_code(text, lambda part: LINK.sub(new_target, part))


def for_python_markdown(text: str) -> str:
    """Return a text with blank lines before lists and wider indents, as Python-Markdown needs.

    The mark of code that the tests do not run is removed.
    """
    text = re.sub(r"^( *```\w+) no-run *$", r"\1", text, flags=re.MULTILINE)

    def loosen(part: str) -> str:
        part = TIGHT_LIST.sub(r"\1\n\n", part)
        return NESTED_ITEM.sub(
            lambda found: "\n".join(f"    {line.strip()}" for line in found[1].splitlines()), part
        )

    made, end = [], 0
    for found in FENCE.finditer(text):
        made += [loosen(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*made, loosen(text[end:])])


def stage_guides(out: Path) -> None:
    """Write the guides, and what they show and link to."""
    for folder, place in FOLDERS.items():
        shutil.copytree(DOCS / folder, out / place, dirs_exist_ok=True)
    shutil.copy(DOCS / "architecture.svg", out)
    for source, page in sources().items():
        path = out / page
        path.parent.mkdir(parents=True, exist_ok=True)
        text = for_python_markdown(relink(source.read_text("utf-8"), source, page, out))
        header = "template: home.html\n" if Path(page).name == "index.md" else ""
        if page.startswith("zh/"):
            header, text = f"{header}lang: zh\n", course.joined(text)
        if header:
            text = f"---\n{header}---\n\n{text}"
        path.write_text(text, encoding="utf-8")


def stage_course(out: Path) -> None:
    """Write the pages, figures and notebooks of all chapters, as docs/course has them."""
    import nbformat

    (out / "course" / "notebooks").mkdir(parents=True, exist_ok=True)
    for chapter in course.chapters():
        for figure in (course.COURSE / chapter.name).glob("*.svg"):
            place = out / "course" / chapter.name / figure.name
            place.parent.mkdir(exist_ok=True)
            shutil.copy(figure, place)
        for language in course.LANGUAGES:
            source = course.COURSE / chapter.name / f"{language}.md"
            page = site_path(source) or ""
            text = relink(source.read_text("utf-8"), source, page, out)
            (out / page).parent.mkdir(exist_ok=True)
            (out / page).write_text(course.page(text, language, chapter.name), encoding="utf-8")
            made = nbformat.from_dict(course.notebook(source))
            nbformat.validate(made)
            nbformat.write(made, out / "course" / "notebooks" / f"{chapter.name}.{language}.ipynb")


def navigation(out: Path) -> list[Any]:
    """Return the sections of the site with the pages that are there.

    Raises FileNotFoundError if a page is missing that is not optional.
    """
    there = {path.relative_to(out).as_posix() for path in out.rglob("*.md")}
    listed = {page for section in _flat(NAV) for page in section if not page.endswith("*")}
    missing = listed - there
    if missing:
        raise FileNotFoundError(f"the navigation lists {sorted(missing)}, which is not there")

    def pages(entries: list[str]) -> Iterator[str]:
        for entry in entries:
            if not entry.endswith("*"):
                yield from [entry] if entry in there else []
                continue
            folder = entry[:-1]
            here = (page for page in there - listed if page.startswith(folder))
            yield from sorted(page for page in here if "/" not in page[len(folder) :])

    def section(name: str, content: Any) -> dict[str, Any]:
        if isinstance(content, dict):
            return {name: [section(*inner) for inner in content.items() if _any(inner[1])]}
        found = list(pages(content))
        return {name: found[0] if len(found) == 1 else found}

    def _any(content: Any) -> bool:
        return any(True for _ in pages(content))

    return [section(*entry) for entry in NAV.items()]


def _flat(content: Any) -> Iterator[list[str]]:
    if isinstance(content, dict):
        for inner in content.values():
            yield from _flat(inner)
    else:
        yield content
