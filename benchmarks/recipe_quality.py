"""Time to quality: minutes of training that a recipe takes to reach fixed scores."""

from dataclasses import dataclass
from statistics import fmean
from typing import Final

from recipe_tables import NONE, TITLES, Record, device, lines


@dataclass(frozen=True)
class Goal:
    """Scores on a dev set that stay the same while trainer and recipe change.

    Attributes:
        recipe: who is to reach them.
        metric: the one that decides in its training.
        scores: as metrics.jsonl has them, the easiest first.
    """

    recipe: str
    metric: str
    scores: tuple[float, ...]


GOALS: Final = (
    Goal("cmudict-defaults", "per", (0.10, 0.08, 0.065)),
    Goal("cmudict-bahdanau", "per", (0.10, 0.08, 0.065)),
    Goal("cmudict-transformer", "per", (0.10, 0.08, 0.065)),
    Goal("multi30k-en-de-bahdanau", "bleu", (30, 35, 38)),
    Goal("multi30k-en-de-transformer", "bleu", (30, 35, 38)),
    Goal("ptb-self-attentive-1", "perplexity", (130, 115)),
    Goal("sst2-self-attentive", "exact", (0.80, 0.82)),
)
#: metrics of which more is better
HIGHER: Final = ("bleu", "chrf", "exact")
#: metrics that are shares, shown in per cent
SHARES: Final = ("per", "exact")

TEXT: Final = (
    "## Time to quality\n\n"
    "Minutes of training until a fixed score on the dev set, as training sees it: answers are "
    "searched greedily, on no more than the recipe's `eval_pairs`. The clock starts with the first "
    "step; evaluations but the last are in the time. A score is seen at an evaluation, and may "
    "have been reached since the one before. The learning rate falls as a run's budget is spent, "
    "and the budget of a CPU is larger: see the commands below. Means are over seeds; `-`: not "
    "reached. How many runs may have shared the device stands in the last row, where it is "
    "known.\n\n"
)

Curve = list[tuple[float, float]]


def reached(curve: Curve, score: float, *, higher: bool) -> float | None:
    """Return the seconds until the first evaluation that reaches a score."""
    for seconds, value in curve:
        if value >= score if higher else value <= score:
            return seconds
    return None


def curves(record: Record, metric: str) -> list[Curve]:
    """Return the curves of a record's runs; older results and ensembles have none."""
    kept = [run.get("curve") or {} for run in record["runs"]]
    return [[(s, v) for s, v in c["points"]] for c in kept if c.get("metric") == metric]


def section(records: list[Record]) -> str:
    """Return the section of the page; empty if no result has a curve."""
    found = {
        (goal, device(record["runs"][0])): record
        for goal in GOALS
        for record in records
        if record["recipe"] == goal.recipe and curves(record, goal.metric)
    }
    if not found:
        return ""
    devices = sorted({name for _, name in found}, key=lambda name: ("CPU" in name, name))
    rows: list[list[str]] = []
    for goal in dict.fromkeys(goal for goal, _ in found):
        rows += _rows(goal, [found.get((goal, name)) for name in devices])
    header = ["recipe", "on dev", *devices]
    return TEXT + lines(header, rows, numbers=range(2, len(header)))


def _rows(goal: Goal, by_device: list[Record | None]) -> list[list[str]]:
    """Return a row for each score, one for the evaluation interval, and one for parallel runs."""
    mine = [curves(record, goal.metric) if record else [] for record in by_device]
    cells = [[_named(goal.metric, s), *(_minutes(goal, s, c) for c in mine)] for s in goal.scores]
    cells.append(["between evaluations", *(_between(several) for several in mine)])
    cells.append(["runs at once", *(_at_once(record) for record in by_device)])
    names = [f"`{goal.recipe}`", *[""] * (len(cells) - 1)]
    return [[name, *row] for name, row in zip(names, cells, strict=True)]


def _named(metric: str, score: float) -> str:
    name = TITLES.get(metric, metric).removesuffix(" %")
    return f"{name} {100 * score:g}%" if metric in SHARES else f"{name} {score:g}"


def _minutes(goal: Goal, score: float, several: list[Curve]) -> str:
    if not several:
        return ""
    times = [reached(curve, score, higher=goal.metric in HIGHER) for curve in several]
    there = [seconds / 60 for seconds in times if seconds is not None]
    if not there:
        return NONE
    some = f" ({len(there)} of {len(times)} seeds)" if len(there) < len(times) else ""
    return f"{fmean(there):.1f}{some}"


def _between(several: list[Curve]) -> str:
    """Return the mean time between evaluations."""
    gaps = [curve[-1][0] / len(curve) / 60 for curve in several if curve]
    return f"{fmean(gaps):.1f}" if gaps else ""


def _at_once(record: Record | None) -> str:
    """Return how many runs shared the device; empty if unknown."""
    known = {run["at_once"] for run in record["runs"] if run.get("at_once")} if record else set()
    return " to ".join(str(count) for count in sorted({min(known), max(known)})) if known else ""
