"""Says that a run has learned from features where a source comes without them."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from regard import api
from regard.kinds.text_source import name_some


def told_of_features(model: api.Model, texts: Iterable[Any]) -> Iterator[Any]:
    """The sources as they are; stderr is told of the first that has no features, if it should."""
    told = False
    for text in texts:
        if not told and isinstance(text, str) and text.strip() and "\t" not in text:
            told = True
            tell_of_features(model, text)
        yield text


def tell_of_features(model: api.Model, text: str) -> None:
    """Says that this source has no features, if the run has learned from some."""
    known = model.features
    if not known:
        return
    # a word that a shell takes as it stands
    word = text if re.fullmatch(r"[\w .,-]{1,30}", text) else "word"
    typer.echo(
        f"regard: the run was trained with features, but {text!r:.40} has none: write them after a "
        f"tab, as in $'{word}\\t{known[0]}'; the run knows {name_some(known)}.",
        err=True,
    )
