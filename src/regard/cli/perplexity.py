"""`regard evaluate` of a language model: the perplexity of texts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.console import Console

from regard import api
from regard.cli.console import print_json, print_table, result_console
from regard.cli.pairs import texts_for
from regard.errors import ArgumentError
from regard.evaluation import Perplexity


class PerplexityRow(NamedTuple):
    """A perplexity with its interval, and how it was counted."""

    name: str
    value: float
    low: float
    high: float
    counted: int
    signature: str


def check_options(given: Mapping[str, object]) -> None:
    """Raises where an option was given that has no meaning for texts."""
    wrong = [name for name, value in given.items() if value not in (None, False, "perplexity")]
    if wrong:
        raise ArgumentError(
            wrong[0], "be left out for a language model", "given", "its texts have a perplexity"
        )


def show_perplexity(model: api.Model, file: str, *, skip_bad: bool, as_json: bool) -> None:
    """Scores the texts of a file and prints what was found."""
    found = model.perplexity(texts_for(model, file, skip_bad=skip_bad))
    rows = _rows(found, model)
    if as_json:
        print_json(_as_json(found, rows))
    else:
        _show(found, rows, result_console())


def _rows(found: Perplexity, model: api.Model) -> list[PerplexityRow]:
    kind, join = model.tgt_tokenizer.kind, model.config.join_lines
    how = f"eos:counted|unk:{found.unknown}|tok:{kind}|lines:{join}"
    rows = [
        PerplexityRow(
            "perplexity",
            found.value,
            *found.interval(),
            found.tokens,
            f"perplexity|per:token|{how}",
        )
    ]
    if found.words != found.tokens:
        ends, signature = found.interval(per_word=True), f"perplexity|per:word|{how}"
        rows.append(
            PerplexityRow("perplexity per word", found.per_word, *ends, found.words, signature)
        )
    return rows


def _as_json(found: Perplexity, rows: list[PerplexityRow]) -> dict[str, Any]:
    return {
        "texts": found.texts,
        "tokens": found.tokens,
        "words": found.words,
        "unknown": found.unknown,
        "nats": found.nats,
        "metrics": [row._asdict() for row in rows],
    }


def _show(found: Perplexity, rows: list[PerplexityRow], console: Console) -> None:
    console.print(
        f"{found.texts:,} texts, {found.tokens:,} tokens with an end of each line, "
        f"{found.unknown:,} of them unknown",
        highlight=False,
    )
    shown = [
        [
            row.name,
            f"{row.value:.2f}",
            f"{row.low:.2f} to {row.high:.2f}",
            f"{row.counted:,}",
            row.signature,
        ]
        for row in rows
    ]
    print_table(console, ("metric", "value", "95% interval", "counted", "signature"), shown)
