"""The tables of docs/results/recipes.md, from benchmarks/results/recipes-*.json and the recipes."""

import json
from collections.abc import Iterable
from statistics import fmean
from typing import Any, Final, NamedTuple

from benchmarks.harness import RESULTS, ROOT, Record
from benchmarks.pages.tables import flat, grouped, table
from regard.recipes import Recipe, read

RECIPES: Final = ROOT / "recipes"
#: the figures of a task, as a column is headed
TITLES: Final = {
    "wer": "WER %",
    "per": "PER %",
    "exact": "exact %",
    "bleu": "BLEU",
    "bleu-lc": "lower-cased BLEU",
    "bleu-tok": "BLEU of lower-cased tokens",
    "perplexity": "perplexity",
    "f1": "F1 %",
    "em": "exact match %",
    "f1-overlap": "F1 % of the best overlap",
    "support": "on a supporting sentence %",
    "support-any-hop": "the same in any hop %",
    "rouge-1": "ROUGE-1",
    "rouge-2": "ROUGE-2",
    "rouge-l": "ROUGE-L",
    "copied": "copied words %",
    "rouge-1-first-words": "ROUGE-1 of the first words",
    "rouge-2-first-words": "ROUGE-2 of the first words",
    "rouge-l-first-words": "ROUGE-L of the first words",
}
#: the part of a task in which figures can be set beside each other, as a section is headed
FIELDS: Final = {
    "cmudict": "English words to phonemes: CMUdict",
    "sigmorphon-low": "Words to IPA, ten languages with 800 words each: SIGMORPHON 2021",
    "sigmorphon-medium": "Words to IPA, ten languages with 8,000 words each: SIGMORPHON 2021",
    "inflection-low": "Inflection, 52 languages with 100 forms each: CoNLL-SIGMORPHON 2017",
    "inflection-medium": "Inflection, 52 languages with 1,000 forms each: CoNLL-SIGMORPHON 2017",
    "multi30k-de": "English to German: Multi30k",
    "multi30k-fr": "English to French: Multi30k",
    "tatoeba": "English to French: Tatoeba",
    "ptb": "Language models: the Penn Treebank",
    "sst": "Sentiment: SST-2",
    "babi-1k": "Questions about stories, 1,000 for each of 20 tasks: bAbI",
    "babi-10k": "Questions about stories, 10,000 for each of 19 tasks: bAbI",
    "squad": "Answers as spans of a passage: a part of SQuAD 1.1",
    "acl-titles": "Abstracts to titles: the ACL Anthology",
}
SETS: Final = {
    "dev": "dev",
    "test": "test",
    "test2017": "test 2017",
    "test-unseen": "test, unseen pairs",
}
#: what stands where there is no figure
NONE: Final = "-"


class Goal(NamedTuple):
    """Scores on a dev set that stay the same while trainer and recipe change.

    Attributes:
        recipe: which is to reach them.
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
#: metrics of which more is better, and metrics that are shares
HIGHER, SHARES = ("bleu", "chrf", "exact"), ("per", "exact")


def recipe_of(name: str) -> Recipe:
    """Return the recipe of the repository with this name."""
    path = RECIPES / f"{name}.toml"
    recipe = read(path) if path.exists() else None
    if recipe is None:
        raise SystemExit(f"recipes/{name}.toml must be a recipe, but there is none.")
    return recipe


def results() -> list[Record]:
    """Return all saved results, by recipe and device, with the published ones."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("recipes-*.json"))]
    for record in records:
        record["published"] = [dict(row) for row in recipe_of(record["recipe"]).published]
    return records


def device(run: Record) -> str:
    """Return the device of a run for a column heading."""
    if run["device"] != "cpu":
        return str(run["device"])
    cores = run.get("cores")
    return "CPU" if cores is None else f"{cores} CPU core{'s' if cores > 1 else ''}"


def on_cpu(record: Record) -> bool:
    """Return whether a record only shows how fast a score is reached without a GPU.

    One whose test set was scored is a result like any other: it learned what the recipe says.
    """
    run = record["runs"][0]
    return run["device"] == "cpu" and "test" not in run["scores"]


def headlines(records: list[Record]) -> list[Record]:
    """Return one record for each recipe with a test score: that with the most seeds."""
    best: dict[str, Record] = {}
    for record in records:
        before = best.get(record["recipe"])
        if not on_cpu(record) and (before is None or len(record["runs"]) > len(before["runs"])):
            best[record["recipe"]] = record
    return list(best.values())


def names(record: Record) -> list[str]:
    """Return the metrics of a record's test set, then those of published results alone."""
    own = [run["scores"]["test"]["figures"] for run in record["runs"]]
    others = [row["figures"] for row in record["published"]]
    return list(dict.fromkeys(name for figures in (*own, *others) for name in figures))


def title(figures: Iterable[str]) -> str:
    """Return the heading of a column of metrics."""
    return " / ".join(TITLES.get(name, name) for name in figures)


def values(record: Record, part: str, name: str) -> list[float]:
    """Return a metric on one set, for each seed."""
    scored = [run["scores"][part]["figures"] for run in record["runs"] if part in run["scores"]]
    return [figures[name]["value"] for figures in scored if name in figures]


def figure(value: float) -> str:
    """Return a value with two decimals; errors below 2 have three, as papers give them."""
    return f"{value:.3f}" if 0 < value < 2 else f"{value:.2f}"


def mean(several: list[float]) -> str:
    """Return the mean over seeds."""
    return figure(fmean(several)) if several else NONE


def ends(several: list[float]) -> str:
    """Return the lowest and the highest value."""
    return f"{figure(min(several))} to {figure(max(several))}" if len(several) > 1 else NONE


def published(row: Record, figures: Iterable[str]) -> str:
    """Return published values in the order of ours."""
    given = row["figures"]
    return " / ".join(f"{given[name]:g}" if name in given else NONE for name in figures)


def overview(records: list[Record] | None = None, recipes: int | None = None) -> str:
    """Return the table of all recipes."""
    shown = headlines(results() if records is None else records)
    rows = []
    for record in shown:
        figures, count = names(record), len(record["runs"])
        several = [values(record, "test", name) for name in figures]
        others = [
            f"{published(row, figures)}: {row['system']}, {row['by']}"
            for row in record["published"]
        ]
        spans = [ends(v) for v in several] if count > 1 else [NONE]
        cells = [f"`{record['recipe']}`", title(figures), " / ".join(map(mean, several))]
        rows.append([*cells, " / ".join(spans), str(count), "<br>".join(others) or NONE])
    head = ["recipe", "figure", "test", "lowest to highest", "seeds", "published"]
    every = len(list(RECIPES.glob("*.toml"))) if recipes is None else recipes
    missing = f"\n{every - len(shown)} of {every} recipes have no result yet.\n"
    return table(head, rows, left=len(head)) + (missing if every > len(shown) else "")


def task_sections(records: list[Record] | None = None) -> str:
    """Return a section for each task: published results, then ours."""
    shown = [
        record | {"field": field(record["runs"][0])}
        for record in headlines(results() if records is None else records)
    ]
    by_field = {key: mine for (key,), mine in grouped(shown, "field").items()}
    order = [*FIELDS, *sorted(by_field.keys() - FIELDS.keys())]
    return "\n".join(
        f"## {FIELDS.get(name, name)}\n\n{task_table(by_field[name])}"
        for name in order
        if name in by_field
    )


def field(run: Record) -> str:
    """Return the part of a task that a run belongs to."""
    options = run["options"]
    given = (options.get(name) for name in ("tgt", "part", "series", "questions"))
    part = next((value for value in given if value), None)
    return f"{run['task']}-{part}" if part else str(run["task"])


def task_table(records: list[Record]) -> str:
    """Return the table of one task."""
    figures = list(dict.fromkeys(name for record in records for name in names(record)))
    found = {part for record in records for run in record["runs"] for part in run["scores"]}
    parts = [part for part in SETS if part in found]
    once: dict[tuple[str, str, str], Record] = {}
    for row in (row for record in records for row in record["published"]):
        once.setdefault((row["system"], row["by"], str(row["figures"])), {"note": "", **row})
    rows = []
    for row in once.values():
        cells = [published(row, figures) if part == "test" else "" for part in parts]
        rows.append([f"{row['system']}, {row['by']}", "", "", *cells, row["note"]])
    for record in records:
        run, count = record["runs"][-1], len(record["runs"])
        cells = [" / ".join(spread(values(record, part, f)) for f in figures) for part in parts]
        together = f"{len(run['members'])} models together" if run.get("members") else ""
        taught = f"taught by {len(run['teacher'])} models" if run.get("teacher") else ""
        own = [f"`{record['recipe']}`", f"{run['weights']:,}", str(count)]
        rows.append([*own, *cells, together or taught])
    head = ["system", "weights", "seeds", *(f"{SETS[p]}: {title(figures)}" for p in parts), "note"]
    return table(head, rows, left=len(head))


def spread(several: list[float]) -> str:
    """Return the mean, with the lowest and the highest in brackets."""
    return f"{mean(several)} ({ends(several)})" if len(several) > 1 else mean(several)


def runs(records: list[Record] | None = None) -> str:
    """Return the table of all runs: command, cost and device."""
    found = results() if records is None else records
    ordered = sorted(found, key=lambda record: (record["recipe"], on_cpu(record)))
    rows = []
    for run in (run for record in ordered for run in record["runs"]):
        trained = run["training"]  # empty for an ensemble
        scored = run["scores"].get("test", {"figures": {}})["figures"].values()
        # where a run was made is no part of its command, but a GPU is what is taken if there is one
        where = f" device=cpu threads={run['cores']}" if run.get("cores") and trained else ""
        changed = " with changes" if run["changed_since"] else ""
        rows.append(
            {
                **trained,
                "command": f"{run['command']}{where}",
                "test": " / ".join(figure(one["value"]) for one in scored),
                "device": device(run),
                "at_once": run.get("at_once") or "",
                "commit": (run["commit"] or "none")[:12] + changed,
            }
        )
    columns = {"command": "`{command}`", "test": "{test}", "steps": "{steps:,}"}
    columns |= {"minutes": "{minutes:.1f}", "tokens/s": "{tokens_per_s:,.0f}"}
    columns |= {"device": "{device}", "at once": "{at_once}", "commit": "{commit}"}
    return flat(rows, columns)


def signatures(records: list[Record] | None = None) -> str:
    """Return the table of metric signatures, each once."""
    by_signature: dict[tuple[str, str], list[str]] = {}
    for record in headlines(results() if records is None else records):
        for name, one in record["runs"][-1]["scores"]["test"]["figures"].items():
            key = (TITLES.get(name, name), one["signature"])
            by_signature.setdefault(key, []).append(f"`{record['recipe']}`")
    rows = [[", ".join(of), name, f"`{how}`"] for (name, how), of in by_signature.items()]
    return table(["recipe", "figure", "signature"], rows, left=3)


Curve = list[tuple[float, float]]


def reached(curve: Curve, score: float, *, higher: bool) -> float | None:
    """Return the seconds until the first evaluation that reaches a score."""
    good = (s for s, value in curve if (value >= score if higher else value <= score))
    return next(good, None)


def curves(record: Record, metric: str) -> list[Curve]:
    """Return the curves of a record's runs; older results and ensembles have none."""
    kept = [run.get("curve") or {} for run in record["runs"]]
    return [[(s, v) for s, v in c["points"]] for c in kept if c.get("metric") == metric]


def time_to_quality(records: list[Record] | None = None, goals: Iterable[Goal] = GOALS) -> str:
    """Return the table of minutes until fixed scores, with a column for each device."""
    every = results() if records is None else records
    found: dict[tuple[Goal, str], Record] = {}
    for goal in goals:
        for record in every:
            if record["recipe"] == goal.recipe and curves(record, goal.metric):
                found[goal, device(record["runs"][0])] = record
    devices = sorted({name for _, name in found}, key=lambda name: ("CPU" in name, name))
    rows: list[list[str]] = []
    for goal in dict.fromkeys(goal for goal, _ in found):
        mine = [found.get((goal, name)) for name in devices]
        own = [curves(record, goal.metric) if record else [] for record in mine]
        cells = [[_named(goal, s), *(_minutes(goal, s, c) for c in own)] for s in goal.scores]
        cells.append(["between evaluations", *map(_between, own)])
        cells.append(["runs at once", *map(_at_once, mine)])
        heads = [f"`{goal.recipe}`", *[""] * (len(cells) - 1)]
        rows += [[head, *row] for head, row in zip(heads, cells, strict=True)]
    return table(["recipe", "on dev", *devices], rows, left=2)


def _named(goal: Goal, score: float) -> str:
    name = TITLES.get(goal.metric, goal.metric).removesuffix(" %")
    return f"{name} {100 * score:g}%" if goal.metric in SHARES else f"{name} {score:g}"


def _minutes(goal: Goal, score: float, several: list[Curve]) -> str:
    times = [reached(curve, score, higher=goal.metric in HIGHER) for curve in several]
    there = [seconds / 60 for seconds in times if seconds is not None]
    if not there:
        return NONE if several else ""
    some = f" ({len(there)} of {len(times)} seeds)" if len(there) < len(times) else ""
    return f"{fmean(there):.1f}{some}"


def _between(several: list[Curve]) -> str:
    """Return the mean time between evaluations."""
    gaps = [curve[-1][0] / len(curve) / 60 for curve in several if curve]
    return f"{fmean(gaps):.1f}" if gaps else ""


def _at_once(record: Record | None) -> str:
    """Return how many runs shared the device; empty if unknown."""
    known: set[Any] = {run.get("at_once") for run in record["runs"]} if record else set()
    counts = sorted(known - {None, 0})
    return " to ".join(str(count) for count in sorted({counts[0], counts[-1]})) if counts else ""
