"""The report as one page without scripts that loads nothing."""

import re
from collections.abc import Sequence
from html import escape
from typing import Final

from regard.lab.experiment import Claim, Table, Verdict
from regard.lab.plots import COLOURS, DARK_COLOURS
from regard.lab.report import Drawn, Section, describe, summarise, why
from regard.lab.report_markdown import TITLE
from regard.seeing.page_modules import text_of
from regard.version import __version__

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
#: read without colour, too
SIGNS: Final[dict[Verdict, str]] = {"holds": "✓", "holds with limits": "◐", "does not hold": "✗"}
CLASSES: Final[dict[Verdict, str]] = {
    "holds": "holds",
    "holds with limits": "limits",
    "does not hold": "fails",
}
#: a number with or without a unit, or a sign that there is none
NUMBER: Final = re.compile(r"[-+−±≈<>×\d.,e%\s]+( ?[a-zA-Zµ%]{1,3})?|[–—-]?")
STYLE: Final = """
:root { --holds: #0b6b3a; --limits: #8a5300; --fails: #b3261e }
main { max-width: 60rem } h1 { font-size: 1.5rem } h3 { font-size: 1rem; margin: 1.4rem 0 0.3rem }
main > section { border-top: 1px solid var(--line); margin-top: 2.2rem; padding-top: 1rem }
section > h2 { font-size: 1.25rem; line-height: 1.3; margin: 0.1rem 0 0.6rem }
.name { color: var(--dim); font-size: 0.875rem; margin: 0 }
a { color: var(--accent) } p { max-width: 46rem }
nav ol { padding-left: 1.4rem; margin: 0.3rem 0 } nav li { padding: 0.1rem 0 }
table { border-collapse: collapse; font-size: 0.875rem }
th, td { text-align: start; vertical-align: top; padding: 0.35rem 1rem 0.35rem 0;
  border-bottom: 1px solid var(--line) }
th { font-weight: 600 } .number { text-align: end; font-variant-numeric: tabular-nums }
.claims td:first-child { width: 28% } .claims td:nth-child(2) { width: 13% }
#claims { font-size: 1.25rem; margin: 1.6rem 0 0.2rem } .table { margin: 1.4rem 0 }
caption { max-width: 46rem }
.verdict { font-weight: 600; white-space: nowrap }
.holds { color: var(--holds) } .limits { color: var(--limits) } .fails { color: var(--fails) }
.judged { list-style: none; padding: 0 } .judged li { margin: 0.9rem 0; padding-left: 0.9rem;
  border-left: 3px solid currentcolor } .judged li > * { color: var(--text) }
.judged li > .verdict { color: inherit } .judged p { margin: 0.15rem 0 }
.failure { border: 1px solid var(--fails); border-radius: 6px; padding: 0.5rem 0.8rem }
.plot { margin: 1.2rem 0 } .plot figcaption { font-size: 0.875rem; max-width: 46rem }
.plot svg { display: block; width: 100%; min-width: 34rem; max-width: 50rem; height: auto }
.plot svg * { stroke-linejoin: round; stroke-linecap: butt } .plot svg text { fill: var(--text) }
.scroll:focus-visible { outline-offset: 4px } details { margin: 1rem 0; font-size: 0.875rem }
.ran { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.1rem 1rem }
.ran dd { margin: 0; overflow-wrap: anywhere } .ran dt { color: var(--dim) }
@media (max-width: 46rem) {
  .claims, .claims tbody, .claims tr, .claims td { display: block }
  .claims thead { display: none }
  .claims td:nth-child(n) { border: 0; padding: 0.1rem 0; width: auto }
  .claims tr { border-bottom: 1px solid var(--line); padding: 0.6rem 0 }
  .ran { grid-template-columns: minmax(0, 1fr) }
}
"""
DARK: Final = "--holds: #5fd394; --limits: #f0b45b; --fails: #ff9a8f"


def render(sections: Sequence[Section]) -> str:
    """The whole page."""
    claims = [(section.experiment.name, claim) for section in sections for claim in section.claims]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(TITLE)}</title>'
        f"<style>{text_of('style.css')}{STYLE}{_colours()}</style></head><body>"
        f'<header class="top"><h1>{escape(TITLE)}</h1></header><main>'
        f"<p>{_text(summarise(sections))}</p>{_contents(sections)}"
        f"{_claims(claims)}{''.join(map(_section, sections))}</main>"
        f"<footer><p>Made with regard {escape(__version__)}.</p></footer></body></html>\n"
    )


def _colours() -> str:
    """The palette of figures as variables, on a light ground and on a dark one."""
    light, dark = (
        "; ".join(f"--c{i}: {colour}" for i, colour in enumerate(colours))
        for colours in (COLOURS, DARK_COLOURS)
    )
    on_dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}; {DARK} }} }}"
    return f":root {{ {light} }}\n{on_dark}\n"


def _contents(sections: Sequence[Section]) -> str:
    items = "".join(
        f'<li><a href="#{escape(section.experiment.name)}">{escape(section.experiment.name)}</a> '
        f'<span class="dim">{_text(section.experiment.question)}</span></li>'
        for section in sections
    )
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>'


def _claims(claims: Sequence[tuple[str, Claim]]) -> str:
    """The table that a reader in a hurry reads alone."""
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("claim", "document", "verdict", "measured")
    )
    body = "".join(
        f'<tr><td><a href="#{escape(name)}">{_text(claim.text)}</a></td>'
        f"<td>{_text(claim.source)}</td><td>{_verdict(claim)}</td>"
        f"<td>{_text(claim.evidence)}</td></tr>"
        for name, claim in claims
    )
    return (
        f'<h2 id="claims">Claims</h2><table class="claims"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _section(section: Section) -> str:
    experiment, name = section.experiment, escape(section.experiment.name)
    mode = f" · {section.result.facts['mode']}" if section.result else ""
    failure = f'<p class="failure">{_text(why(section))}</p>' if section.failure else ""
    return (
        f'<section id="{name}"><p class="name">{name}{escape(mode)}</p>'
        f"<h2>{_text(experiment.question)}</h2><p>{_text(experiment.method)}</p>{failure}"
        f"{_judged(section.claims)}{''.join(map(_plot, section.plots))}"
        f"{''.join(map(_table, section.tables))}{_ran(section)}</section>"
    )


def _judged(claims: Sequence[Claim]) -> str:
    items = "".join(
        f'<li class="{CLASSES[claim.verdict]}">{_verdict(claim)}<p>{_text(claim.text)} '
        f'<span class="dim">({_text(claim.source)})</span></p><p>{_text(claim.evidence)}</p></li>'
        for claim in claims
    )
    return f'<ul class="judged">{items}</ul>'


def _plot(plot: Drawn) -> str:
    label = escape(plot.caption)
    svg = plot.svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return (
        f'<figure class="plot"><div class="scroll" tabindex="0" role="region" '
        f'aria-label="Figure {escape(plot.stem)}">{svg}</div>'
        f"<figcaption>{_text(plot.caption)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    kinds = [_kind(cells) for cells in zip(*table.rows, strict=True)] or [""] * len(table.columns)
    head = "".join(
        f'<th scope="col"{kind}>{_text(column)}</th>'
        for kind, column in zip(kinds, table.columns, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{_text(cell)}</td>' for kind, cell in cells)}</tr>"
        for row in table.rows
        for cells in [zip(kinds, row, strict=True)]
    )
    caption = escape(table.caption)
    return (
        f'<div class="scroll table" tabindex="0" role="region" aria-label="{caption}"><table>'
        f"<caption><span>{_text(table.caption)}</span></caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _kind(cells: Sequence[str]) -> str:
    """Columns of numbers end where numbers end."""
    return ' class="number"' if all(NUMBER.fullmatch(cell) for cell in cells) else ""


def _ran(section: Section) -> str:
    if section.result is None:
        return ""
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{_text(value)}</dd>"
        for name, value in describe(dict(section.result.facts))
    )
    return f'<details open><summary>Where it ran</summary><dl class="ran">{rows}</dl></details>'


def _verdict(claim: Claim) -> str:
    sign, kind = SIGNS[claim.verdict], CLASSES[claim.verdict]
    return (
        f'<span class="verdict {kind}"><span aria-hidden="true">{sign}</span> '
        f"{claim.verdict}</span>"
    )


def _text(text: str) -> str:
    """Words for the page; what stands between backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
