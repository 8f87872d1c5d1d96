"""A view as a figure: SVG that stands alone, without scripts, and loads nothing; PNG and PDF."""

from collections import defaultdict
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from regard.seeing.drawing import Box, Cells, Drawing, Shape, Words
from regard.seeing.labels import safe
from regard.seeing.layout import WHAT, lay_out
from regard.seeing.palette import colour
from regard.seeing.sentences import sentences
from regard.seeing.terminal import Scale
from regard.seeing.view import View

FONT: Final = (
    "system-ui, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', 'Noto Sans CJK JP', "
    "'Noto Sans Arabic', sans-serif"
)
#: colours of cells that are not shapes of their own
LEVELS: Final = 64
#: outputs that the description tells of
TOLD: Final = 40


def svg(view: View, *, scale: Scale = "fixed") -> str:
    """The figure as SVG."""
    drawing = Drawing(lay_out(view, scale))
    size = f"{drawing.width:.0f}", f"{drawing.height:.0f}"
    title = safe(view.title)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
            f'viewBox="0 0 {" ".join(size)}" role="img" aria-label={quoteattr(f"{WHAT}: {title}")} '
            f'font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(' '.join(sentences(view, most_rows=TOLD)))}</desc>",
            *map(_written, drawing.shapes()),
            "</svg>\n",
        ]
    )


def png(view: View, *, scale: Scale = "fixed") -> bytes:
    """The figure as PNG, at two pixels to each of the SVG's."""
    from regard.seeing import plot

    return plot.render(Drawing(lay_out(view, scale)), "png")


def pdf(view: View, *, scale: Scale = "fixed") -> bytes:
    """The figure as PDF."""
    from regard.seeing import plot

    return plot.render(Drawing(lay_out(view, scale)), "pdf")


def _written(shape: Shape) -> str:
    if isinstance(shape, Words):
        return _words(shape)
    return _box(shape) if isinstance(shape, Box) else _cells(shape)


def _words(words: Words) -> str:
    place = f'x="{words.x:.1f}" y="{words.y:.1f}"'
    if words.angle:
        place = f'transform="translate({words.x:.1f} {words.y:.1f}) rotate(-{words.angle})"'
    anchor = "" if words.anchor == "start" else f' text-anchor="{words.anchor}"'
    bold = ' font-weight="700"' if words.bold else ""
    style = f'font-size="{words.size}" fill="{words.fill}"{anchor}{bold}'
    # pointing at a number points at its cell
    return f'<text {place} {style} pointer-events="none">{escape(words.text)}</text>'


def _box(box: Box) -> str:
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    stroke = "" if box.stroke is None else f' stroke="{box.stroke}" stroke-width="{box.thick}"'
    dashes = ' stroke-dasharray="4 3"' if box.dashed else ""
    said = f"<title>{escape(box.said)}</title>" if box.said else ""
    return f'<rect {place} fill="{box.fill or "none"}"{stroke}{dashes}>{said}</rect>'


def _cells(cells: Cells) -> str:
    """One shape for all cells of a colour: a large map stays a small file."""
    paths = defaultdict(list)
    levels = (cells.shares.clip(0, 1) * LEVELS).round().astype(int)
    for i, j in zip(*levels.nonzero(), strict=True):
        paths[int(levels[i, j])].append(f"M{j} {i}h1v1h-1z")
    place = f"translate({cells.x:.1f} {cells.y:.1f}) scale({cells.cell})"
    drawn = (
        f'<path fill="{colour(level / LEVELS)}" d="{"".join(path)}"/>'
        for level, path in sorted(paths.items())
    )
    return "\n".join([f'<g transform="{place}" shape-rendering="crispEdges">', *drawn, "</g>"])
