"""Results of `small_data.py`: kept as JSON, shown as docs/small_data.md."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from report import ROOT

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

Record = dict[str, Any]


def collect(files: Iterable[Path], target: Path = RESULTS) -> None:
    """Add the results of runs to those that are kept; a later one of the same job replaces."""
    record = json.loads(target.read_text()) if target.exists() else {"machines": [], "results": []}
    found = {_key(result): result for result in record["results"]}
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.pop("kind") == "machine":
                if row not in record["machines"]:
                    record["machines"].append(row)
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
    newest = record["machines"][-1].get("source", {}).get("commit")
    parts = [_head(record, done)]
    where = sorted({(r["job"]["machine"], r["job"]["minutes"]) for r in done})
    for machine, minutes in where:
        here = [r for r in done if (r["job"]["machine"], r["job"]["minutes"]) == (machine, minutes)]
        parts.append(_table(machine, minutes, here, newest))
    if any(_is_older(result, newest) for result in done):
        parts.append(
            "† measured at an earlier commit of the defaults, by which a run could end before its "
            "minutes were over.\n"
        )
    missing = [result["job"] for result in record["results"] if "exact" not in result]
    if missing:
        names = ", ".join(f"{j['system']} {j['model']} on {j['task']}" for j in missing)
        parts.append(f"Without a result, because the job failed: {names}.\n")
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
holds out its own dev pairs of those given, about 5%. Each cell is one run with one seed, and the
test set alone gives a score near 50% a standard error of {_standard_error(done):.1f} points.

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


def _is_older(result: Record, newest: str | None) -> bool:
    """Return whether a result of the tree after the change is not of its newest commit."""
    return result["job"]["system"] == "after" and result["commit"] != newest


def _table(machine: str, minutes: float, results: list[Record], newest: str | None) -> str:
    cells: dict[tuple[str, int, str], dict[str, Record]] = {}
    for result in results:
        job = result["job"]
        model = PEERS[job["model"]] if job["system"] == "yoyodyne" else job["model"]
        cells.setdefault((job["task"], job["pairs"], model), {})[job["system"]] = result
    order = sorted(cells, key=lambda cell: (cell[0], MODELS.index(cell[2]), cell[1]))
    unit = "minute" if minutes == 1 else "minutes"
    lines = [
        f"## {MACHINES[machine]}, {minutes:g} {unit}",
        "",
        "| task | model | pairs | before | after | yoyodyne |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for task, pairs, model in order:
        found = cells[task, pairs, model]
        values = " | ".join(_cell(found.get(system), found, newest) for system in SYSTEMS)
        lines.append(f"| {task} | {model} | {pairs:,} | {values} |")
    return "\n".join(lines) + "\n"


def _cell(result: Record | None, beside: dict[str, Record], newest: str | None) -> str:
    """Return a score, in bold if it is the highest of its row."""
    if result is None:
        return ""
    best = result["exact"] == max(other["exact"] for other in beside.values())
    exact = f"{100 * result['exact']:.1f}"
    shown = f"**{exact}**" if best and len(beside) > 1 else exact
    mark = "†" if _is_older(result, newest) else ""
    return f"{shown} ({100 * result['error_rate']:.1f}), {result['step']:,} steps{mark}"


def _listed(values: Iterable[str | None]) -> str:
    return ", ".join(sorted({value for value in values if value})) or "none"


def _key(result: Record) -> tuple[str, ...]:
    job = result["job"]
    names = ("machine", "minutes", "task", "model", "pairs", "system")
    return tuple(f"{job[name]:>12}" for name in names)
