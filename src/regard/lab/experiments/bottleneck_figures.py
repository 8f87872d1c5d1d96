"""Quality against length: lines, slopes, and the figure and tables of them."""

from typing import Final

import numpy as np

from regard.lab.comparing import spread
from regard.lab.experiment import Data, Plot, Table
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import interval

FIXED, ADDITIVE, DOT, SELF = "seq2seq", "bahdanau", "rnn-dot", "self-attentive"
LABELS: Final = {
    FIXED: "one fixed vector",
    ADDITIVE: "additive attention",
    DOT: "scaled dot-product attention",
    SELF: "self-attentive RNNs, additive attention",
}
#: slopes are told per so many tokens
PER: Final = 10


def middles(data: Data) -> list[float]:
    """The middle length of each row; all models have the same test examples."""
    run = data["runs"][FIXED][0]
    return [(a + b) / 2 for a, b in zip(run["shortest"], run["longest"], strict=True)]


def slopes(data: Data, preset: str) -> list[float]:
    """Points gained per `PER` tokens of length, seed by seed; below 0 where they are lost."""
    x = middles(data)
    return [PER * float(np.polyfit(x, run["points"], 1)[0]) for run in data["runs"][preset]]


def of_row(data: Data, preset: str, row: int) -> list[float]:
    """Points for sources of one row of lengths, seed by seed."""
    return [run["points"][row] for run in data["runs"][preset]]


def draw(data: Data) -> list[Plot]:
    """Quality against length, one line for each model."""
    figure, (axes,) = new_figure()
    x = middles(data)
    for colour, (preset, label) in zip(COLOURS, LABELS.items(), strict=False):
        rows = [interval(of_row(data, preset, row)) for row in range(len(x))]
        line_with_band(
            axes,
            x,
            [row.mean for row in rows],
            [row.low for row in rows],
            [row.high for row in rows],
            label=label.replace(", ", ",\n"),
            colour=colour,
        )
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(0, bottom), min(102, top))  # Student's intervals know no bounds, shares do
    axes.set_xlabel(f"length of the source ({data['unit']})")
    axes.set_ylabel(data["quality"])
    axes.set_title(f"Quality against length: {data['set']}")
    legend(axes)
    caption = (
        f"{data['quality']} of test sources by length, joined from 1 to "
        f"{data['parts']} {data['joined']}: means of {len(data['seeds'])} seeds, 95% "
        f"bands. Each point holds a fifth of the sources."
    )
    return [Plot("length", caption, figure)]


def tabulate(data: Data) -> list[Table]:
    """Parameters, quality and slope of each model; then each row of lengths."""
    run = data["runs"][FIXED][0]
    lengths = [f"{a}-{b}" for a, b in zip(run["shortest"], run["longest"], strict=True)]
    summary, by_row = [], []
    for preset, label in LABELS.items():
        found = data["runs"][preset]
        summary.append(
            [
                label,
                preset,
                f"{found[0]['parameters']:,}",
                f"{found[0]['width']}",
                spread(interval([one["all"] for one in found])),
                spread(interval(slopes(data, preset))),
            ]
        )
        rows = [spread(interval(of_row(data, preset, row))) for row in range(len(lengths))]
        by_row.append([label, *rows])
    caption = (
        f"{data['set']}: {data['steps']} steps of {data['batch']} examples, "
        f"{len(data['seeds'])} seeds; quality is {data['quality']}, with 95% intervals."
    )
    columns = ["model", "preset", "parameters", "width", "quality", f"per {PER} {data['unit']}"]
    return [
        Table(caption, columns, summary),
        Table(f"The same by length ({data['unit']}).", ["model", *lengths], by_row),
    ]
