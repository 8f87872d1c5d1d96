"""Write the report of a folder of results as Markdown, with its figures as SVG."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined

from regard import lab
from regard.atomic_files import atomic_output
from regard.lab import plots, runner
from regard.lab.experiment import Claim, Experiment, ReportTable, Verdict
from regard.lab.runner import ExperimentResult
from regard.safe_read import read_bytes

TITLE: Final = "What the documents say about attention, measured"
FILE: Final = "report.md"
FIGURES_DIR: Final = "figures"
CLAIM_COLUMNS: Final = ("claim", "document", "verdict", "measured")
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


@dataclass(frozen=True)
class ReportSection:
    """The section of an experiment.

    Attributes:
        experiment: the experiment.
        result: its result, or None if it failed before there was one.
        claims: its claims with their verdicts.
        plots: captions of its plots, by the names of their files.
        tables: its tables.
        failure: why there is nothing, or nothing new; empty if all went well.
    """

    experiment: Experiment
    result: ExperimentResult | None
    claims: Sequence[Claim] = ()
    plots: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[ReportTable] = ()
    failure: str = ""

    @property
    def explanation(self) -> str:
        """The failure, the file with its traceback, and the origin of what is shown anyway."""
        earlier = " What stands here is from an earlier run." if self.claims else ""
        return f"{self.failure}: its traceback is in {self.experiment.name}.log.{earlier}"


def write(folder: Path) -> list[ReportSection]:
    """Write report.md about all results of known experiments in a folder."""
    sections = [found for name in lab.EXPERIMENTS if (found := section(folder, name)) is not None]
    claim_rows = [
        (f"[{claim.text}](#{part.experiment.name})", claim.source, claim.verdict, claim.evidence)
        for part in sections
        for claim in part.claims
    ]
    values = {
        "title": TITLE, "summary": summarise(sections), "sections": sections,
        "claim_columns": CLAIM_COLUMNS, "claim_rows": claim_rows, "figures": FIGURES_DIR,
    }  # fmt: skip
    text = _environment().get_template(FILE).render(values).rstrip("\n") + "\n"
    with atomic_output(folder / FILE) as file:
        file.write(text.encode())
    return sections


def section(folder: Path, name: str) -> ReportSection | None:
    """Return the section of an experiment, or None if the folder has nothing of it."""
    log = runner.log_path(folder, name)
    result, failure = runner.load(folder, name), ""
    if log.is_file():
        lines = read_bytes(log).decode(errors="replace").splitlines()
        failure = next(iter(lines), "failed")
    if result is None:
        return ReportSection(runner.find(name), None, failure=failure) if failure else None
    experiment = runner.find(name)
    try:
        claims, tables = experiment.judge(result.data), experiment.tabulate(result.data)
        saved = _save_plots(experiment, result, folder / FIGURES_DIR)
        return ReportSection(experiment, result, claims, saved, tables, failure)
    except Exception as error:  # data of another version, or a bug in the experiment
        failure = runner.log_failure(error, folder, name)
        return ReportSection(experiment, result, failure=failure)


def _save_plots(experiment: Experiment, result: ExperimentResult, folder: Path) -> dict[str, str]:
    saved = {}
    for plot in experiment.draw(result.data):
        stem = f"{experiment.name}-{plot.name}"
        plots.save(plot.figure, folder, stem)
        saved[stem] = plot.caption
    return saved


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


def summarise(sections: Sequence[ReportSection]) -> str:
    """Return the number of claims with each verdict, and the experiments that failed."""
    summary = count_verdicts(claim for section in sections for claim in section.claims)
    failed = [section.experiment.name for section in sections if section.failure]
    return summary + (f" Failed: {', '.join(failed)}." if failed else "")


def provenance(result: ExperimentResult) -> list[tuple[str, str]]:
    """Return where and how a result was measured, as rows of a name and a value."""
    facts = result.facts
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


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("regard.lab"), undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "provenance": provenance,
        "one_line": _one_line,
        "markdown_table": _markdown_table,
    }
    return environment


def _markdown_table(rows: Iterable[Sequence[str]], columns: Sequence[str]) -> str:
    lines: list[Any] = [columns, ["---"] * len(columns), *rows]
    cells = ([_one_line(cell).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _one_line(text: str) -> str:
    return " ".join(text.split())
