"""Metrics by name."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final, NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.errors import ArgumentError
from regard.evaluation import statistics as st
from regard.evaluation.references import PLAIN_TEXT, Normalizer, References, compared
from regard.evaluation.statistics import Statistics, Sums, Values


@dataclass(frozen=True)
class Score:
    """The value of a metric, and what must be known to compare it with others.

    Attributes:
        name: of the metric.
        value: from 0 to 100 for bleu and chrf. For the others a share: 0.1 is 10%. An error rate
            can be above 1.
        signature: how it was computed; for bleu, chrf and ter sacrebleu's own, then the form in
            which texts were compared.
        higher_is_better: False for error rates.
    """

    name: str
    value: float
    signature: str
    higher_is_better: bool


class Metric(NamedTuple):
    """How a metric is computed.

    Attributes:
        measure: what each sentence contributes.
        values: what sums of contributions are worth.
        higher_is_better: False for error rates.
        library: what signs for it; None for what needs none.
    """

    measure: Callable[[Sequence[str], list[list[str]]], Statistics]
    values: Callable[[Sums], Values]
    higher_is_better: bool
    library: BLEU | CHRF | TER | str | None


def _sacrebleu(library: BLEU | CHRF | TER, values: Callable[[Sums], Values]) -> Metric:
    better = not isinstance(library, TER)
    return Metric(partial(st.sacrebleu_statistics, library), values, better, library)


#: What each name means. `per` and `wer` count the same edits, of what spaces separate: phonemes of
#: a word, or words of a sentence. In `ter` it is one edit, too, to move some words elsewhere.
METRICS: Final[dict[str, Callable[[str], Metric]]] = {
    "bleu": lambda tok: _sacrebleu(BLEU(tokenize=tok, force=True), st.bleu_values),
    "chrf": lambda tok: _sacrebleu(CHRF(), st.chrf_values),
    "ter": lambda tok: _sacrebleu(TER(), st.ratio),
    "wer": lambda tok: Metric(st.word_edits, st.ratio, False, "jiwer"),
    "cer": lambda tok: Metric(st.character_edits, st.ratio, False, "jiwer"),
    "per": lambda tok: Metric(st.word_edits, st.ratio, False, "jiwer"),
    "exact": lambda tok: Metric(st.exact_matches, st.ratio, True, None),
}

#: those whose values are shares, which are shown in per cent
SHARES: Final = frozenset(METRICS) - {"bleu", "chrf"}

SUITABLE: Final = {
    "char": ("cer", "exact"),
    "space": ("per", "exact"),
    "word": ("bleu", "chrf"),
    "bpe": ("bleu", "chrf"),
    "unigram": ("bleu", "chrf"),
}


def score(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str = "13a",
    normalizer: Normalizer = PLAIN_TEXT,
) -> Score:
    """The value of a metric over a corpus.

    Where a prediction has several references, it is right if it equals any, error rates count
    against the nearest one, and bleu, chrf and ter take them all as sacrebleu does.

    Args:
        name: bleu, chrf, ter, wer, cer, per or exact. The word error rate of a table of
            grapheme-to-phoneme results is the share of words that are not right: 1 - exact.
        predictions: one text for each source; phonemes are separated by spaces.
        references: one text for each source, or a list of them.
        tokenize: how bleu finds words, as sacrebleu's option of that name; others do not use it.
        normalizer: brings predictions and references to one form before they are compared, and is
            named in the signature. By default Unicode's composed form with single spaces; pass the
            target tokeniser to compare texts as it writes them.
    """
    texts = compared(predictions, references, normalizer)
    metric = find_metric(name, tokenize)
    sums = metric.measure(*texts).sum(axis=0, keepdims=True)
    value = float(metric.values(sums)[0])
    signature = f"{_signature(name, metric, texts.references)}|norm:{normalizer.normal_form}"
    return Score(name, value, signature, metric.higher_is_better)


def choose_metrics(tgt_kind: str) -> tuple[str, ...]:
    """The metrics that suit a target, by the kind of its tokeniser; the first one is the main one.

    Single symbols are judged by how many are wrong and how many words are right, running text by
    its n-grams.
    """
    if tgt_kind not in SUITABLE:
        raise ArgumentError(
            "tgt_kind",
            f"be one of {', '.join(SUITABLE)}",
            repr(tgt_kind),
            "pass the kind of the target tokeniser",
        )
    return SUITABLE[tgt_kind]


def find_metric(name: str, tokenize: str = "13a") -> Metric:
    """The metric with this name."""
    if name not in METRICS:
        near = difflib.get_close_matches(name.lower(), METRICS, n=1, cutoff=0.5)
        raise ArgumentError(
            "metric",
            f"be one of {', '.join(METRICS)}",
            repr(name),
            f"did you mean {near[0]}" if near else "choose one of them",
        )
    if tokenize not in BLEU.TOKENIZERS:
        raise ArgumentError(
            "tokenize", f"be one of {', '.join(BLEU.TOKENIZERS)}", repr(tokenize), "choose one"
        )
    return METRICS[name](tokenize)


def _signature(name: str, metric: Metric, references: list[list[str]]) -> str:
    library = metric.library
    if isinstance(library, BLEU | CHRF | TER):
        return f"{name}|{library.get_signature().format()}"
    counts = {len(several) for several in references}
    number = str(*counts) if len(counts) == 1 else "var"
    if library is None:
        return f"{name}|nrefs:{number}|ref:any"
    return f"{name}|nrefs:{number}|ref:nearest|{library}:{version(library)}"
