"""Comparison of two models, or of two inputs of one: answers, scores and attention maps."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from regard.api.evaluate_pairs import metric_names
from regard.api.model import Model
from regard.errors import ArgumentError
from regard.evaluation import (
    Comparison,
    ConfidenceInterval,
    Normalizer,
    confidence_interval,
    paired_bootstrap,
    paired_perplexity,
)
from regard.evaluation.bootstrap import perplexities
from regard.seeing import Trace
from regard.seeing.trace.head_habits import TraceDistance, trace_distance

#: examples whose traces are kept, those that differ most
SHOWN: Final = 12
#: traces that are computed at once, and pairs that are in memory before most are dropped
BATCH: Final = 8
KEPT: Final = 64


class ComparedExample(NamedTuple):
    """An example under two models.

    Attributes:
        number: its place among the examples, from 1.
        source: the text that is read.
        reference: the correct target; None if unknown.
        answers: of the first model and of the second; a perplexity if they are language models.
        distance: between their maps.
        traces: of both, for the examples that differ most; None for the others.
    """

    number: int
    source: str
    reference: str | None
    answers: tuple[str, str]
    distance: TraceDistance
    traces: tuple[Trace, Trace] | None

    @property
    def largest(self) -> float:
        """Distance of the head that differs most; 0 if no maps were compared."""
        return self.distance.heads[0].distance if self.distance.heads else 0.0


class HeadChange(NamedTuple):
    """Distance between two models in one head.

    Attributes:
        kind: of the map.
        layer: counted from 0.
        head: counted from 0.
        distance: mean over the examples.
        largest: of one example,
        example: and the number of that example.
    """

    kind: str
    layer: int
    head: int
    distance: float
    largest: float
    example: int


class ModelComparison(NamedTuple):
    """Two models on the same examples.

    Attributes:
        scores: each metric with a paired interval; empty without references.
        agreement: share of the examples with the same answer; None for language models.
        heads: those that differ most first.
        examples: those that differ most first.
        forced: what the maps are of, as in `both wrote the reference`.
        notes: a sentence for each kind of maps that could not be compared, and where.
    """

    scores: list[Comparison]
    agreement: ConfidenceInterval | None
    heads: list[HeadChange]
    examples: list[ComparedExample]
    forced: str
    notes: list[str]


def compare_models(
    first: Model,
    second: Model,
    sources: Sequence[Any],
    references: Sequence[Sequence[str]] | None = None,
    *,
    metric: str | Sequence[str] | None = None,
    beam: int | None = None,
    shown: int = SHOWN,
    done: Callable[[int], None] = lambda examples: None,
) -> ModelComparison:
    """Compare two models on the same examples.

    For the maps, both are made to write the same target: the reference or, without one, what the
    first model answers. Language models are made to write the texts.

    Args:
        first: a model,
        second: and another, of the same kind.
        sources: as both read them; of language models, texts.
        references: the accepted targets of each; None if unknown.
        metric: one or several; those that suit the target if None.
        beam: width of the search; that of each run if None.
        shown: number of examples that keep their traces.
        done: called with a number of examples whenever some are done.
    """
    _check_comparable(first, second, sources)
    if not first.task.has_sources:
        return _compare_texts(first, second, list(sources), shown, done)
    names = metric_names(first.task.tokens.metrics(), metric) if references is not None else []
    options: dict[str, Any] = {"attention": False} | ({} if beam is None else {"beam": beam})
    here, there = ([o.text for o in m.predict(sources, **options)] for m in (first, second))
    targets = here if references is None else [accepted[0] for accepted in references]
    pairs = _trace_pairs(first, second, sources, targets, done)
    answers = list(zip(here, there, strict=True))
    examples, heads, notes = _collect(pairs, answers, references, shown)
    normalizer: Normalizer = first.tgt_tokenizer
    scores = [
        paired_bootstrap(name, here, there, references or [], normalizer=normalizer)
        for name in names
    ]
    same = confidence_interval("exact", there, [[text] for text in here], normalizer=normalizer)
    forced = "both wrote what A answers" if references is None else "both wrote the reference"
    return ModelComparison(scores, same, heads, examples, forced, notes)


def _check_comparable(first: Model, second: Model, sources: Sequence[Any]) -> None:
    if not sources:
        raise ArgumentError("texts", "be one or more", "none", "there is nothing to compare")
    if first.task.has_sources != second.task.has_sources:
        kinds = [
            "a model of sources" if model.task.has_sources else "a language model"
            for model in (first, second)
        ]
        raise ArgumentError(
            "both models", "be of one kind", " and ".join(kinds), "choose two of the same kind"
        )
    for source in sources:
        second.check_source(source)


def _trace_pairs(
    first: Model,
    second: Model,
    sources: Sequence[Any],
    targets: Sequence[str],
    done: Callable[[int], None],
) -> Iterator[tuple[Trace, Trace]]:
    """Yield the traces of both models for each source, some computed at once."""
    for start in range(0, len(sources), BATCH):
        part = slice(start, start + BATCH)
        both = [model.traces(sources[part], targets[part]) for model in (first, second)]
        yield from zip(*both, strict=True)
        done(len(sources[part]))


def _collect(
    pairs: Iterator[tuple[Trace, Trace]],
    answers: Sequence[tuple[str, str]],
    references: Sequence[Sequence[str]] | None,
    shown: int,
) -> tuple[list[ComparedExample], list[HeadChange], list[str]]:
    """Return all examples and heads, the most different first; only a few traces are kept."""
    examples: list[ComparedExample] = []
    found: dict[tuple[str, int, int], list[tuple[float, int]]] = defaultdict(list)
    notes: dict[str, list[int]] = defaultdict(list)
    for number, (here, there) in enumerate(pairs, start=1):
        distance = trace_distance(here, there)
        for one in distance.heads:
            found[one[:3]].append((one.distance, number))
        for note in distance.notes:
            notes[note].append(number)
        text = here.source.text or here.target.text
        reference = None if references is None else references[number - 1][0]
        example = ComparedExample(
            number, text, reference, answers[number - 1], distance, (here, there)
        )
        examples.append(example)
        if number % KEPT == 0:
            examples = _ranked(examples, shown)
    examples = _ranked(examples, shown)
    heads = [
        HeadChange(*key, sum(d for d, _ in values) / len(values), *max(values))
        for key, values in found.items()
    ]
    sentences = [
        note if len(where) == len(examples) else f"{note} (in {len(where)} of {len(examples)})"
        for note, where in notes.items()
    ]
    return examples, sorted(heads, key=lambda one: -one.distance), sentences


def _ranked(examples: Sequence[ComparedExample], shown: int) -> list[ComparedExample]:
    """Return the examples, most different first; those after the first few without traces."""
    ranked = sorted(examples, key=lambda one: (-one.largest, one.number))
    return [*ranked[:shown], *(one._replace(traces=None) for one in ranked[shown:])]


def _compare_texts(
    first: Model, second: Model, texts: list[str], shown: int, done: Callable[[int], None]
) -> ModelComparison:
    """Compare two language models: perplexity, and maps of the texts."""
    here, there = (model.perplexity(texts).each for model in (first, second))
    same = first.tgt_tokenizer.fingerprint == second.tgt_tokenizer.fingerprint
    name, unit = ("perplexity", 1) if same else ("perplexity per word", 2)
    each = [here[:, [0, unit]], there[:, [0, unit]]]
    values = [perplexities(*one.T) for one in each]
    answers = [(f"{name} {a:.4g}", f"{name} {b:.4g}") for a, b in zip(*values, strict=True)]
    pairs = _trace_pairs(first, second, [""] * len(texts), texts, done)
    examples, heads, notes = _collect(pairs, answers, None, shown)
    scores = [paired_perplexity(name, *each)]
    return ModelComparison(scores, None, heads, examples, "both wrote the text", notes)
