"""What `losses.py` has measured, as a section of a page."""

from typing import Any

import report

Record = dict[str, Any]


def render(result: Record) -> str:
    """A line for each loss, size and type, both paths in it."""
    machine = result["machine"]
    lines = [
        "## The losses of training",
        "",
        report.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, "
        f"commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        "Milliseconds of the device for forward and backward, where the gradient is written over",
        "the logits: `torch` calls torch for many rows at a time, `triton` is one kernel each way.",
        "*GB/s* counts two readings of the logits and one writing, whatever a path does. Kernels",
        "that err more than twice as much as torch does, against float64, would have no time.",
        "",
        "| loss | target tokens | vocabulary | type | torch | triton | times | GB/s |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    cases: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in result["records"]:
        case = tuple(record[name] for name in ("loss", "tokens", "vocab", "dtype"))
        cases.setdefault(case, {})[record["path"]] = record
    lines += [_row(case, paths) for case, paths in cases.items() if len(paths) == 2]
    return "\n".join(lines) + "\n"


def _row(case: tuple[Any, ...], paths: dict[str, Record]) -> str:
    loss, tokens, vocab, dtype = case
    head = f"| {loss} | {tokens:,} | {vocab:,} | {dtype} | {paths['torch']['both_ms']:.3f} "
    found = paths["triton"]
    if "breaches" in found:
        return f"{head}| breaks the rule: {'; '.join(found['breaches'])} | | |"
    times = paths["torch"]["both_ms"] / found["both_ms"]
    return f"{head}| {found['both_ms']:.3f} | {times:.1f} | {found['gb_per_s']:,.0f} |"
