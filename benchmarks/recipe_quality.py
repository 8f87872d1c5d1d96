"""Time to quality: how many minutes of training a recipe takes to reach fixed scores."""

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
    "have been reached since the one before. The rate falls with what is left of a run's budget: "
    "a run with less time to go reaches an easy score sooner. Means are over seeds; `-`: not "
    "reached. The table of runs says which of them shared a device.\n\n"
)

Curve = list[tuple[float, float]]


def reached(curve: Curve, score: float, *, higher: bool) -> float | None:
    """The seconds of the first evaluation that is as good as a score."""
    for seconds, value in curve:
        if value >= score if higher else value <= score:
            return seconds
    return None


def curves(record: Record, metric: str) -> list[Curve]:
    """Those of a record's runs; older results and ensembles have none."""
    kept = [run.get("curve") or {} for run in record["runs"]]
    return [[(s, v) for s, v in c["points"]] for c in kept if c.get("metric") == metric]


def section(records: list[Record]) -> str:
    """The section of the page; empty where no result has a curve."""
    rows: list[list[str]] = []
    found = {
        (goal.recipe, device(record["runs"][0])): of
        for goal in GOALS
        for record in records
        if record["recipe"] == goal.recipe and (of := curves(record, goal.metric))
    }
    devices = sorted({name for _, name in found}, key=lambda name: ("CPU" in name, name))
    for goal in GOALS:
        mine = [found.get((goal.recipe, name), []) for name in devices]
        if any(mine):
            rows += _rows(goal, mine)
    if not rows:
        return ""
    header = ["recipe", "on dev", *devices]
    return TEXT + lines(header, rows, numbers=range(2, len(header)))


def _rows(goal: Goal, by_device: list[list[Curve]]) -> list[list[str]]:
    """A row for each score, and one for the time between two looks."""
    first = [f"`{goal.recipe}`", *[""] * len(goal.scores)]
    cells = [
        [_named(goal.metric, s), *(_minutes(goal, s, c) for c in by_device)] for s in goal.scores
    ]
    cells.append(["between evaluations", *(_between(several) for several in by_device)])
    return [[name, *row] for name, row in zip(first, cells, strict=True)]


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
    """The mean time from one evaluation to the next."""
    gaps = [curve[-1][0] / len(curve) / 60 for curve in several if curve]
    return f"{fmean(gaps):.1f}" if gaps else ""
