"""Draw the architectures of the course: docs/course/drawings/*.svg.

    python -m website.drawings           # write the drawings
    python -m website.drawings --check   # exit with 1 if one is out of date

Labels are symbols, so that one drawing serves both languages.
"""

import re
import sys
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "course" / "drawings"
WIDTH, HEIGHT = 46, 34
STYLE: Final = """
text { font: 15px Georgia, serif; fill: #1f2937; text-anchor: middle; dominant-baseline: central }
.word { font: 13px system-ui, sans-serif }
.small { font-size: 13px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
.in { fill: #f1f5f9; stroke: #64748b } .state { fill: #dbeafe; stroke: #2563eb }
.mix { fill: #ffedd5; stroke: #c2410c } .out { fill: #dcfce7; stroke: #15803d }
path { fill: none; stroke: #475569; stroke-width: 1.4 } .look { stroke: #c2410c }
.far { stroke: #c2410c; stroke-dasharray: 4 3 } .back { fill: #ffffff }
""".strip()
MARKER: Final = (
    '<defs><marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
    'style="fill:{colour};stroke:none"/></marker></defs>'
)
Shapes = Iterator[str]


def label(text: str) -> str:
    """Return a label, in which `_` lowers the digits and letters that follow: `h_1`."""
    lowered = r'<tspan dy="5" font-size="10">\1</tspan><tspan dy="-5">&#8203;</tspan>'
    return re.sub(r"_(\w+)", lowered, escape(text))


def box(x: float, y: float, text: str, kind: str, width: float = WIDTH) -> str:
    """Return a box with a label, around its middle."""
    return (
        f'<rect class="{kind}" x="{x - width / 2:g}" y="{y - HEIGHT / 2:g}" width="{width:g}" '
        f'height="{HEIGHT}" rx="6"/>{word(x, y, text)}'
    )


def word(x: float, y: float, text: str, kind: str = "") -> str:
    """Return a label without a box."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{label(text)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "") -> str:
    """Return an arrow between two points."""
    style = f' class="{kind}"' if kind else ""
    head = "warm" if kind in ("look", "far") else "cool"
    return f'<path{style} d="M{x1:g} {y1:g}L{x2:g} {y2:g}" marker-end="url(#{head})"/>'


def up(x: float, low: float, high: float, kind: str = "") -> str:
    """Return an arrow from the top of a box to the bottom of another."""
    return arrow(x, low - HEIGHT / 2, x, high + HEIGHT / 2 + 2, kind)


def across(left: float, right: float, y: float) -> str:
    """Return an arrow from a box to the next in its row."""
    return arrow(left + WIDTH / 2, y, right - WIDTH / 2 - 2, y)


def rnn_forms() -> Shapes:
    """Draw (a) one output for each input, and (b) encoder, one vector, decoder."""
    yield word(22, 24, "(a)", "word")
    for i in range(4):
        x = 60 + 76 * i
        yield from (box(x, 216, f"x_{i + 1}", "in"), box(x, 140, f"h_{i + 1}", "state"))
        yield from (box(x, 64, f"y_{i + 1}", "out"), up(x, 216, 140), up(x, 140, 64))
        if i:
            yield across(x - 76, x, 140)
    yield word(372, 24, "(b)", "word")
    for i in range(4):
        x = 400 + 66 * i
        yield from (box(x, 216, f"x_{i + 1}", "in"), box(x, 140, f"h_{i + 1}", "state"))
        yield up(x, 216, 140)
        if i:
            yield across(x - 66, x, 140)
    middle = 400 + 66 * 4 + 4
    yield from (box(middle, 140, "c", "mix"), across(middle - 70, middle, 140))
    for i in range(3):
        x = middle + 70 + 66 * i
        yield from (box(x, 140, f"s_{i + 1}", "state"), box(x, 64, f"y_{i + 1}", "out"))
        yield from (up(x, 140, 64), across(x - (66 if i else 70), x, 140))


def bahdanau() -> Shapes:
    """Draw additive attention for the second output: encoder below, decoder above."""
    names, top = ("1", "2", "3", "T"), (160, 300, 440)
    for i, name in enumerate(names):
        x = 90 + 132 * i + (24 if name == "T" else 0)
        yield from (box(x, 356, f"x_{name}", "in"), box(x, 282, f"h_{name}", "state"))
        yield from (up(x, 356, 282), arrow(x, 265, 300 + (x - 300) * 0.10, 205, "look"))
        yield word(x + (300 - x) * 0.378 - 14, 240, f"α_2{name}", "small")
        if i:
            before = 90 + 132 * (i - 1)
            yield across(before, x, 282)
    yield word(434, 262, "…", "word")
    yield box(300, 186, "c_2", "mix")
    for i, x in enumerate(top):
        yield from (box(x, 110, f"s_{i + 1}", "state"), box(x, 36, f"y_{i + 1}", "out"))
        yield up(x, 110, 36)
        if i:
            yield across(top[i - 1], x, 110)
    yield up(300, 186, 110, "look")
    # the last decoder state asks
    yield '<path class="far" d="M160 127C164 160 220 176 275 184" marker-end="url(#warm)"/>'


def self_attentive_rnn() -> Shapes:
    """Draw one step of the self-attentive RNN, t = 4."""
    for i in range(4):
        x = 90 + 120 * i
        yield from (box(x, 286, f"x_{i + 1}", "in"), box(x, 200, f"h_{i + 1}", "state"))
        yield up(x, 286, 200)
        yield box(x, 70, f"c_{i + 1}", "mix")
        if i < 3:
            curve = f"M{x + 23:g} 76C{x + 62:g} 90 {x + 62:g} 190 {x + 95:g} 198"
            yield f'<path d="{curve}" marker-end="url(#cool)"/>'
    for i in range(4):
        x = 90 + 120 * i
        yield arrow(x, 183, 450 + (x - 450) * 0.06, 89, "look")
        yield word(x + (450 - x) * 0.15 - 20, 168, f"α_4{i + 1}", "small")


def self_attention() -> Shapes:
    """Draw self-attention without matrices, for the second of four inputs."""
    for i in range(4):
        x = 80 + 130 * i
        yield box(x, 330, f"x_{i + 1}", "in")
        yield box(x, 236, f"e_2{i + 1}", "state")
        yield up(x, 330, 236)
        if i != 1:
            start, end = (233, x - 8) if x > 210 else (187, x + 8)
            curve = f"M{start} 322C{(start + x) / 2:g} 296 {x:g} 300 {end} 256"
            yield f'<path class="far" d="{curve}" marker-end="url(#warm)"/>'
        yield box(x, 156, f"α_2{i + 1}", "state")
        yield up(x, 236, 156)
        yield arrow(x, 139, 275 + (x - 275) * 0.12, 71, "look")
    yield word(275, 197, "softmax", "word")
    yield box(275, 52, "y_2", "out")
    yield word(396, 50, "= α_21 x_1 + … + α_24 x_4")
    yield word(540, 282, "e_2j = x_2 · x_j")


DRAWINGS: Final[dict[str, tuple[Callable[[], Shapes], int, int]]] = {
    "rnn-forms": (rnn_forms, 900, 250),
    "bahdanau": (bahdanau, 580, 392),
    "self-attentive-rnn": (self_attentive_rnn, 520, 320),
    "self-attention": (self_attention, 600, 364),
}


def render(name: str) -> str:
    """Return a drawing as SVG."""
    draw, width, height = DRAWINGS[name]
    markers = MARKER.format(name="cool", colour="#475569") + MARKER.format(
        name="warm", colour="#c2410c"
    )
    shapes = "\n".join(draw())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}">\n<style>{STYLE}</style>\n{markers}\n'
        f'<rect class="back" width="{width}" height="{height}"/>\n{shapes}\n</svg>\n'
    )


def main() -> None:
    """Write the drawings, or check them."""
    stale = []
    for name in DRAWINGS:
        path, text = FOLDER / f"{name}.svg", render(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run python -m website.drawings")


if __name__ == "__main__":
    main()
