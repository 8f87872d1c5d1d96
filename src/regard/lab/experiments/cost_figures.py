"""The figures and tables of the experiment on costs."""

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from regard.lab import families as kinds
from regard.lab.curves import Curve, counted, held, meet, say, size, timed
from regard.lab.experiment import Data, Plot, Table
from regard.lab.plots import COLOURS, line_with_band, new_figure
from regard.seeing.palette import TEXT

MODES: Final = {"forward": "forward", "training": "forward and backward"}
PATH_NAMES: Final = {"fast": "fast path", "reference": "definition"}
Panels = dict[str, dict[str, Curve]]
LABELS: Final = {"length": "length n", "width": "width d"}


def draw(data: Data) -> list[Plot]:
    """Operations, times and memory in log-log, where a power law is a straight line."""
    fixed = f"At width {data['width']} or length {data['length']}, on {data['machine']}."
    names = list(data["counts"])
    operations = {
        label: {name: counted(data, name, sweep, "operations") for name in names}
        for sweep, label in LABELS.items()
    }
    memory = {
        f"{LABELS['length']} ({told})": {name: held(data, name, path, "length") for name in names}
        for path, told in PATH_NAMES.items()
    }
    return [
        Plot(
            "operations",
            "Multiply-adds of one layer for one sequence, against its length and its width. "
            f"Straight lines are power laws. {fixed}",
            _figure("Counted operations", "multiply-adds", operations),
        ),
        *(_times(data, sweep, fixed) for sweep in LABELS),
        Plot(
            "memory-length",
            "The most memory held at a time in training, by the definition and on the fast path. "
            + fixed,
            _figure("Memory in training", "bytes", memory),
        ),
    ]


def _times(data: Data, sweep: str, fixed: str) -> Plot:
    panels = {
        f"{LABELS[sweep]} ({told})": {
            name: timed(data, name, path, sweep) for name in data["counts"]
        }
        for path, told in PATH_NAMES.items()
    }
    return Plot(
        f"time-{sweep}",
        f"Seconds of one training run, forward and backward, against the {sweep}: medians, with "
        f"bands from quartile to quartile. {fixed}",
        _figure(f"Time in training against {sweep}", "seconds", panels),
    )


def _figure(title: str, unit: str, panels: Panels) -> Figure:
    figure, axes = new_figure(columns=len(panels))
    for panel, (label, curves) in zip(axes, panels.items(), strict=True):
        for i, (name, curve) in enumerate(curves.items()):
            _line(panel, curve, name, COLOURS[i % len(COLOURS)])
        panel.set_xscale("log", base=2)  # the sizes are powers of two
        panel.set(yscale="log", xlabel=label, ylabel=unit)
    figure.suptitle(title, color=TEXT)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, labelcolor=TEXT
    )
    return figure


def _line(axes: Axes, curve: Curve, name: str, colour: str) -> None:
    line_with_band(axes, curve.x, curve.y, curve.low, curve.high, label=name, colour=colour)


def tabulate(data: Data) -> list[Table]:
    """Exponents of everything, where curves cross, and what the layers are."""
    return [_exponents(data, "length", "n"), _exponents(data, "width", "d"), *_rest(data)]


def _exponents(data: Data, sweep: str, letter: str) -> Table:
    columns = ["family", "multiply-adds"]
    columns += [f"{told}, {path}" for path in PATH_NAMES.values() for told in MODES.values()]
    columns += [f"memory, {path}" for path in PATH_NAMES.values()]
    rows = []
    for name in data["counts"]:
        curves = [counted(data, name, sweep, "operations")]
        curves += [timed(data, name, path, sweep, mode) for path in PATH_NAMES for mode in MODES]
        curves += [held(data, name, path, sweep) for path in PATH_NAMES]
        rows.append([name, *(say(curve.law()) for curve in curves)])
    return Table(
        f"Exponents of {letter} with 95% intervals, over the five largest sizes of each curve.",
        columns,
        rows,
    )


def _rest(data: Data) -> list[Table]:
    return [_crossings(data), _layers(data)]


def _crossings(data: Data) -> Table:
    attention, rows = kinds.SELF_ATTENTION.name, []
    for name in data["counts"]:
        if name == attention:
            continue
        cells = [name]
        for path in PATH_NAMES:
            for mode in MODES:
                ours, other = (timed(data, n, path, "length", mode) for n in (attention, name))
                cells.append(size(meet(ours, other), min(ours.x[-1], other.x[-1])))
        rows.append(cells)
    heads = [f"{told}, {path}" for path in PATH_NAMES.values() for told in MODES.values()]
    return Table(
        "The length n from which self-attention is slower, interpolated in log-log; the shortest "
        f"length where it is slower all along. {data['machine']}, width {data['width']}.",
        ["than", *heads],
        rows,
    )


def _layers(data: Data) -> Table:
    rows = []
    for name in data["counts"]:
        chain = counted(data, name, "length", "chain")
        parameters = counted(data, name, "length", "parameters")
        rows.append(
            [name, f"{parameters.y[-1]:,}", f"{chain.y[0]:,}", f"{chain.y[-1]:,}", say(chain.law())]
        )
    first, last = chain.x[0], chain.x[-1]
    return Table(
        f"One layer of width {data['width']}: parameters, and products of matrices that wait for "
        "each other.",
        ["family", "parameters", f"chain at n = {first:,}", f"at n = {last:,}", "exponent of n"],
        rows,
    )
