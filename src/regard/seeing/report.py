"""The report of a training run: its curves, and the maps of a few examples as it learned."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final

from regard.seeing.charts import Series, chart, number
from regard.seeing.labels import fit, safe
from regard.seeing.page_modules import text_of
from regard.seeing.static import paths, pooled, token
from regard.seeing.trace import Trace
from regard.seeing.view import select
from regard.version import __version__

#: evaluations whose maps are shown, and cells along a side of such a map
MOST_COLUMNS: Final = 12
MOST_CELLS: Final = 64
#: width of a map
SIZE: Final = 80
#: rows of the table at most
MOST_ROWS: Final = 200
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE: Final = """
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: 1rem 1.5rem }
.chart { margin: 0 } .chart svg { max-width: 100%; height: auto }
.chart text { font-size: 11.5px } .chart .grid { stroke: var(--line); stroke-width: 1 }
.chart polyline, .chart .key line { fill: none; stroke-width: 2; stroke-linejoin: round }
.s0 { stroke: var(--accent) } circle.s0 { fill: var(--accent) }
.s1 { stroke: var(--mark) } circle.s1 { fill: var(--mark) }
.s2 { stroke: var(--dim) } circle.s2 { fill: var(--dim) }
.key { display: inline-flex; align-items: center; gap: 0.3rem; margin-left: 1rem }
.example { margin: 1.4rem 0 } .example > p { margin: 0.1rem 0 0.6rem; overflow-wrap: anywhere }
.through { display: flex; flex-wrap: wrap; gap: 0.75rem; list-style: none; margin: 0; padding: 0 }
.through li { width: 5rem; font-size: 0.8125rem; overflow-wrap: anywhere }
.through svg { display: block; border: 1px solid var(--line) }
.static h2 { font-size: 1.05rem; margin-top: 1.8rem }
.rows th, .rows td { padding: 0.15rem 0.9rem 0.15rem 0; text-align: end;
  border-bottom: 1px solid var(--line) }
.card { grid-template-columns: max-content minmax(0, 1fr) }
"""


def render_report(
    history: Sequence[Mapping[str, Any]],
    examples: Sequence[tuple[int, Sequence[Trace]]],
    card: Mapping[str, object],
    title: str,
    starts: Sequence[int] = (),
) -> str:
    """A page without scripts that loads nothing.

    Args:
        history: a row for each evaluation, as in metrics.jsonl; `lr` and `evaluation_seconds` may
            be among its numbers.
        examples: by step, the traces of the same few dev pairs, always in the same order.
        card: names and values to head the page with.
        title: of the page.
        starts: steps at which the run was resumed, perhaps with another budget, which the learning
            rate follows: its line is not drawn across them.
    """
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in card.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{text_of('style.css')}{STYLE}</style></head><body>"
        f'<header class="top"><h1>{escape(title)}</h1></header>'
        f'<main class="static"><dl class="card">{facts}</dl>'
        f'<h2>Curves</h2><div class="charts">{_curves(history, starts)}</div>'
        f"{_examples(examples)}<h2>All evaluations</h2>{_table(history)}</main>"
        f"<footer><p>Made with regard {escape(__version__)}.</p></footer></body></html>\n"
    )


def _curves(history: Sequence[Mapping[str, Any]], starts: Sequence[int]) -> str:
    metrics = [name for name in _names(history) if name.startswith("dev_") and name != "dev_loss"]
    losses = [
        Series("train", _points(history, "train_loss")),
        Series("dev", _points(history, "dev_loss")),
    ]
    charts = [chart("Loss, nats per token", "step", losses)]
    for name in metrics:
        shown = name.replace("_", " ")
        charts.append(chart(shown, "step", [Series(shown, _points(history, name))]))
    rate = [Series("learning rate", _points(history, "lr"), starts)]
    charts.append(chart("Learning rate", "step", rate))
    charts.append(chart("Tokens per second", "step", [Series("tokens/s", speeds(history))]))
    return "".join(charts)


def speeds(history: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Tokens per second of training between one evaluation and the next, or since the start."""
    rows = [{"step": 0, "tokens": 0, "seconds": 0.0}, *history]
    found = []
    for before, after in pairwise(rows):
        seconds = _training_seconds(after) - _training_seconds(before)
        if seconds > 0:
            found.append((float(after["step"]), (after["tokens"] - before["tokens"]) / seconds))
    return found


def _training_seconds(row: Mapping[str, Any]) -> float:
    return float(row["seconds"] - row.get("evaluation_seconds", 0.0))


def thinned(count: int, most: int = MOST_COLUMNS) -> list[int]:
    """Which of `count` to show: the first, the last, and some between, evenly."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def _names(history: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in history for name in row))


def _points(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    values = ((row["step"], row.get(name)) for row in history)
    return [(float(x), float(y)) for x, y in values if y is not None]


def _examples(examples: Sequence[tuple[int, Sequence[Trace]]]) -> str:
    shown = [examples[i] for i in thinned(len(examples))]
    if not shown or not any(trace.maps for _, traces in shown for trace in traces):
        return ""
    cut = "" if len(shown) == len(examples) else f" {len(shown)} of {len(examples)} are shown."
    many = range(max(len(traces) for _, traces in shown))
    parts = [
        _example([(step, traces[i]) for step, traces in shown if i < len(traces)]) for i in many
    ]
    return (
        "<h2>Attention through training</h2><p>The same dev examples at each evaluation, the model "
        "made to write the reference: a row is a token of the reference and says where the model "
        f"looked, from 0 to 1 on one scale.{cut} Below each map, what it writes by "
        "itself, or the perplexity of a text.</p>" + "".join(parts)
    )


def _example(steps: Sequence[tuple[int, Trace]]) -> str:
    first = steps[0][1]
    maps = "".join(_map(step, trace) for step, trace in steps)
    texts = [text for text in (first.source.text, first.target.text) if text]
    title = " → ".join(token(text, 80) for text in texts)
    return f'<section class="example"><h3>{title}</h3><ol class="through">{maps}</ol></section>'


def _map(step: int, trace: Trace) -> str:
    if not trace.maps:
        return ""
    view = select(trace, words=False)
    rows, columns = view.weights.shape
    height, width = min(rows, MOST_CELLS), min(columns, MOST_CELLS)
    cell = SIZE / max(height, width, 1)
    size = f'width="{SIZE}" viewBox="0 0 {width * cell:.0f} {height * cell:.0f}"'
    notes = "".join(f"<div>{token(note, 60)}</div>" for note in trace.notes)
    best = fit(safe(_strongest(view.columns, view.weights)), 40)
    return (
        f'<li><svg {size} role="img" aria-label="step {step}: the first token looked most at '
        f'{escape(best)}">{paths(pooled(view.weights, height, width), cell)}</svg>'
        f'<span class="dim">step {step}</span>{notes}</li>'
    )


def _strongest(columns: Sequence[str], weights: Any) -> str:
    return columns[int(weights[0].argmax())] if weights.size else ""


def _table(history: Sequence[Mapping[str, Any]]) -> str:
    names = _names(history)
    rows = history[-MOST_ROWS:]
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_value(row.get(name))}</td>" for name in names) + "</tr>"
        for row in rows
    )
    cut = f"The last {MOST_ROWS} of {len(history)}." if len(rows) < len(history) else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="All evaluations">'
        f'<table class="rows"><caption>{cut}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _value(value: object) -> str:
    if isinstance(value, float):
        return number(value)
    return escape(str(value)) if value is not None else "–"
