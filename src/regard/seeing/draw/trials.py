"""Figure of a search: the dev score of each trial over its budget."""

from collections.abc import Iterator, Mapping, Sequence

from regard.messages import message
from regard.seeing.draw.shapes import (
    LIGHT,
    BoxShape,
    ChartAxis,
    LineShape,
    Shape,
    TextShape,
    to_svg,
    wrap,
)
from regard.seeing.page.report import short_number

Curves = Mapping[int, Sequence[tuple[float, float]]]
#: pixels of the figure, and of the axes in it
LEFT, RIGHT, TOP, BOTTOM = 68.0, 860.0, 90.0, 400.0


def draw_trials(curves: Curves, best: int, metric: str, text: str) -> str:
    """Return curves as SVG, that of the first trial dark and that of the best in another colour.

    Args:
        curves: by trial, the share of its budget and its score at each evaluation.
        best: the best trial.
        metric: the name of the score.
        text: a sentence under the title.
    """
    title = message("search.title", metric=metric, trials=len(curves))
    layout = _TrialsLayout(curves, best, title, wrap(text, " ", 125)[:2])
    return to_svg(layout, LIGHT, title=title, label=title, description=text)


class _TrialsLayout:
    """The shapes of the figure."""

    width, height = RIGHT + 20, BOTTOM + 40

    def __init__(self, curves: Curves, best: int, title: str, lines: Sequence[str]) -> None:
        self.curves, self.best, self.title, self.lines = curves, best, title, lines

    def shapes(self) -> Iterator[Shape]:
        """Yield the shapes from back to front, the first trial and the best one in front."""
        axis = ChartAxis.over([y for curve in self.curves.values() for _, y in curve])
        yield BoxShape(0.0, 0.0, self.width, self.height, fill=LIGHT.ground)
        yield TextShape(LEFT, 24, self.title, 14, LIGHT.text, bold=True)
        for place, line in enumerate(self.lines):
            yield TextShape(LEFT, 44 + 18 * place, line, 12, LIGHT.dim)

        def at(share: float, score: float) -> tuple[float, float]:
            return LEFT + share * (RIGHT - LEFT), BOTTOM - axis.share(score) * (BOTTOM - TOP)

        for tick in axis.ticks:
            (left, y), end = at(0.0, tick), at(1.0, tick)
            yield LineShape([(left, y), end], LIGHT.line, 1.0)
            yield TextShape(left - 8, y + 4, short_number(tick), 11, LIGHT.dim, "end")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            yield TextShape(at(share, 0.0)[0], BOTTOM + 18, f"{share:.0%}", 11, LIGHT.dim, "middle")
        for trial in sorted(self.curves, key=lambda trial: (trial == self.best, trial == 1)):
            stroke = LIGHT.mark if trial == self.best else LIGHT.colour(0.8 if trial == 1 else 0.35)
            points = [at(min(x, 1.0), y) for x, y in self.curves[trial]]
            yield LineShape(points, stroke, 2.0 if trial in (1, self.best) else 1.2)
            x, y = points[-1]
            yield TextShape(x - 2, y - 4, str(trial), 10, stroke, "end")
