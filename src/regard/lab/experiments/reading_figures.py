"""Figures of reading: each word's weights over its past, and what looking back gains."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from regard.lab.experiment import Data, Plot
from regard.lab.experiments.reading_terms import LECTURE, PLAIN, POSITIONS, SELF_RNN
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import interval
from regard.seeing.palette import MARK, colour, ink


def draw(data: Data) -> list[Plot]:
    """Each word's weights as the lecture draws them, and what looking back gains."""
    lecture = [
        f"{word}?" if word in data["unknown"] else word.upper() if word == "fbi" else word
        for word in LECTURE
    ]
    plots = [_maps(data, "lecture", lecture), _gains(data)]
    if data["unknown"]:
        plots.insert(1, _maps(data, "own", data["runs"][SELF_RNN][0]["own_words"]))
    return plots


def _maps(data: Data, key: str, words: Sequence[str]) -> Plot:
    figure, axes = new_figure(rows=2)
    figure.set_size_inches(8.0, 7.2)
    for panel, name in zip(axes, PLAIN, strict=True):
        tables = torch.tensor([run[key] for run in data["runs"][name]])
        _rows(panel, tables.mean(dim=0).tolist(), words)
        panel.set_title(f"{name}: where each word looks back", fontsize=10)
    sentence = " ".join(words)
    caption = (
        f'"{sentence}", read word by word from top to bottom, as on slide 33: the word being read '
        f"is framed, and every word up to it is the darker the more weight it gets; the mean of "
        f"{len(data['seeds'])} seeds, trained on {data['set']}."
    )
    if key == "lecture" and data["unknown"]:
        caption += " Words with a question mark are not in that text: to the model they are one."
    return Plot(key, caption, figure)


def _rows(axes: Axes, weights: Sequence[Sequence[float]], words: Sequence[str]) -> None:
    """One line of words for each word, up to it; ink is the weight."""
    for row, line in enumerate(weights):
        for column, word in enumerate(words[: row + 1]):
            weight, corner = line[column], (column + 0.03, row + 0.05)
            edge = MARK if column == row else "none"
            box = Rectangle(corner, 0.94, 0.9, facecolor=colour(weight), edgecolor=edge, lw=1.4)
            axes.add_patch(box)
            label = f"{word} {100 * weight:.0f}"
            axes.text(
                column + 0.5, row + 0.52, label, color=ink(weight), ha="center", va="center", size=8
            )
    axes.set_xlim(0, len(words))
    axes.set_ylim(len(words), 0)
    axes.set_axis_off()


def _gains(data: Data) -> Plot:
    figure, (axes,) = new_figure()
    lows = [2, *(last + 1 for last in POSITIONS[:-1])]
    for hue, (name, plain) in zip(COLOURS, PLAIN.items(), strict=False):
        pairs = list(zip(data["runs"][plain], data["runs"][name], strict=True))
        found = [
            interval([a["by_place"][row] - b["by_place"][row] for a, b in pairs])
            for row in range(len(POSITIONS))
        ]
        line_with_band(
            axes,
            range(len(POSITIONS)),
            [one.mean for one in found],
            [one.low for one in found],
            [one.high for one in found],
            label=f"{name}\nover {plain}",
            colour=hue,
        )
    axes.axhline(0, color=COLOURS[-1], linewidth=1)
    ticks = [f"{low}-{high}" for low, high in zip(lows, POSITIONS, strict=True)]
    axes.set_xticks(range(len(POSITIONS)), ticks)
    axes.set_xlabel("place of the guessed word in its sentence")
    axes.set_ylabel("gain (nats per word)")
    axes.set_title(f"What looking back gains by place: {data['set']}")
    legend(axes)
    caption = (
        "How many nats per word a model that looks back needs less than the same cell without, of "
        f"equal size; above 0 is better. Means of {len(data['seeds'])} seeds, 95% bands."
    )
    return Plot("places", caption, figure)
