"""Markdown tables of recipe results; every number comes from a record."""

import re
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any, Final

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

#: a recipe on one device: `recipe`, and `runs`, one for each seed
Record = dict[str, Any]


def device(run: Record) -> str:
    """Return the device of a run for a column heading."""
    if run["device"] != "cpu":
        return str(run["device"])
    cores = run.get("cores")
    return "CPU" if cores is None else f"{cores} CPU core{'s' if cores > 1 else ''}"


def field(task: str, options: Record) -> str:
    """Return the part of a task that a recipe belongs to."""
    named = ("tgt", "part", "series", "questions")
    part = next((options[name] for name in named if options.get(name)), None)
    return f"{task}-{part}" if part else task


def by_field(several: list[Record], of: Callable[[Record], str]) -> list[tuple[str, list[Record]]]:
    """Group records by field, each with its heading; unknown fields come last."""
    order = [*FIELDS, *sorted({of(one) for one in several} - set(FIELDS))]
    groups = [
        (FIELDS.get(name, name), [one for one in several if of(one) == name]) for name in order
    ]
    return [(heading, mine) for heading, mine in groups if mine]


def on_cpu(record: Record) -> bool:
    """Return whether a record only shows how fast a score is reached without a GPU.

    One whose test set was scored is a result like any other: it learned what the recipe says.
    """
    run = record["runs"][0]
    return run["device"] == "cpu" and "test" not in run["scores"]


def lines(header: list[str], rows: list[list[str]], numbers: Iterable[int] = ()) -> str:
    """Return a Markdown table; the columns of `numbers` are right-aligned."""
    right = set(numbers)
    rule = ["---:" if i in right else "---" for i in range(len(header))]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, *rows]]
    return "".join(f"| {' | '.join(row)} |\n" for row in [cells[0], rule, *cells[1:]])


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
    others = [row["figures"] for row in record["runs"][-1]["published"]]
    return list(dict.fromkeys(name for figures in (*own, *others) for name in figures))


def title(figures: Iterable[str]) -> str:
    """Return the heading of a column of metrics."""
    return " / ".join(TITLES.get(name, name) for name in figures)


def values(record: Record, part: str, name: str) -> list[float]:
    """Return a metric on one set, for each seed."""
    scored = [run["scores"][part]["figures"] for run in record["runs"] if part in run["scores"]]
    return [figures[name]["value"] for figures in scored if name in figures]


def mean(several: list[float]) -> str:
    """Return the mean over seeds."""
    return _figure(fmean(several)) if several else NONE


def ends(several: list[float]) -> str:
    """Return the lowest and the highest value."""
    return f"{_figure(min(several))} to {_figure(max(several))}" if len(several) > 1 else NONE


def _figure(value: float) -> str:
    """Return a value with two decimals; errors below 2 have three, as papers give them."""
    return f"{value:.3f}" if 0 < value < 2 else f"{value:.2f}"


def spread(several: list[float]) -> str:
    """Return the mean, with the lowest and the highest in brackets."""
    return f"{mean(several)} ({ends(several)})" if len(several) > 1 else mean(several)


def theirs(row: Record, figures: Iterable[str]) -> str:
    """Return published values in the order of ours."""
    given = row["figures"]
    return " / ".join(f"{given[name]:g}" if name in given else NONE for name in figures)


def short_table(records: list[Record], recipes: int) -> str:
    """Return the overview of all recipes, of which `recipes` is the number."""
    shown = headlines(records)
    if not shown:
        return "No recipe has been measured yet.\n"
    header = ["recipe", "figure", "test", "lowest to highest", "seeds", "published"]
    table = lines(header, [_short_row(record) for record in shown], numbers=[2, 3, 4])
    left = recipes - len(shown)
    verb = "has" if left == 1 else "have"
    return table + (f"\n{left} of {recipes} recipes {verb} no result yet.\n" if left else "")


def _short_row(record: Record) -> list[str]:
    figures = names(record)
    several = [values(record, "test", name) for name in figures]
    published = [
        f"{theirs(row, figures)}: {row['system']}, {row['by']}"
        for row in record["runs"][-1]["published"]
    ]
    spans = [ends(v) for v in several] if len(record["runs"]) > 1 else [NONE]
    return [
        f"`{record['recipe']}`",
        title(figures),
        " / ".join(mean(v) for v in several),
        " / ".join(spans),
        str(len(record["runs"])),
        "<br>".join(published) or NONE,
    ]


def task_sections(records: list[Record]) -> list[str]:
    """Return a table for each task: published results, then ours."""
    return [
        f"## {heading}\n\n{_task_table(mine)}"
        for heading, mine in by_field(headlines(records), _field)
    ]


def _field(record: Record) -> str:
    run = record["runs"][0]
    return field(run["task"], run["options"])


def _task_table(records: list[Record]) -> str:
    figures = list(dict.fromkeys(name for record in records for name in names(record)))
    found = {part for record in records for run in record["runs"] for part in run["scores"]}
    parts = [part for part in SETS if part in found]
    header = [
        "system",
        "weights",
        "seeds",
        *(f"{SETS[p]}: {title(figures)}" for p in parts),
        "note",
    ]
    rows = [
        [f"{row['system']}, {row['by']}", "", "", *_others(row, parts, figures), row["note"]]
        for row in _published(records)
    ]
    rows += [_own_row(record, parts, figures) for record in records]
    return lines(header, rows, numbers=range(1, len(header) - 1))


def _published(records: list[Record]) -> list[Record]:
    """Return the published results of one task, each once."""
    once: dict[tuple[str, str, str], Record] = {}
    for record in records:
        for row in record["runs"][-1]["published"]:
            key = (row["system"], row["by"], str(row["figures"]))
            once.setdefault(key, {"note": "", **row})
    return list(once.values())


def _others(row: Record, parts: list[str], figures: list[str]) -> list[str]:
    return [theirs(row, figures) if part == "test" else "" for part in parts]


def _own_row(record: Record, parts: list[str], figures: list[str]) -> list[str]:
    run = record["runs"][-1]
    cells = [" / ".join(spread(values(record, part, f)) for f in figures) for part in parts]
    together = f"{len(run['members'])} models together" if run.get("members") else ""
    taught = f"taught by {len(run['teacher'])} models" if run.get("teacher") else ""
    count = f"{run['weights']:,}"
    return [f"`{record['recipe']}`", count, str(len(record["runs"])), *cells, together or taught]


def runs_section(records: list[Record]) -> str:
    """Return the section of all runs: command, cost and device."""
    header = ["command", "test", "steps", "minutes", "tokens/s", "device", "at once", "commit"]
    ordered = sorted(records, key=lambda record: (record["recipe"], on_cpu(record)))
    rows = [_run_row(run) for record in ordered for run in record["runs"]]
    text = (
        "## Runs\n\n"
        "Each is made again by its command and `--data-dir`. The figures are those of its section. "
        'Time is that of training, evaluations on the dev set among it. "At once" says how many '
        "runs may have shared the device, where that is known.\n\n"
    )
    return text + lines(header, rows, numbers=[1, 2, 3, 4, 6])


def _run_row(run: Record) -> list[str]:
    trained = run["training"]
    numbers = ["", "", ""]
    if trained:  # an ensemble is not
        speed = f"{trained['tokens_per_s']:,.0f}"
        numbers = [f"{trained['steps']:,}", f"{trained['minutes']:.1f}", speed]
    commit = (run["commit"] or "none")[:12] + (" with changes" if run["changed_since"] else "")
    beside = str(run.get("at_once") or "")
    scored = run["scores"].get("test", {"figures": {}})["figures"].values()
    figures = " / ".join(_figure(figure["value"]) for figure in scored)
    # where a run was made is no part of its command, but a GPU is what is taken if there is one
    where = f" device=cpu threads={run['cores']}" if run.get("cores") and trained else ""
    command = f"`{run['command']}{where}`"
    return [command, figures, *numbers, device(run), beside, commit]


def signatures_section(records: list[Record]) -> str:
    """Return the section of metric signatures, each once."""
    by_signature: dict[tuple[str, str], list[str]] = {}
    for record in headlines(records):
        for name, figure in record["runs"][-1]["scores"]["test"]["figures"].items():
            key = (TITLES.get(name, name), figure["signature"])
            by_signature.setdefault(key, []).append(f"`{record['recipe']}`")
    rows = [[", ".join(of), name, f"`{how}`"] for (name, how), of in by_signature.items()]
    return "## Signatures\n\n" + lines(["recipe", "figure", "signature"], rows) if rows else ""


def slug(words: str) -> str:
    """Return a text as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
