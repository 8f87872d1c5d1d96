"""Write the tables of the documents from benchmarks/results; no number in them is typed.

    python -m benchmarks.pages.render            # all documents, and the report of the lab
    python -m benchmarks.pages.render --check    # write nothing; 1 if a document is out of date
    python -m benchmarks.pages.render --lab DIR  # take over what `regard lab --full -o DIR` wrote

A document says where a table stands, which description of it to use, and the results, if any:

    <!-- table decoding decoding/h200-rnn.json -->
    ...
    <!-- /table -->
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import RESULTS, ROOT
from benchmarks.pages import recipes, tables

DOCS: Final = ROOT / "docs"
BLOCK: Final = re.compile(r"(<!-- table (.*?) -->\n).*?(<!-- /table -->)", re.DOTALL)
#: by the name in a document; each gets the results that are named beside it
TABLES: Final[dict[str, Callable[..., str]]] = {
    "decoding": tables.decoding,
    "training": tables.training,
    "toolkits": lambda *reports: tables.toolkits(reports),
    "prediction": tables.prediction,
    "precision": tables.precision,
    "word-alignment": tables.word_alignment,
    "export": tables.export,
    "fine-tuning": tables.fine_tuning,
    "models": tables.models,
    "recipes": recipes.overview,
    "recipe-tasks": recipes.task_sections,
    "recipe-times": recipes.time_to_quality,
    "recipe-runs": recipes.runs,
    "recipe-signatures": recipes.signatures,
}


def read(name: str) -> Any:
    """Return a result."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def rendered(text: str) -> str:
    """Return a document with its tables as the results give them."""

    def block(found: re.Match[str]) -> str:
        name, *files = found[2].split()
        return f"{found[1]}\n{TABLES[name](*map(read, files)).strip()}\n\n{found[3]}"

    return BLOCK.sub(block, text)


def documents() -> list[Path]:
    """Return the documents that have tables."""
    return [path for path in sorted(DOCS.rglob("*.md")) if BLOCK.search(path.read_text("utf-8"))]


def lab_report(into: Path, *, figures: bool = True) -> None:
    """Write the report of the saved results of the lab, and its figures as SVG."""
    from regard.lab import report, runner

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(RESULTS / "lab", folder / runner.RESULTS_DIR)
        sections = report.write(folder)
        print(report.count_verdicts(claim for part in sections for claim in part.claims))
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "report.md", into / "README.md")
        if not figures:
            return
        shutil.rmtree(into / report.FIGURES_DIR, ignore_errors=True)
        (into / report.FIGURES_DIR).mkdir()
        for path in sorted((folder / report.FIGURES_DIR).glob("*.svg")):
            shutil.copy(path, into / report.FIGURES_DIR)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    parser.add_argument("--lab", type=Path, metavar="DIR", help="what `regard lab -o` wrote")
    args = parser.parse_args()
    if args.lab is not None:
        for path in sorted((args.lab / "results").glob("*.json")):
            shutil.copy(path, RESULTS / "lab")
        lab_report(DOCS / "results" / "lab-report")
        return
    old = []
    for path in documents():
        before = path.read_text("utf-8")
        after = rendered(before)
        if after != before:
            old.append(str(path.relative_to(ROOT)))
            if not args.check:
                path.write_text(after, "utf-8")
    if args.check and old:
        sys.exit(f"{', '.join(old)}: out of date: run `python -m benchmarks.pages.render`.")


if __name__ == "__main__":
    main()
