"""Draw the folders of the package and their imports as docs/architecture.svg.

    python -m benchmarks.tools.architecture           # write the drawing
    python -m benchmarks.tools.architecture --check   # exit with 1 if it is out of date

Each folder is a box with the first line of its docstring, above all that it imports. An arrow is an
import, unless a longer chain of arrows implies it.
"""

import argparse
import ast
import sys
import textwrap
from html import escape
from typing import Final

from benchmarks.harness import ROOT
from benchmarks.tools.house import Package

DRAWING: Final = ROOT / "docs" / "architecture.svg"
#: box of the files in the root of the package
FOUNDATION: Final = "foundation"
WIDTH, HEIGHT, GAP_X, GAP_Y, LINE = 196, 74, 16, 46, 14
#: letters of a description that fit into a box
LETTERS: Final = 30
STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: #1f2937 } .name { font: 600 14px ui-monospace,
monospace } rect { fill: #f8fafc; stroke: #64748b } path { fill: none; stroke: #94a3b8 }
.head { fill: #94a3b8; stroke: none }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb } rect { fill: #1e293b } }
"""


def imports_of(package: Package) -> dict[str, set[str]]:
    """Return the folders that each folder imports."""
    found: dict[str, set[str]] = {}
    for file in package.files:
        mine = folder(package, package.module(file))
        if mine is None:
            continue
        others = {folder(package, name) for name in package.imported(file)}
        found.setdefault(mine, set()).update(other for other in others if other not in (None, mine))
    return found


def folder(package: Package, module: str) -> str | None:
    """Return the folder of a module; None for ways in, such as the root, which import all."""
    _, *parts = module.split(".")
    if not parts or parts in (["__main__"], ["sklearn"]):
        return None
    inside = (package.source / "regard" / parts[0]).is_dir()
    return parts[0] if inside else FOUNDATION


def depths(graph: dict[str, set[str]]) -> dict[str, int]:
    """Return the row of each folder from the top: one below the lowest that imports it."""
    found: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in found:
            above = (depth(other) for other in sorted(graph) if name in graph[other])
            found[name] = 1 + max(above, default=-1)
        return found[name]

    return {name: depth(name) for name in sorted(graph)}


def direct(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that no longer chain of imports implies."""

    def reached(name: str) -> set[str]:
        return graph[name].union(*(reached(other) for other in graph[name]))

    return {
        name: others - set().union(*(reached(other) for other in others))
        for name, others in graph.items()
    }


def description(package: Package, name: str) -> str:
    """Return the first line of a folder's docstring."""
    if name == FOUNDATION:
        return "Errors, masks, devices, symbols and files: modules in the root."
    file = package.source / "regard" / name / "__init__.py"
    return (ast.get_docstring(package.trees[file]) or "").partition("\n")[0]


def draw(package: Package) -> str:
    """Return the drawing as SVG."""
    graph = imports_of(package)
    row_of = depths(graph)
    rows = [sorted(n for n in graph if row_of[n] == r) for r in range(max(row_of.values()) + 1)]
    width = max(len(row) for row in rows) * (WIDTH + GAP_X) + GAP_X
    height = len(rows) * (HEIGHT + GAP_Y) + GAP_X
    corners: dict[str, tuple[float, float]] = {}
    for place, row in enumerate(rows):
        left = (width - len(row) * (WIDTH + GAP_X) + GAP_X) / 2
        for i, name in enumerate(row):
            corners[name] = (left + i * (WIDTH + GAP_X), GAP_X + place * (HEIGHT + GAP_Y))
    arrows = [
        _arrow(corners[name], corners[other])
        for name, others in sorted(direct(graph).items())
        for other in sorted(others)
    ]
    boxes = [_box(name, description(package, name), *corners[name]) for name in sorted(graph)]
    title = "Folders of regard; each imports only folders below it"
    body = "\n".join([f"<title>{title}</title><style>{STYLE}</style>", *arrows, *boxes])
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n{body}\n</svg>\n'


def _arrow(upper: tuple[float, float], lower: tuple[float, float]) -> str:
    x, y = upper[0] + WIDTH / 2, upper[1] + HEIGHT
    to_x, to_y = lower[0] + WIDTH / 2, lower[1]
    bend = GAP_Y * 0.8
    curve = f"M{x:g},{y:g} C{x:g},{y + bend:g} {to_x:g},{to_y - bend:g} {to_x:g},{to_y:g}"
    head = f"M{to_x - 4:g},{to_y - 7:g} h8 l-4,7 z"
    return f'<path d="{curve}"/><path class="head" d="{head}"/>'


def _box(name: str, text: str, x: float, y: float) -> str:
    lines = textwrap.wrap(text, LETTERS, max_lines=3, placeholder=" ...")
    rows = "".join(
        f'<text x="{x + 8:g}" y="{y + 34 + i * LINE:g}">{escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
        f'<text class="name" x="{x + 8:g}" y="{y + 18:g}">{escape(name)}</text>{rows}'
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    drawing = draw(Package(ROOT))
    if parser.parse_args(arguments).check:
        if DRAWING.exists() and DRAWING.read_text(encoding="utf-8") == drawing:
            return 0
        print(
            "docs/architecture.svg is out of date: run `python -m benchmarks.tools.architecture`."
        )
        return 1
    DRAWING.write_text(drawing, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
