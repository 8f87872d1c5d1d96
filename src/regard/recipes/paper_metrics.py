"""Metrics as papers report them, in their units."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Final, NamedTuple

from sacrebleu.metrics.bleu import BLEU

from regard import extras
from regard.evaluation import METRICS, PLAIN_TEXT, Normalizer, score
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
    higher_is_better: bool = True
    groups: Mapping[str, float] = field(default_factory=dict)


class Answers(NamedTuple):
    """Examples with a model's predictions, and the normalizer of both."""

    examples: Sequence[RecipeExample]
    texts: Sequence[str]
    normalizer: Normalizer = PLAIN_TEXT


PaperMetric = Callable[[Answers], MetricValue]


def metric(name: str, *, plain: bool = False) -> PaperMetric:
    """Return a metric of `regard.evaluation` as papers report it, shares in per cent.

    `plain` leaves texts as they are, for a metric that has a normalization of its own.
    """
    known = METRICS[name]

    def compute(answers: Answers) -> MetricValue:
        references = [example.references for example in answers.examples]
        normalizer = PLAIN_TEXT if plain else answers.normalizer
        found = score(name, answers.texts, references, normalizer=normalizer)
        value = 100 * found.value if known.share else found.value
        return MetricValue(name, value, found.signature, known.higher_is_better)

    return compute


#: percentage of predictions that equal one of their references
exact: Final = metric("exact")
#: edit distance of phonemes to the nearest pronunciation, in per cent
phoneme_error_rate: Final = metric("per")
#: edit distance of words, in per cent of the reference's words: the WER of speech recognition
word_errors: Final = metric("wer")
#: the same of characters, spaces among them
character_errors: Final = metric("cer")
#: sacrebleu's case-sensitive BLEU of plain text
bleu: Final = metric("bleu")


def word_error_rate(answers: Answers) -> MetricValue:
    """Return the percentage of words without a right pronunciation: the WER of G2P papers."""
    right = exact(answers)
    signature = right.signature.replace("exact", "wer|1-exact")
    return MetricValue("wer", 100 - right.value, signature, higher_is_better=False)


def bleu_lowercase(answers: Answers) -> MetricValue:
    """Return lower-cased BLEU, for papers whose text was lower-cased before training."""
    return _lowercase("bleu-lc", BLEU(lowercase=True, force=True), answers)


def bleu_of_tokens(answers: Answers) -> MetricValue:
    """Return BLEU of lower-cased Moses tokens, as papers on older datasets report it.

    Sacrebleu leaves `l'homme` whole, Moses splits it into `l'` and `homme`, of which one is easy.
    The group of an example is its language.
    """
    extras.require("sacremoses", extra="recipes", for_="BLEU of Moses tokens")
    from sacremoses import MosesTokenizer, __version__

    moses = MosesTokenizer(lang=answers.examples[0].group)

    def tokenize(text: str) -> str:
        return str(moses.tokenize(text, escape=False, return_str=True))

    found = _lowercase(
        "bleu-tok", BLEU(lowercase=True, tokenize="none", force=True), answers, tokenize
    )
    signature = found.signature.replace("tok:none", f"tok:moses-{__version__}")
    return replace(found, signature=signature)


def _lowercase(
    name: str, metric: BLEU, answers: Answers, tokenize: Callable[[str], str] = str
) -> MetricValue:
    """Return sacrebleu's BLEU of normalized and tokenized texts."""
    normalizer = answers.normalizer

    def prepare(texts: Iterable[str]) -> list[str]:
        return [tokenize(normalizer.normalize(text)) for text in texts]

    # all first references, then all second ones: every sentence has as many
    streams = zip(*(example.references for example in answers.examples), strict=True)
    value = metric.corpus_score(prepare(answers.texts), list(map(prepare, streams))).score
    signature = f"bleu|{metric.get_signature().format()}|norm:{normalizer.normal_form}"
    return MetricValue(name, float(value), signature)


def mean_over_groups(metric: PaperMetric) -> PaperMetric:
    """Return a metric that averages over groups, so that large groups do not count more."""

    def compute(answers: Answers) -> MetricValue:
        rows: dict[str, list[tuple[RecipeExample, str]]] = {}
        for example, text in zip(answers.examples, answers.texts, strict=True):
            rows.setdefault(example.group, []).append((example, text))
        each = {
            name: metric(answers._replace(examples=examples, texts=texts))
            for name in sorted(rows)
            for examples, texts in [zip(*rows[name], strict=True)]
        }
        first = next(iter(each.values()))
        groups = {name: found.value for name, found in each.items()}
        signature = f"{first.signature}|mean-of:{len(each)}"
        return replace(first, value=fmean(groups.values()), signature=signature, groups=groups)

    return compute
