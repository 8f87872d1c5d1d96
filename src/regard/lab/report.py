"""The report: what lies in a folder of results, judged, drawn and written as pages."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from regard import lab
from regard.atomic_files import atomic_output
from regard.lab import results, running
from regard.lab.experiment import Claim, Experiment, Table, Verdict
from regard.lab.results import Result

FIGURES: Final = "figures"
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)


@dataclass(frozen=True)
class Drawn:
    """A plot that lies in the folder of figures, also as SVG for a page."""

    stem: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """An experiment as the report shows it.

    Attributes:
        experiment: What was asked, and how.
        result: Of it, or None where it failed before there was one.
        claims: Judged.
        plots: Drawn.
        tables: Written.
        failure: Why there is nothing, or nothing new; empty if all went well.
    """

    experiment: Experiment
    result: Result | None
    claims: Sequence[Claim] = ()
    plots: Sequence[Drawn] = ()
    tables: Sequence[Table] = ()
    failure: str = ""


def write(folder: Path) -> list[Section]:
    """Writes report.html and report.md over all results of a folder whose experiment is known."""
    from regard.lab import report_html, report_markdown

    sections = [found for name in lab.EXPERIMENTS if (found := section(folder, name)) is not None]
    for name, text in (
        ("report.html", report_html.render(sections)),
        ("report.md", report_markdown.render(sections)),
    ):
        with atomic_output(folder / name) as file:
            file.write(text.encode())
    return sections


def section(folder: Path, name: str) -> Section | None:
    """What a folder holds of an experiment; None if that is nothing."""
    result, failure = results.load(folder, name), _failure(folder, name)
    if result is None:
        return Section(running.find(name), None, failure=failure) if failure else None
    experiment = running.find(name)
    try:
        claims, tables = experiment.judge(result.data), experiment.tabulate(result.data)
        return Section(
            experiment, result, claims, _draw(experiment, result, folder), tables, failure
        )
    except Exception as error:  # data of another version, or a mistake in the experiment
        failure = running.note_failure(error, folder, name)
        return Section(experiment, result, failure=failure)


def count(claims: Iterable[Claim]) -> str:
    """How many claims there are, and how many of each verdict."""
    of = Counter(claim.verdict for claim in claims)
    told = ", ".join(f"{of[verdict]} {_plural(verdict, of[verdict])}" for verdict in VERDICTS)
    return f"{of.total()} claim{'s' * (of.total() != 1)}: {told}."


def summarise(sections: Sequence[Section]) -> str:
    """How many claims there are, and which experiments failed."""
    told = count(claim for section in sections for claim in section.claims)
    failed = [section.experiment.name for section in sections if section.failure]
    return told + (f" Failed: {', '.join(failed)}." if failed else "")


def why(section: Section) -> str:
    """What is said of an experiment that failed."""
    name = section.experiment.name
    earlier = " What stands here is from an earlier run." if section.claims else ""
    return f"{section.failure}: its traceback is in {name}.log.{earlier}"


def describe(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Where and how a result was measured, in the order in which it is read."""
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    kept, pieces = facts["kept_pieces"], facts["pieces"]
    from_before = f", with {kept} of {pieces} pieces kept from before" if kept else ""
    rows = [
        ("command", f"`{facts['command']}`"),
        ("seeds", _seeds(facts["seeds"])),
        ("device", facts["device"]),
        ("machine", f"{facts['machine']}, torch on {facts['threads']} threads"),
        ("versions", versions),
        ("commit", facts["commit"] or ""),
        ("measured", f"{facts['finished']}, in {facts['seconds']:g} s{from_before}"),
    ]
    return [(name, value) for name, value in rows if value]


def _seeds(seeds: list[int]) -> str:
    """The seeds; one alone says nothing of chance, and the reader must know it."""
    told = ", ".join(map(str, seeds))
    alone = ", one alone: intervals over seeds have no width, and verdicts leave chance out"
    return told + (alone if len(seeds) == 1 else "")


def _failure(folder: Path, name: str) -> str:
    """The first line of the log of one that failed."""
    path = running.log_path(folder, name)
    if not path.is_file():
        return ""
    return next(iter(path.read_text(encoding="utf-8", errors="replace").splitlines()), "failed")


def _draw(experiment: Experiment, result: Result, folder: Path) -> list[Drawn]:
    from regard.lab import plots

    return [
        Drawn(stem, plot.caption, plots.save(plot.figure, folder / FIGURES, stem))
        for plot in experiment.draw(result.data)
        for stem in [f"{experiment.name}-{plot.name}"]
    ]


def _plural(verdict: Verdict, number: int) -> str:
    if number == 1:
        return verdict
    return verdict.replace("holds", "hold").replace("does not", "do not")
