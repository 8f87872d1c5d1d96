"""The section of docs/kernels.md about training, and its figure."""

import itertools
import statistics
from typing import Any, Final

import provenance

#: steps whose mean stands for each of them in a smoothed curve
WINDOW: Final = 20

Record = dict[str, Any]


def render(result: Record, figure: str | None = None) -> str:
    """Return the section; every number comes from the records.

    Args:
        result: what was measured.
        figure: where the page finds the curves.
    """
    machine = result["machine"]
    gpu = [f"triton {machine['triton']}", f"CUDA {machine['cuda']}"] if "triton" in machine else []
    where = [machine.get("gpu", machine["cpu"]), f"torch {machine['torch']}", *gpu]
    lines = [
        "## Training with the kernels and without them",
        "",
        provenance.made_by(result),
        f"{', '.join(where)}, commit {(result['commit'] or 'unknown')[:12]}.",
        f"{result['data']}, BPE with {result['vocab']} entries, the trainer's own loop. `auto`",
        "takes the kernels where there are any, `torch` and `reference` are the other paths of the",
        "same operators (`ops.use_backend`).",
        "",
    ]
    lines += provenance.cut_short(result, "some rows are missing")
    measured = [c for c in result["curves"] if "losses" in c]
    if measured:
        lines += [*_curves(measured, figure), ""]
    lines += _speed(result["speed"])
    lines += [f"- {_name(r)}: {r['error']}" for r in result["speed"] if "error" in r]
    return "\n".join(lines) + "\n"


def _curves(curves: list[Record], figure: str | None) -> list[str]:
    first, steps = curves[0], len(curves[0]["losses"])
    lines = [
        "### They learn the same",
        "",
        f"Preset {first['preset']}, size {first['size']}, {first['batch_tokens']} tokens a batch,",
        f"{steps} steps on the same batches, dropout included; a run that takes too long has",
        f"fewer. Curves are smoothed over {min(WINDOW, steps)} steps. A row says how far its curve",
        "parts from that of the first run of its type: at the first step, and at most.",
        "",
    ]
    if figure is not None:
        lines += [f"![loss against step, all backends]({figure})", ""]
    lines += [
        "| type | run | steps | first step | at most, smoothed | last loss, smoothed | ms a step |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for _, group in itertools.groupby(curves, key=lambda c: c["precision"]):
        lines += _against_the_first(list(group))
    for _, group in itertools.groupby(curves, key=lambda c: c["precision"]):
        lines += ["", *_verdict(list(group))]
    return lines


def _against_the_first(group: list[Record]) -> list[str]:
    rows = []
    for i, curve in enumerate(group):
        cells = [kind(curve), run_name(curve, group[:i]), str(len(curve["losses"]))]
        cells += ["", ""] if i == 0 else [f"{d:.1e}" for d in distances(group[0], curve)]
        cells += [f"{smoothed(curve['losses'])[-1]:.4f}", f"{curve['step_ms']:.1f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _verdict(group: list[Record]) -> list[str]:
    """Return one sentence that compares backends with seeds."""
    first, others = group[0], group[1:]
    seeds = [distances(first, c)[1] for c in others if c["seed"] != first["seed"]]
    backends = [c for c in others if c["backend"] != first["backend"]]
    if not seeds or not backends:
        return []
    most = max(distances(first, c)[1] for c in backends)
    faster = ", ".join(
        f"{c['step_ms'] / first['step_ms']:.1f} times as fast as `{c['backend']}`" for c in backends
    )
    return [
        f"In {kind(first)} the curves of the backends part by {most:.1e} at most, which is",
        f"{most / max(seeds):.0%} of what parts two seeds; `auto` is {faster}.",
    ]


def kind(curve: Record) -> str:
    """Return the dtype of the computation."""
    return {"32": "float32", "bf16": "bf16 autocast"}.get(curve["precision"], curve["precision"])


def run_name(curve: Record, before: list[Record]) -> str:
    """Return the label of a curve."""
    again = ", again" if _is_again(curve, before) else ""
    return f"`{curve['backend']}`, seed {curve['seed']}{again}"


def _short_name(curve: Record, before: list[Record]) -> str:
    if before and curve["seed"] != before[0]["seed"]:
        return "another seed"
    return f"{curve['backend']} again" if _is_again(curve, before) else str(curve["backend"])


def _is_again(curve: Record, before: list[Record]) -> bool:
    return any((c["backend"], c["seed"]) == (curve["backend"], curve["seed"]) for c in before)


def smoothed(losses: list[float], window: int = WINDOW) -> list[float]:
    """Return means over a sliding window."""
    window = min(window, len(losses))
    return [statistics.fmean(losses[i : i + window]) for i in range(len(losses) - window + 1)]


def distances(a: Record, b: Record) -> tuple[float, float]:
    """Return the differences of two curves: at the first step, and the largest after smoothing.

    Of the longer one, only the steps that the other has are looked at.
    """
    steps = min(len(a["losses"]), len(b["losses"]))
    one, other = a["losses"][:steps], b["losses"][:steps]
    pairs = zip(smoothed(one), smoothed(other), strict=True)
    return abs(one[0] - other[0]), max(abs(x - y) for x, y in pairs)


def _speed(measured: list[Record]) -> list[str]:
    # where batches run for the first time, a compiler is timed and not a step
    records = [r for r in measured if "warm_up_s" in r or "error" in r]
    cold = len(measured) - len(records)
    left_out = f"{cold} records of speed are left out: their batches had not been run before."
    return [*([left_out, ""] if cold else []), *(_speed_table(records) if records else [])]


def _speed_table(records: list[Record]) -> list[str]:
    # what the trainer does comes first, and is set beside the others
    backends = sorted(dict.fromkeys(r["backend"] for r in records), key=lambda b: b != "graphs")
    lines = [
        "### Speed",
        "",
        f"Source and target tokens a second, both with their `eos`, {kind(records[0])}: the median",
        "over steps whose batches were run before. The Transformer's operators have no kernel of",
        "ours, and none runs all steps of a decoder of several layers (`bahdanau`, size base).",
        "`graphs` is `auto` with steps replayed from CUDA graphs, as the trainer does if it can.",
        "",
        "| preset | size | batch | "
        + " | ".join(f"`{b}`" for b in backends)
        + " | "
        + " | ".join(f"`{backends[0]}` / `{b}`" for b in backends[1:])
        + " |",
        "|---|---|--:|" + "--:|" * (2 * len(backends) - 1),
    ]
    found = {(r["preset"], r["size"], r["batch_tokens"], r["backend"]): r for r in records}
    for cell in dict.fromkeys(key[:3] for key in found):
        rates = [found.get((*cell, b), {}).get("tokens_per_s") for b in backends]
        cells = [*map(str, cell), *("" if r is None else f"{r:,.0f}" for r in rates)]
        cells += ["" if not (rates[0] and r) else f"{rates[0] / r:.2f}" for r in rates[1:]]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _name(record: Record) -> str:
    names = ("preset", "size", "batch_tokens", "backend")
    return ", ".join(str(record[name]) for name in names)


def draw(result: Record) -> Any:
    """Return the smoothed curves as a figure, or None without curves."""
    from regard.lab import plots

    curves = [c for c in result["curves"] if "losses" in c]
    groups = [list(g) for _, g in itertools.groupby(curves, key=lambda c: c["precision"])]
    if not groups:
        return None
    figure, axes = plots.new_figure(columns=len(groups))
    looks: dict[str, int] = {}  # a name looks the same in all panels, which have one legend
    for ax, group in zip(axes, groups, strict=True):
        for place, curve in enumerate(group):
            values, name = smoothed(curve["losses"]), _short_name(curve, group[:place])
            i = looks.setdefault(name, len(looks))
            ax.plot(
                range(len(curve["losses"]) - len(values) + 1, len(curve["losses"]) + 1),
                values,
                color=plots.COLOURS[i],
                linestyle=("-", "--", ":", "-.", "--")[i % 5],
                label=name,
            )
        ax.set_title(kind(group[0]))
        ax.set_xlabel("step")
        ax.set_ylabel("loss per target token")
    plots.legend(axes[0], below=True)
    return figure
