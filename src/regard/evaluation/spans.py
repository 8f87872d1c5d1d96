"""Spans of tagged sequences, such as names in a sentence, and their F1.

Spans are those of the CoNLL shared tasks (Tjong Kim Sang and De Meulder, 2003,
https://aclanthology.org/W03-0419): `B-PER` begins a person, `I-PER` goes on with it, `O` is outside
of all; `E-` or `L-` may mark the last tag of a span, and `S-` or `U-` one of a single tag. A span
is right if its type and both of its ends are. Tags that break their scheme are read as the
evaluation of these tasks reads them: a span begins wherever the type changes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float

from regard.evaluation.classification import ClassRow, class_row

OUTSIDE: Final = "O"
#: prefixes of tags, each as one of B, I, E and S
PREFIXES: Final = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S"}


class Span(NamedTuple):
    """A span of tags: its type, the first of its tags, and the one after the last."""

    type: str
    start: int
    end: int


def are_span_tags(tags: Iterable[str]) -> bool:
    """Return whether tags mark spans: each has a prefix, and some begin one.

    Prefixes without a type are too much like other tags, unless there are no others.
    """
    marked = {tag for tag in tags if tag != OUTSIDE}
    if not marked or not all(tag.partition("-")[0] in PREFIXES for tag in marked):
        return False
    if all("-" not in tag for tag in marked):
        return {"B", "I"} <= marked
    return all(tag.partition("-")[2] for tag in marked)


def spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans of a sequence of tags, in order."""
    found: list[Span] = []
    start, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        name, _, now_kind = tag.partition("-")
        now = PREFIXES.get(name, OUTSIDE)
        changed = now_kind != kind or before in (OUTSIDE, "E", "S") or now in ("B", "S")
        if before != OUTSIDE and (now == OUTSIDE or changed):
            found.append(Span(kind, start, place))
        if now != OUTSIDE and changed:
            start = place
        before, kind = now, now_kind if now != OUTSIDE else ""
    return found


def span_counts(
    predictions: Sequence[str], references: list[list[str]]
) -> Float[np.ndarray, "sentences 3"]:
    """Return the number of right, predicted and true spans of each sequence of tags."""
    rows = []
    for predicted, gold in _pairs(predictions, references):
        rows.append((len(predicted & gold), len(predicted), len(gold)))
    return np.array(rows, dtype=np.float64).reshape(len(predictions), 3)


def span_rows(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[ClassRow]:
    """Return the results of each type of span, those with most spans first."""
    right, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for found, true in _pairs(predictions, references):
        right.update(span.type for span in found & true)
        predicted.update(span.type for span in found)
        gold.update(span.type for span in true)
    types = sorted(predicted | gold, key=lambda one: (-gold[one], one))
    return [class_row(one, right[one], predicted[one], gold[one]) for one in types]


def tag_matches(
    predictions: Sequence[str], references: list[list[str]]
) -> Float[np.ndarray, "sentences 2"]:
    """Return the number of right tags of each sequence, and of all; a missing tag is wrong."""
    rows = []
    for prediction, several in zip(predictions, references, strict=True):
        found = prediction.split()
        gold = (prediction if prediction in several else several[0]).split()
        right = sum(a == b for a, b in zip(found, gold, strict=False))
        rows.append((right, max(len(found), len(gold))))
    return np.array(rows, dtype=np.float64).reshape(len(predictions), 2)


def _pairs(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterable[tuple[set[Span], set[Span]]]:
    """Yield the spans of each prediction, and of the reference that it is compared with."""
    for prediction, several in zip(predictions, references, strict=True):
        gold = prediction if prediction in several else several[0]
        yield set(spans(prediction.split())), set(spans(gold.split()))
