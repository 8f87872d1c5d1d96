"""The figures and tables of the experiment on paths."""

from collections.abc import Iterable
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.lab.experiment import Data, Plot, Table
from regard.lab.fading import band, fading, path_law
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.seeing.palette import TEXT

#: below it a gradient is lost in the rounding of single precision
ROUNDING: Final = 1e-12


def draw(data: Data) -> list[Plot]:
    """Gradients over distance by family, those of recurrences, and the counted ways."""
    families = list(data["paths"])
    recurrences = [name for name in data["gradients"] if name not in families]
    return [
        Plot(
            "gradients",
            "The gradient of an output with respect to the first input, over the distance between "
            f"them, as a share of that at distance {data['distances'][0]}, before training; width "
            f"{data['width']}. The convolution is a stack of {data['layers']} layers with kernels "
            f"of {data['kernel']}. Bands are 95% intervals over seeds.",
            _gradients(data, families, "What is left of the first input's gradient"),
        ),
        Plot(
            "vanishing",
            "The same for recurrences: a plain RNN by the spectral radius of its recurrent matrix, "
            "and an LSTM whose forget gate starts open.",
            _gradients(data, recurrences, "Gradients that vanish, stay or explode"),
        ),
        _paths(data),
    ]


def _gradients(data: Data, names: Iterable[str], title: str) -> Figure:
    figure, (axes,) = new_figure()
    for i, name in enumerate(names):
        _line(axes, data, name, COLOURS[i % len(COLOURS)])
    axes.set(yscale="log", xlabel="distance in positions", ylabel="share of the gradient left")
    axes.set_title(title, color=TEXT)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, ROUNDING), top)
    legend(axes)
    return figure


def _line(axes: Axes, data: Data, name: str, colour: str) -> None:
    bands = band(data, name)
    # a deep stack multiplies all its gradients alike: a share can be set beside other families'
    near = next(b.mean for b in bands if b is not None)
    mean, low, high = (
        [None if b is None else getattr(b, part) / near for b in bands]
        for part in ("mean", "low", "high")
    )
    line_with_band(axes, data["distances"], mean, low, high, label=name, colour=colour)


def _paths(data: Data) -> Plot:
    figure, (axes,) = new_figure()
    for i, (name, rows) in enumerate(data["paths"].items()):
        x, y = [row["length"] for row in rows], [row["path"] for row in rows]
        line_with_band(axes, x, y, y, y, label=name, colour=COLOURS[i % len(COLOURS)])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="length n", ylabel="layers or steps on the way")
    axes.set_title("From the first input to the last output", color=TEXT)
    legend(axes)
    return Plot(
        "path-length",
        "The shortest way from the first input to the last output: layers that must lie on top "
        "of each other, or steps of a recurrence. Plain RNN, GRU and LSTM lie on one line; the "
        f"convolution has kernels of {data['kernel']}.",
        figure,
    )


def tabulate(data: Data) -> list[Table]:
    """How gradients fade, and the counted ways."""
    runs = [fading(data, name) for name in data["gradients"]]
    rows = [
        [run.name, str(run.factor), f"{run.far}", str(run.ratio),
         run.manner]
        for run in runs
    ]  # fmt: skip
    ways = [
        [name, *(f"{row['path']}" for row in rows_), str(path_law(rows_, "length"))]
        for name, rows_ in data["paths"].items()
    ]
    kernels = data["kernels"]
    lengths = [f"n = {row['length']}" for row in next(iter(data["paths"].values()))]
    return [
        Table(
            "How gradients change with distance, with 95% intervals over seeds.",
            ["family", "factor per step", "up to", "near / far", "changes"],
            rows,
        ),
        Table(
            "The shortest way from the first input to the last output.",
            ["family", *lengths, "exponent of n"],
            ways,
        ),
        Table(
            f"Layers of convolution across {kernels[0]['length']} positions, by kernel.",
            [*(f"k = {row['kernel']}" for row in kernels), "exponent of k"],
            [[*(f"{row['path']}" for row in kernels), str(path_law(kernels, "kernel"))]],
        ),
    ]
