"""Write the table that compares regard with other toolkits from the JSON of one or more runs."""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from cases import CASES

Record = dict[str, Any]

#: columns, in their order: the name of a system and its precision
PEERS: Final = {
    "JoeyNMT": ("joeynmt", "32"),
    "OpenNMT-py": ("OpenNMT-py", "32"),
    "Eole": ("eole", "32"),
    "yoyodyne": ("yoyodyne", "32"),
    "CTranslate2": ("ctranslate2", "32"),
    "CTranslate2 int8": ("ctranslate2", "int8"),
}
OURS: Final = {"regard": ("regard", "32"), "regard bf16": ("regard", "bf16")}
UNITS: Final = {"train": "tokens_per_s", "predict": "sentences_per_s"}


def speed(records: Iterable[Record], unit: str) -> float | None:
    """Return the throughput over all runs."""
    found = list(records)
    if not found:
        return None
    seconds = sum(record["seconds"] for record in found)
    return sum(record[unit] * record["seconds"] for record in found) / seconds


def row(records: list[Record], case: str, mode: str) -> list[str]:
    """Return one line of the table."""
    unit = UNITS[mode]
    of_case = [r for r in records if r["case"] == case and r["mode"] == mode]

    def of(system: str, precision: str) -> float | None:
        mine = (r for r in of_case if r["system"] == system and r["precision"] == precision)
        return speed(mine, unit)

    peers = {title: of(*key) for title, key in PEERS.items()}
    ours = {title: of(*key) for title, key in OURS.items()}
    fastest = max((s for t, s in peers.items() if s and PEERS[t][1] == "32"), default=None)
    ratios = [f"{s / fastest:.2f}x" if s and fastest else "" for s in ours.values()]
    return [f"({case}) {mode}", *map(number, [*peers.values(), *ours.values()]), *ratios]


def number(value: float | None) -> str:
    """Format a number for the table; empty if nothing was measured."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def last(reports: list[Record]) -> list[Record]:
    """Return the records of each case and mode from the last report that has any."""
    found: dict[tuple[str, str], list[Record]] = {}
    for report in reports:
        own: dict[tuple[str, str], list[Record]] = {}
        for record in report["records"]:
            own.setdefault((record["case"], record["mode"]), []).append(record)
        found |= own
    return [record for records in found.values() for record in records]


def table(reports: list[Record]) -> str:
    """Return the table and a description of the measurement as Markdown."""
    records = last(reports)
    header = ["case", *PEERS, *OURS, "32 bits / fastest peer's", "bf16 / fastest peer's"]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    modes = [(case, mode) for mode in UNITS for case in CASES]
    present = {(record["case"], record["mode"]) for record in records}
    lines += [row(records, *key) for key in modes if key in present]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{text}\n{footnote(reports, records)}\n"


def footnote(reports: list[Record], records: list[Record]) -> str:
    """Return units, machine, versions and cases."""
    first, machine = records[0], reports[0]["machine"]
    versions = sorted({f"{record['system']} {record['version']}" for record in records})
    commits = dict.fromkeys(
        (report["commit"] or "no commit")[:12]
        + (" with changes" if report["changed_since"] else "")
        for report in reports
    )
    cases = "; ".join(f"({name}) {case.title}" for name, case in CASES.items())
    return (
        "Training: source and target tokens per second. Prediction: sentences per second, beam 5, "
        "batch 32, 20 tokens each. "
        f"{machine['cpu']}, {machine['cores']} cores, {first['threads']} threads, torch "
        f"{first['torch']}; {', '.join(versions)}; "
        f"measured at {', '.join(commits)}. {cases}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", help="JSON of toolkit.py or run_all.py")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table to FILE")
    args = parser.parse_args()
    text = table([json.loads(file.read_text()) for file in args.files])
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
