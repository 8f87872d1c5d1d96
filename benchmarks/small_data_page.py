"""Save the results of `small_data.py` as JSON, and write docs/small_data.md."""

import itertools
import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from provenance import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results" / "small_data.json"
PAGE: Final = ROOT / "docs" / "small_data.md"
SYSTEMS: Final = ("before", "after", "yoyodyne")
#: the model of yoyodyne that stands beside a preset
PEERS: Final = {"attentive-lstm": "bahdanau", "transformer": "transformer"}
MACHINES: Final = {"cpu": "Two CPU cores", "cuda": "A GPU"}
MODELS: Final = ("bahdanau", "self-attentive", "transformer")
#: what is kept of a result
KEPT: Final = (
    *("job", "cores", "slots", "commit", "step", "epoch", "seconds", "evaluations", "exact"),
    *("error_rate", "test", "versions", "failed"),
)
TASKS: Final = {
    "cmudict": "English words to phonemes (CMUdict)",
    "katakana": "names from Latin letters to katakana (Wikidata)",
    "reversal": "strings of 3 to 12 letters, reversed",
}

#: marks of results of the tree after the change whose defaults have changed since, by commit
FORMER: Final = {"2944b284d74a": "†"}
NOTES: Final = {
    "†": "measured at an earlier commit of the defaults, by which a run could end before its "
    "minutes were over.",
}

#: about jobs of the tree after the change that failed
MENDED: Final = """\
Those of *after* met a fault that has been mended since: an evaluation in bf16 on the CPU ended with
an error where its last batch had four sequences or fewer."""

TRIALS: Final = """\
## Other settings beside the defaults

Two cells of 20,000 pairs on a GPU had looked worse with the new defaults, by one run each. They
were measured again with three seeds, and with more dropout, with more evaluations, and with a
moving average of the weights (`ema`). The first run with the average, on `cmudict`, had the highest
score of all, so that it alone was tried further: with three seeds, and on the CPU. It was not
better throughout, nor was any of the others, and the defaults have stayed as they were. Runs differ
in how many jobs were on the GPU with them, and so in their steps; all are counted. Single scores
stand in brackets behind their mean, in the order of their seeds.

| task | model | pairs | budget | tree | settings | exact | error rate | steps |
|---|---|--:|---|---|---|--:|--:|--:|"""

Record = dict[str, Any]


def collect(files: Iterable[Path], target: Path = RESULTS) -> None:
    """Add the results of runs to those that are kept.

    A later one of the same job, commit and number of jobs at once replaces; others stand beside it.
    Jobs of less than a minute only compile kernels, and those that were stopped are resumed later.
    """
    record = json.loads(target.read_text()) if target.exists() else {"machines": [], "results": []}
    found = {_key(result): result for result in record["results"]}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            kind = row.pop("kind")
            if kind == "machine":
                if row not in record["machines"]:
                    record["machines"].append(row)
            elif kind == "stopped" or row["job"]["minutes"] < 1:
                continue
            elif "exact" in row or _key(row) not in found:
                found[_key(row)] = {name: row[name] for name in KEPT if name in row}
    record["results"] = [found[key] for key in sorted(found)]
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def render(*, check: bool, source: Path = RESULTS, target: Path = PAGE) -> int:
    """Write the page, or return 1 if it is not what the results give."""
    text = page(json.loads(source.read_text(encoding="utf-8")))
    if check:
        same = target.exists() and target.read_text(encoding="utf-8") == text
        if not same:
            print(f"{target.name} differs from its results: run benchmarks/small_data.py render.")
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    return 0


def page(record: Record) -> str:
    """Return the whole page."""
    done = [result for result in record["results"] if "exact" in result]
    parts = [_head(record, done)]
    plain = [result for result in done if not _changes(result)]
    where = sorted({(r["job"]["machine"], r["job"]["minutes"]) for r in plain})
    for machine, minutes in where:
        here = [r["job"]["machine"] == machine and r["job"]["minutes"] == minutes for r in plain]
        parts.append(_table(machine, minutes, list(itertools.compress(plain, here))))
    marks = {_mark(cell) for cell in _cells(plain).values()}
    parts += [f"{mark} {note}\n" for mark, note in NOTES.items() if mark in marks]
    parts += _trials(done)
    measured = _cells(done)
    failed = _cells(result for result in record["results"] if "exact" not in result)
    missing = [runs[0]["job"] for cell, runs in failed.items() if cell not in measured]
    if missing:
        names = ", ".join(f"{j['system']} {j['model']} on {j['task']}" for j in missing)
        parts.append(f"Without a result, because the job failed: {names}.")
        if any(job["system"] == "after" for job in missing):
            parts.append(MENDED)
        parts[-1] += "\n"
    return "\n".join(parts)


def _head(record: Record, done: list[Record]) -> str:
    machines = "; ".join(dict.fromkeys(_machine(machine) for machine in record["machines"]))
    versions = [dict(result["versions"], system=result["job"]["system"]) for result in done]
    torch = _listed(v["torch"] for v in versions)
    peer = _listed(v.get("yoyodyne") for v in versions)
    numba = _listed(v.get("numba") or "none" for v in versions if v["system"] != "yoyodyne")
    commits = {
        system: _listed(r["commit"][:12] for r in done if r["job"]["system"] == system)
        for system in ("before", "after")
    }
    tasks = "\n".join(f"- `{name}`: {text}." for name, text in TASKS.items())
    tests = _listed(f"{result['test']}" for result in done)
    return f"""# Small data: what default settings reach in a few minutes

Written by `python benchmarks/small_data.py render` from `benchmarks/results/small_data.json`; no
number is typed. `regard train PAIRS --preset MODEL --minutes M` and nothing else: batch size,
model size, warm-up, evaluations and patience are the defaults, before they followed the data
(*before*: commit {commits["before"]}, 4,096 tokens a batch) and since (*after*: commit
{commits["after"]}; the policy is `src/regard/training/defaults.py`). Beside them yoyodyne
{peer}, a toolkit for the same kind of data, with its own defaults on the same pairs: its attentive
LSTM in the rows of bahdanau, its Transformer in those of transformer, whichever is better on dev of
its best epoch and its last weights. It takes a quotation mark for the beginning of a field over
several lines; pairs that have one were left out for it.

{tasks}

A cell has the per cent of {tests} unseen test sources that are answered exactly right, the error
rate per output symbol in brackets, and the optimiser steps. All answers are found greedily. A run
holds out its own dev pairs of those given, about 5%. A cell is one run with one seed, or the mean
of as many runs as it names, and the test set alone gives a score near 50% a standard error of
{_standard_error(done):.1f} points. Differences of a few points between single runs say little.

Machine: {machines}. torch {torch}, numba {numba}.
"""


def _standard_error(done: list[Record]) -> float:
    """Return that of a share of one half, in points."""
    return 50 / math.sqrt(min(result["test"] for result in done))


def _machine(row: Record) -> str:
    slots = row["slots"]
    jobs = f"up to {slots['cpu']} jobs at once on two cores each"
    if slots["cuda"]:
        jobs += f" and {slots['cuda']} on {row['gpu']}, each with one core"
    return f"{row['cpu']} with {row['cores']} cores, {jobs}"


def _changes(result: Record) -> Record:
    """Return the settings of a job that are not the defaults, without its seed."""
    return {k: v for k, v in result["job"].get("settings", {}).items() if k != "seed"}


def _seed(result: Record) -> int:
    return int(result["job"].get("settings", {}).get("seed", 1))


def _model(job: Record) -> str:
    return PEERS[job["model"]] if job["system"] == "yoyodyne" else str(job["model"])


def _cells(results: Iterable[Record]) -> dict[tuple[Any, ...], list[Record]]:
    """Return the runs of each cell; none by former defaults if there is one by those of today."""
    cells: dict[tuple[Any, ...], list[Record]] = {}
    for result in results:
        job = result["job"]
        key = (job["machine"], job["minutes"], job["task"], _model(job), job["pairs"])
        changes = json.dumps(_changes(result), sort_keys=True)
        cells.setdefault((*key, job["system"], changes), []).append(result)
    return {key: [r for r in runs if _mark([r]) == _mark(runs)] for key, runs in cells.items()}


def _mark(runs: list[Record]) -> str:
    """Return the mark of the newest of some runs; none if their defaults are those of today."""
    after = [r for r in runs if r["job"]["system"] == "after"]
    marks = [FORMER.get(result["commit"], "") for result in after]
    return min(marks, key=["", *reversed(NOTES)].index) if marks else ""


def _table(machine: str, minutes: float, results: list[Record]) -> str:
    rows: dict[tuple[str, str, int], dict[str, list[Record]]] = {}
    for (*_, task, model, pairs, system, _), runs in _cells(results).items():
        rows.setdefault((task, model, pairs), {})[system] = runs
    order = sorted(rows, key=lambda row: (row[0], MODELS.index(row[1]), row[2]))
    unit = "minute" if minutes == 1 else "minutes"
    lines = [
        f"## {MACHINES[machine]}, {minutes:g} {unit}",
        "",
        "| task | model | pairs | before | after | yoyodyne |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for task, model, pairs in order:
        found = rows[task, model, pairs]
        best = max(_mean(runs, "exact") for runs in found.values()) if len(found) > 1 else None
        values = " | ".join(_cell(found.get(system, []), best) for system in SYSTEMS)
        lines.append(f"| {task} | {model} | {pairs:,} | {values} |")
    return "\n".join(lines) + "\n"


def _cell(runs: list[Record], best: float | None) -> str:
    """Return the mean score of a cell's runs, in bold if it is the highest of its row."""
    if not runs:
        return ""
    value = _mean(runs, "exact")
    shown = f"{100 * value:.1f}"
    shown = f"**{shown}**" if value == best else shown
    steps = f"{100 * _mean(runs, 'error_rate'):.1f}), {_mean(runs, 'step'):,.0f} steps"
    several = f", {len(runs)} runs" if len(runs) > 1 else ""
    return f"{shown} ({steps}{several}{_mark(runs)}"


def _mean(runs: list[Record], name: str) -> float:
    return statistics.fmean(result[name] for result in runs)


def _trials(done: list[Record]) -> list[str]:
    """Return the section of settings that were tried beside the defaults, if there is any."""
    cells = {k: runs for k, runs in _cells(done).items() if runs[0]["job"]["system"] != "yoyodyne"}
    tried = {key[:-2] for key in cells if key[-1] != "{}"}
    if not tried:
        return []
    lines = [TRIALS]
    for key, runs in sorted(cells.items(), key=lambda cell: cell[0]):
        if key[:-2] not in tried:
            continue
        machine, minutes, task, model, pairs, system, changes = key
        settings = ", ".join(f"{k}={v:g}" for k, v in json.loads(changes).items())
        exact = f"{100 * _mean(runs, 'exact'):.1f}"
        if len(runs) > 1:
            each = [f"{100 * r['exact']:.1f}" for r in sorted(runs, key=_seed)]
            exact += f" ({', '.join(each)})"
        unit = "minute" if minutes == 1 else "minutes"
        lines.append(
            f"| {task} | {model} | {pairs:,} | {MACHINES[machine]}, {minutes:g} {unit} | {system} "
            f"| {settings or 'defaults'}{_mark(runs)} | {exact} "
            f"| {100 * _mean(runs, 'error_rate'):.1f} | {_mean(runs, 'step'):,.0f} |"
        )
    return ["\n".join(lines) + "\n"]


def _listed(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value})) or "none"


def _key(result: Record) -> tuple[str, ...]:
    job = result["job"]
    names = ("machine", "minutes", "task", "model", "pairs", "system")
    settings = json.dumps({"seed": 1, **job.get("settings", {})}, sort_keys=True)
    slots = json.dumps(result.get("slots"), sort_keys=True)
    return (*(f"{job[name]:>12}" for name in names), settings, result["commit"], slots)
