"""Metrics as papers report them, in their units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final

from sacrebleu.metrics.bleu import BLEU

from regard import extras
from regard.evaluation import PLAIN_TEXT, Normalizer, score
from regard.recipes.task_data import RecipeExample


@dataclass(frozen=True)
class MetricValue:
    """A value of a metric, with what is needed to compare it with others.

    Attributes:
        name: `wer`, `per`, `exact`, `bleu`, ...
        value: per cent for shares, points for BLEU.
        signature: how it was computed.
        higher_is_better: False for errors and perplexity.
        groups: the value of each group, if it is a mean over groups.
    """

    name: str
    value: float
    signature: str
    higher_is_better: bool
    groups: Mapping[str, float] = field(default_factory=dict)


#: (examples, predictions, normalizer of both) -> value
PaperMetric = Callable[[Sequence[RecipeExample], Sequence[str], Normalizer], MetricValue]


def _scaled(name: str, *, scale: float, higher_is_better: bool) -> PaperMetric:
    """Return a metric of `regard.evaluation` in the unit of papers."""

    def metric(
        examples: Sequence[RecipeExample],
        predictions: Sequence[str],
        normalizer: Normalizer = PLAIN_TEXT,
    ) -> MetricValue:
        references = [example.references for example in examples]
        found = score(name, predictions, references, normalizer=normalizer)
        return MetricValue(name, scale * found.value, found.signature, higher_is_better)

    return metric


#: percentage of predictions that equal one of their references
exact: Final = _scaled("exact", scale=100.0, higher_is_better=True)
#: edit distance of phonemes to the nearest pronunciation, in per cent
phoneme_error_rate: Final = _scaled("per", scale=100.0, higher_is_better=False)
#: edit distance of words, in per cent of the reference's words: the WER of speech recognition
word_errors: Final = _scaled("wer", scale=100.0, higher_is_better=False)
#: the same of characters, spaces among them
character_errors: Final = _scaled("cer", scale=100.0, higher_is_better=False)
#: sacrebleu's case-sensitive BLEU of plain text
bleu: Final = _scaled("bleu", scale=1.0, higher_is_better=True)


def word_error_rate(
    examples: Sequence[RecipeExample],
    predictions: Sequence[str],
    normalizer: Normalizer = PLAIN_TEXT,
) -> MetricValue:
    """Return the percentage of words without a right pronunciation: the WER of G2P papers."""
    right = exact(examples, predictions, normalizer)
    signature = right.signature.replace("exact", "wer|1-exact")
    return MetricValue("wer", 100 - right.value, signature, False)


def bleu_lowercase(
    examples: Sequence[RecipeExample],
    predictions: Sequence[str],
    normalizer: Normalizer = PLAIN_TEXT,
) -> MetricValue:
    """Return lower-cased BLEU, for papers whose text was lower-cased before training."""
    metric = BLEU(lowercase=True, force=True)
    return _lowercase("bleu-lc", metric, examples, predictions, normalizer)


def bleu_of_tokens(
    examples: Sequence[RecipeExample],
    predictions: Sequence[str],
    normalizer: Normalizer = PLAIN_TEXT,
) -> MetricValue:
    """Return BLEU of lower-cased Moses tokens, as papers on older datasets report it.

    Sacrebleu leaves `l'homme` whole, Moses splits it into `l'` and `homme`, of which one is easy.
    The group of an example is its language.
    """
    extras.require("sacremoses", extra="recipes", for_="BLEU of Moses tokens")
    from sacremoses import MosesTokenizer, __version__

    moses = MosesTokenizer(lang=examples[0].group)

    def tokenize(text: str) -> str:
        return str(moses.tokenize(text, escape=False, return_str=True))

    metric = BLEU(lowercase=True, tokenize="none", force=True)
    found = _lowercase("bleu-tok", metric, examples, predictions, normalizer, tokenize)
    signature = found.signature.replace("tok:none", f"tok:moses-{__version__}")
    return replace(found, signature=signature)


def _lowercase(
    name: str,
    metric: BLEU,
    examples: Sequence[RecipeExample],
    predictions: Sequence[str],
    normalizer: Normalizer,
    tokenize: Callable[[str], str] = str,
) -> MetricValue:
    """Return sacrebleu's BLEU of normalized and tokenized texts."""

    def prepare(texts: Iterable[str]) -> list[str]:
        return [tokenize(normalizer.normalize(text)) for text in texts]

    # all first references, then all second ones: every sentence has as many
    streams = zip(*(example.references for example in examples), strict=True)
    value = metric.corpus_score(prepare(predictions), list(map(prepare, streams))).score
    signature = f"bleu|{metric.get_signature().format()}|norm:{normalizer.normal_form}"
    return MetricValue(name, float(value), signature, True)


def mean_over_groups(metric: PaperMetric) -> PaperMetric:
    """Return a metric that averages over groups, so that large groups do not count more."""

    def grouped(
        examples: Sequence[RecipeExample],
        predictions: Sequence[str],
        normalizer: Normalizer = PLAIN_TEXT,
    ) -> MetricValue:
        rows: dict[str, tuple[list[RecipeExample], list[str]]] = {}
        for example, prediction in zip(examples, predictions, strict=True):
            mine = rows.setdefault(example.group, ([], []))
            mine[0].append(example)
            mine[1].append(prediction)
        each = {name: metric(*rows[name], normalizer) for name in sorted(rows)}
        first = next(iter(each.values()))
        return MetricValue(
            first.name,
            fmean(found.value for found in each.values()),
            f"{first.signature}|mean-of:{len(each)}",
            first.higher_is_better,
            {name: found.value for name, found in each.items()},
        )

    return grouped
