"""The page docs/decoding-speed.md, from the records of benchmarks/decoding.py."""

import itertools
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import provenance

Record = dict[str, Any]

HEAD: Final = """# Decoding speed

Written by `python benchmarks/decoding.py --render` from the records in benchmarks/results/decoding;
no number is typed. Every table is one run, in which the engines take turns, each in a process of
its own.

What is timed is the search alone, from ids to ids: no tokenizer, no file. Weights are random.
Sources have {length} tokens, vocabularies {vocab:,} entries, and all outputs exactly {length}
tokens: by `min_len = max_len` in regard, which then takes one more step for the end, by
`min_new_tokens = max_new_tokens` in Hugging Face, and by `min_decoding_length =
max_decoding_length` in CTranslate2. Hugging Face is `generate` of a Marian model of the same width,
layers, heads and feed-forward size. CTranslate2 runs the weights of regard as `regard export --to
ctranslate2` writes them; it has no RNNs. OpenNMT-py and Eole read their models from checkpoints
that their own training writes, so they are not here but in [the comparison on two CPU
cores](benchmarks.md).
"""
ENGINES: Final = {
    "regard": "regard",
    "hf": "Hugging Face",
    "ctranslate2": "CTranslate2",
    "before": "regard at {before}",
    "regard plain": "regard, without graphs",
}
CLOCKS: Final = {
    "wall": "By the clock on the wall.",
    "cpu": "In seconds of the processor, since other programs used the machine at the same time.",
}
PRECISIONS: Final = {"32": "float32", "bf16": "bf16"}


def page(folder: Path) -> str:
    """Return the whole page."""
    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    sections = {"speed": _speed, "profile": _profile, "check": _check}
    order = list(sections)
    results.sort(key=lambda result: (order.index(result["kind"]), _on_cpu(result)))
    settings = next((r["settings"] for r in results if "vocab" in r["settings"]), None)
    lines = [HEAD.format(**(settings or {"length": 0, "vocab": 0}))]
    for kind, group in itertools.groupby(results, key=lambda result: result["kind"]):
        lines += sections[kind](list(group))
    return "\n".join(lines).rstrip("\n") + "\n"


def _on_cpu(result: Record) -> bool:
    return bool(result["machine"]["device"] == "cpu")


def _made(result: Record) -> list[str]:
    """Return the command, machine, versions and commit of a run."""
    machine = result["machine"]
    on_gpu = ["triton"] if "gpu" in machine else []
    names = ["torch", *on_gpu, "transformers", "ctranslate2"]
    where = machine.get("gpu") or f"{machine['cpu']}, {_threads(machine)}"
    parts = [where, *(f"{name} {machine[name]}" for name in names if name in machine)]
    changed = " with changes" if result["changed_since"] else ""
    return [
        provenance.made_by(result),
        f"{', '.join(parts)}, commit {(result['commit'] or 'unknown')[:12]}{changed}.",
        "",
        *provenance.cut_short(result, "some rows are missing"),
    ]


def _speed(results: list[Record]) -> list[str]:
    lines = ["## Sentences per second", ""]
    for result in results:
        machine = result["machine"]
        place = machine.get("gpu") or f"CPU, {_threads(machine)}"
        presets = dict.fromkeys(record["preset"] for record in result["records"])
        lines += [f"### {place}: {', '.join(presets)}", "", *_made(result)]
        clock = CLOCKS[result["settings"]["clock"]]
        lines += _paragraph(f"Medians of {result['settings']['rounds']} rounds. {clock}")
        for (beam, precision), records in _grouped(result["records"], "beam", "precision"):
            lines += [f"Beam {beam}, {PRECISIONS[precision]}:", ""]
            lines += [*_rates(records, result), ""]
        lines += _latency_and_memory(result)
        errors = [r for r in result["records"] if "error" in r]
        if errors:
            lines += [f"- {_cell_name(r)}, {r['engine']}: {r['error']}" for r in errors] + [""]
    return lines


def _paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 100), ""]


def _threads(machine: Record) -> str:
    return f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"


def _titles(records: list[Record], result: Record) -> dict[str, str]:
    """Return the titles of the engines that have records, in the order of the columns."""
    present = {record["engine"] for record in records}
    return {name: _title(name, result) for name in ENGINES if name in present}


def _title(engine: str, result: Record) -> str:
    return ENGINES[engine].format(before=(result["before"] or "another commit")[:7])


def _rates(records: list[Record], result: Record) -> list[str]:
    """Return a row for each model and batch: the engines, and regard as a multiple of others."""
    titles = _titles(records, result)
    others = [name for name in titles if name != "regard"]
    head = ["model", "batch", *titles.values()]
    head += [f"regard / {titles[name].removeprefix('regard at ')}" for name in others]
    rows = []
    for (preset, size, batch), cell in _grouped(records, "preset", "size", "batch"):
        rate = {r["engine"]: r.get("sentences_per_s") for r in cell}
        row = [f"{preset} {size}", str(batch), *(_number(rate.get(name)) for name in titles)]
        rows.append([*row, *(_ratio(rate["regard"], rate.get(name)) for name in others)])
    return _table(head, rows, left=1)


def _latency_and_memory(result: Record) -> list[str]:
    """Return two tables, whose columns are the engines."""
    memory = "Most memory that torch has allocated on the GPU in MiB, weights included"
    if _on_cpu(result):
        memory = "Most memory of the whole process in MiB, libraries included"
    elif not all("start_mib" in record for record in result["records"]):
        memory += " and what libraries had kept of the rows above"
    singles = [record for record in result["records"] if record["batch"] == 1]
    lines = []
    for title, records, name, form in (
        ("Milliseconds per token at batch 1:", singles, "ms_per_token", ".2f"),
        (f"{memory}:", result["records"], "peak_mib", ",.0f"),
    ):
        if not records:
            continue
        titles = _titles(records, result)
        rows = []
        for values, cell in _grouped(records, "preset", "size", "batch", "beam", "precision"):
            preset, size, batch, beam, precision = values
            found = {r["engine"]: r[name] for r in cell if name in r and "error" not in r}
            row = [f"{preset} {size}", str(batch), str(beam), PRECISIONS[precision]]
            rows.append([*row, *(format(found[e], form) if e in found else "" for e in titles)])
        head = ["model", "batch", "beam", "type", *titles.values()]
        lines += [title, "", *_table(head, rows, left=1), ""]
    return lines


def _profile(results: list[Record]) -> list[str]:
    lines = [
        "## One decoding step on the GPU",
        "",
        *_paragraph(
            "The difference of two searches, of which one is 16 steps longer, divided by 16. "
            "*kernels*: copies and fills are counted, too. *launches*: calls of the host that "
            "start kernels or graphs. *waits*: calls that wait for the GPU. *busy*: microseconds "
            "in which any kernel runs, by the profiler. *wall*: by the clock, without the "
            "profiler. *gaps*: wall less busy."
        ),
    ]
    for result in results:
        lines += _made(result)
        head = ["model", "batch", "beam", "type", "engine"]
        head += ["kernels", "launches", "waits", "busy", "wall", "gaps", "busy share"]
        rows = []
        for record in result["records"]:
            title = _title(record["engine"], result)
            cells = [f"{record['preset']} {record['size']}", str(record["batch"])]
            cells += [str(record["beam"]), PRECISIONS[record["precision"]], title]
            if "error" in record:
                rows.append([*cells, record["error"], *[""] * 6])
                continue
            cells += [f"{record[name]:.2f}" for name in ("kernels", "launches", "waits")]
            cells += [f"{record[name]:,.0f}" for name in ("busy_us", "wall_us", "gap_us")]
            rows.append([*cells, f"{record['busy_us'] / record['wall_us']:.0%}"])
        lines += [*_table(head, rows, left=5), ""]
    return lines


def _check(results: list[Record]) -> list[str]:
    lines = ["## Replayed and plain search", ""]
    note = ""
    for result in results:
        if _check_note(result) != note:
            note = _check_note(result)
            lines += _paragraph(note)
        lines += _made(result)
        head = [
            "preset",
            "ended by `eos`",
            "equal",
            "scores",
            "maps",
            "weights moved",
            "bf16: equal",
        ]
        head.append("bf16 replayed, equal to float32 plain")
        rows = []
        for (preset,), records in _grouped(result["records"], "preset"):
            wrong = [r["error"] for r in records if "error" in r]
            by_precision = {r["precision"]: r for r in records if "error" not in r}
            full, half = by_precision.get("32"), by_precision.get("bf16")
            cells = [preset] if not wrong else [f"{preset}: {wrong[0]}"]
            rows.append([*cells, *_check_cells(full), *_half_cells(half)])
        lines += [*_table(head, rows, left=1), ""]
    return lines


def _check_note(result: Record) -> str:
    settings = result["settings"]
    note = (
        f"{settings['sources']:,} random sources of 1 to 40 tokens for each preset, random "
        f"weights, beam {settings['beam']}, {settings['nbest']} best; an answer has at most "
        f"{settings['max_len_extra']} tokens more than its source. *equal*: sources whose "
        "hypotheses all have the same tokens in both searches. *scores*: the largest "
        "difference by rank, relative to scores above 1 in size. *maps*: the largest "
        "difference of an attention weight. *weights moved*: sources with equal hypotheses after "
        "two plain searches, the second with all weights moved to a neighbouring float: the "
        "others depend on rounding."
    )
    unrecorded = " On the CPU nothing is recorded: the functions of the graphs run as they are."
    return note + unrecorded if _on_cpu(result) else note


def _check_cells(record: Record | None) -> list[str]:
    if record is None:
        return [""] * 5
    maps, moved = record["with_maps"], record.get("moved")
    equal = min(record["equal"], maps["equal"])
    score = max(record["score_difference"], maps["score_difference"])
    largest = f"{maps['map_difference']:.1e}" if "map_difference" in maps else "none"
    share = f"{record['ended'] / record['sources']:.0%}"
    rounded = "" if moved is None else f"{moved['equal']:,}"
    return [share, f"{equal:,} of {record['sources']:,}", f"{score:.1e}", largest, rounded]


def _half_cells(record: Record | None) -> list[str]:
    if record is None:
        return [""] * 2
    return [f"{record[name] / record['sources']:.1%}" for name in ("equal", "equal_to_32")]


def _grouped(records: Iterable[Record], *names: str) -> list[tuple[tuple[Any, ...], list[Record]]]:
    """Return the records of each combination of values, in the order of their first ones."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record[name] for name in names), []).append(record)
    return list(found.items())


def _table(head: list[str], rows: list[list[str]], *, left: int) -> list[str]:
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return [
        "| " + " | ".join(head) + " |",
        "|" + "|".join(rule) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _ratio(one: float | None, other: float | None) -> str:
    return f"{one / other:.2f}x" if one and other else ""


def _cell_name(record: Record) -> str:
    return ", ".join(f"{record[name]}" for name in ("preset", "size", "precision", "beam", "batch"))
