"""The report as Markdown, with its figures beside it."""

from collections.abc import Iterable, Sequence

from regard.lab.experiment import Table
from regard.lab.report import FIGURES, Section, describe, summarise, why

TITLE = "What the documents say about attention, measured"


def render(sections: Sequence[Section]) -> str:
    """The whole report."""
    claims = [(section, claim) for section in sections for claim in section.claims]
    rows = [
        (f"[{claim.text}](#{section.experiment.name})", claim.source, claim.verdict, claim.evidence)
        for section, claim in claims
    ]
    parts = [f"# {TITLE}", summarise(sections)]
    if rows:
        parts.append(_rows(("claim", "document", "verdict", "measured"), rows))
    parts += [part for section in sections for part in _section(section)]
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> list[str]:
    experiment = section.experiment
    parts = [f"## {experiment.name}", f"**{experiment.question}**", experiment.method]
    if section.failure:
        parts.append(f"**{why(section)}**")
    parts += [
        f"- **{claim.verdict}**: {claim.text} ({claim.source})  \n  {claim.evidence}"
        for claim in section.claims
    ]
    parts += [
        f"![{_line(plot.caption)}]({FIGURES}/{plot.stem}.svg)\n\n*{_line(plot.caption)}*"
        for plot in section.plots
    ]
    parts += [_table(table) for table in section.tables]
    if section.result is not None:
        facts = describe(dict(section.result.facts))
        parts.append("Where it ran:\n\n" + _rows(("fact", "value"), facts))
    return parts


def _table(table: Table) -> str:
    return f"{_line(table.caption)}\n\n{_rows(table.columns, table.rows)}"


def _rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())
