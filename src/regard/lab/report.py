"""Write the report of a folder of results as Markdown, with its figures as SVG."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined

from regard import lab
from regard.atomic_files import atomic_output
from regard.lab import plots, runner
from regard.lab.experiment import Claim, Experiment, ReportTable, Verdict
from regard.lab.runner import SavedResult

TITLE: Final = "What the documents say about attention, measured"
FILE: Final = "report.md"
FIGURES_DIR: Final = "figures"
CLAIM_COLUMNS: Final = ("claim", "document", "verdict", "measured")
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


class ReportSection(NamedTuple):
    """The section of an experiment, with captions of its plots by the names of their files."""

    experiment: Experiment
    result: SavedResult
    claims: Sequence[Claim]
    plots: Mapping[str, str]
    tables: Sequence[ReportTable]


def write(folder: Path) -> list[ReportSection]:
    """Write report.md about all results of known experiments in a folder."""
    sections = [found for name in lab.EXPERIMENTS if (found := section(folder, name)) is not None]
    claim_rows = [
        (f"[{claim.text}](#{part.experiment.name})", claim.source, claim.verdict, claim.evidence)
        for part in sections
        for claim in part.claims
    ]
    values = {
        "title": TITLE, "sections": sections,
        "summary": count_verdicts(claim for part in sections for claim in part.claims),
        "claim_columns": CLAIM_COLUMNS, "claim_rows": claim_rows, "figures": FIGURES_DIR,
    }  # fmt: skip
    text = _environment().get_template(FILE).render(values).rstrip("\n") + "\n"
    with atomic_output(folder / FILE) as file:
        file.write(text.encode())
    return sections


def section(folder: Path, name: str) -> ReportSection | None:
    """Return the section of an experiment, or None if the folder has no result of it."""
    result = runner.load(folder, name)
    if result is None:
        return None
    experiment, data, saved = runner.find(name), result["data"], {}
    for plot in experiment.draw(data):
        stem = f"{name}-{plot.name}"
        plots.save(plot.figure, folder / FIGURES_DIR, stem)
        saved[stem] = plot.caption
    return ReportSection(
        experiment, result, experiment.judge(data), saved, experiment.tabulate(data)
    )


def count_verdicts(claims: Iterable[Claim]) -> str:
    """Return a sentence with the number of claims and of each verdict."""
    counts = Counter(claim.verdict for claim in claims)

    def phrase(verdict: Verdict) -> str:
        if counts[verdict] != 1:
            verb = verdict.replace("holds", "hold").replace("does not", "do not")
            return f"{counts[verdict]} {verb}"
        return f"1 {verdict}"

    total = counts.total()
    return f"{total} claim{'s' * (total != 1)}: {', '.join(map(phrase, VERDICTS))}."


def provenance(result: SavedResult) -> list[tuple[str, str]]:
    """Return where and how a result was measured, as rows of a name and a value."""
    facts = result["facts"]
    cached, seeds = facts.get("kept_pieces"), facts["seeds"]  # pieces of files of earlier versions
    rows = [
        ("command", f"`{facts['command']}`"),
        # a single seed says nothing about chance, and the reader must know it
        ("seeds", ", ".join(map(str, seeds)) + SINGLE_SEED * (len(seeds) == 1)),
        ("device", facts["device"]),
        ("machine", f"{facts['machine']}, torch on {facts['threads']} threads"),
        ("versions", ", ".join(f"{name} {number}" for name, number in facts["versions"].items())),
        ("commit", facts["commit"] or ""),
        (
            "measured",
            f"{facts['finished']}, in {facts['seconds']:g} s"
            + (f", with {cached} of {facts['pieces']} pieces kept from before" if cached else ""),
        ),
    ]
    return [(name, value) for name, value in rows if value]


SINGLE_SEED: Final = (
    ", one alone: intervals over seeds have no width, and verdicts leave chance out"
)


def _markdown_table(rows: Iterable[Sequence[str]], columns: Sequence[str]) -> str:
    lines: list[Any] = [columns, ["---"] * len(columns), *rows]
    cells = ([_one_line(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _environment() -> Environment:
    loader, undefined = PackageLoader("regard.lab"), StrictUndefined
    found = Environment(loader=loader, undefined=undefined, trim_blocks=True, lstrip_blocks=True)
    tables = {"provenance": provenance, "markdown_table": _markdown_table}
    found.filters |= {**tables, "one_line": _one_line}
    return found
