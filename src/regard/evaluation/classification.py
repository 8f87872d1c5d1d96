"""Classification: counts of each class, macro F1 and the confusion of classes.

Where an example has several references, a prediction that is one of them is right; a wrong one is
counted against the first.

Spans of tagged sequences, such as names in a sentence, and their F1.

Spans are those of the CoNLL shared tasks (Tjong Kim Sang and De Meulder, 2003,
https://aclanthology.org/W03-0419): `B-PER` begins a person, `I-PER` goes on with it, `O` is outside
of all; `E-` or `L-` may mark the last tag of a span, and `S-` or `U-` one of a single tag. A span
is right if its type and both of its ends are. Tags that break their scheme are read as the
evaluation of these tasks reads them: a span begins wherever the type changes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from regard.errors import ArgumentError
from regard.messages import message

#: classes of the references that macro F1 has room for: each takes three numbers of every example
MOST_CLASSES: Final = 1000
#: classes that a sentence names
NAMED: Final = 5


class ClassRow(NamedTuple):
    """Results of one class.

    Attributes:
        label: the class.
        precision: share of its predictions that are right; 0 if it is never predicted.
        recall: share of its examples that are predicted; 0 if it has none.
        f1: harmonic mean of both.
        support: number of its examples.
        predicted: number of its predictions.
    """

    label: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True)
class Confusion:
    """Counts of predictions of each class for examples of each class.

    Attributes:
        labels: the classes, those with most examples first.
        counts: number of examples by class and prediction; most pairs of many classes never occur.
    """

    labels: tuple[str, ...]
    counts: Mapping[tuple[str, str], int]

    def rows(self) -> list[ClassRow]:
        """Return the results of each class."""
        support, predicted = self._totals(0), self._totals(1)
        return [
            class_row(label, self.counts.get((label, label), 0), predicted[label], support[label])
            for label in self.labels
        ]

    def _totals(self, side: int) -> Counter[str]:
        totals: Counter[str] = Counter()
        for pair, count in self.counts.items():
            totals[pair[side]] += count
        return totals

    def mistakes(self) -> list[tuple[str, str, int]]:
        """Return class, prediction and number of all wrong pairs, the most frequent first."""
        wrong = [(gold, found, n) for (gold, found), n in self.counts.items() if gold != found]
        return sorted(wrong, key=lambda one: (-one[2], one[0], one[1]))


class ClassReport(NamedTuple):
    """Results by class.

    Attributes:
        unit: what a class is: "label", "tag" or "type of span".
        rows: of each class, those with most examples first.
        confusion: of labels, or of tags.
        notes: sentences about classes that cannot be right.
    """

    unit: str
    rows: list[ClassRow]
    confusion: Confusion
    notes: tuple[str, ...] = ()


def confusion(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Confusion:
    """Count the predictions of each class by the class of the reference."""
    gold = gold_classes(predictions, references)
    counts = Counter(zip(gold, predictions, strict=True))
    support = Counter(gold)
    support.update(dict.fromkeys(predictions, 0))
    labels = sorted(support, key=lambda label: (-support[label], label))
    return Confusion(tuple(labels), counts)


def unknown_classes(references: Iterable[Sequence[str]], known: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence about examples of classes that a model does not know, if there are any."""
    own = set(known)
    unknown = Counter(several[0] for several in references if own.isdisjoint(several))
    if not unknown:
        return ()
    named = (f"{label!r:.40}" for label, _ in unknown.most_common(NAMED))
    names = message("check.comma").join(named)
    left = len(unknown) - NAMED
    more = message("classes.more", count=left) if left > 0 else ""
    number = "one" if unknown.total() == 1 else "several"
    said = message(f"classes.unknown.{number}", count=unknown.total(), names=names, more=more)
    return (said,)


def class_row(label: str, right: int, predicted: int, support: int) -> ClassRow:
    """Return the results of a class from its counts."""
    counts = (np.array(float(count)) for count in (right, predicted, support))
    precision, recall, f1 = map(float, precision_recall_f1(*counts))
    return ClassRow(label, precision, recall, f1, support, predicted)


def gold_classes(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[str]:
    """Return the class that each prediction is compared with: itself if it is a reference."""
    pairs = zip(predictions, references, strict=True)
    return [predicted if predicted in several else several[0] for predicted, several in pairs]


def label_set(text: str) -> set[str]:
    """Return the labels of a normalised text: one, or one of each line."""
    return {*text.split("\n")} - {""}


def compared_sets(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    read: Callable[[str], set[Any]] = label_set,
) -> Iterator[tuple[set[Any], set[Any]]]:
    """Yield the items of each prediction, and of the reference that it is compared with."""
    for pair in zip(predictions, gold_classes(predictions, references), strict=True):
        found, gold = map(read, pair)
        yield found, gold


def class_counts(
    predictions: Sequence[str], references: list[list[str]]
) -> Float[np.ndarray, "sentences columns"]:
    """Return for each class of the references, in three blocks of columns, whether an example is
    rightly predicted as it, is predicted as it, and belongs to it."""
    classes = sorted({one for several in references for text in several for one in label_set(text)})
    if len(classes) > MOST_CLASSES:
        raise ArgumentError(
            "metric",
            f"not be macro-f1 for more than {MOST_CLASSES:,} classes",
            f"macro-f1 of {len(classes):,}",
            "take accuracy",
        )
    place = {label: i for i, label in enumerate(classes)}
    counts = np.zeros((len(predictions), 3, len(classes)))
    for row, (found, wanted) in enumerate(compared_sets(predictions, references)):
        for block, labels in enumerate((wanted & found, found, wanted)):
            # a class without any reference has no F1
            counts[row, block, [place[label] for label in labels if label in place]] = 1
    return counts.reshape(len(predictions), -1)


def set_counts(
    predictions: Sequence[str],
    references: list[list[str]],
    read: Callable[[str], set[Any]] = label_set,
) -> Float[np.ndarray, "sentences 3"]:
    """Return how many items of each example are right, predicted, and of the reference."""
    sets = compared_sets(predictions, references, read)
    return np.array([[len(own & gold), len(own), len(gold)] for own, gold in sets], np.float64)


def set_report(predictions: Sequence[str], references: list[list[str]]) -> ClassReport:
    """Return results by label; a label that is missing is confused with those in excess."""
    support, predicted, confused = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    for own, wanted in compared_sets(predictions, references):
        support.update(wanted)
        predicted.update(own)
        confused.update((label, label) for label in own & wanted)
        confused.update((missing, extra) for missing in wanted - own for extra in own - wanted)
    labels = sorted(support | predicted, key=lambda label: (-support[label], label))
    rows = [class_row(one, confused[one, one], predicted[one], support[one]) for one in labels]
    return ClassReport("label", rows, Confusion(tuple(labels), confused))


def macro_f1(sums: Float[np.ndarray, "samples columns"]) -> Float[np.ndarray, " samples"]:
    """Return the mean F1 of the classes; one that a resample has nothing of does not count."""
    right, predicted, gold = sums.reshape(len(sums), 3, -1).transpose(1, 0, 2)
    f1 = precision_recall_f1(right, predicted, gold)[2]
    there = (predicted + gold) > 0
    return np.asarray(f1.sum(axis=1) / np.maximum(there.sum(axis=1), 1))


def micro_f1(sums: Float[np.ndarray, "samples 3"]) -> Float[np.ndarray, " samples"]:
    """Return F1 from rows (right, predicted, gold)."""
    return precision_recall_f1(*sums.T)[2]


def precision_recall_f1(
    right: np.ndarray, predicted: np.ndarray, gold: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and F1 of counts; each is 0 where there is nothing to divide by."""

    def share(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
        shares: np.ndarray = np.divide(top, bottom, out=np.zeros(top.shape), where=bottom > 0)
        return shares

    return share(right, predicted), share(right, gold), share(2 * right, predicted + gold)


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


def span_set(text: str) -> set[Span]:
    """Return the spans of tags that spaces separate."""
    return {*spans(text.split())}


def span_rows(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> list[ClassRow]:
    """Return the results of each type of span, those with most spans first."""
    right, predicted, gold = Counter[str](), Counter[str](), Counter[str]()
    for found, true in compared_sets(predictions, references, span_set):
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
    for prediction, right in zip(predictions, gold_classes(predictions, references), strict=True):
        found, gold = prediction.split(), right.split()
        hits = sum(a == b for a, b in zip(found, gold, strict=False))
        rows.append((hits, max(len(found), len(gold))))
    return np.array(rows, dtype=np.float64)
