"""Metrics of predictions, by name.

Every metric is a function of sums over sentences: one function reads the sentences once, another
turns any number of sums into values at once, which makes thousands of resamples cheap.
"""

import difflib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

import jiwer
import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from regard.data.lookup_codecs import SPACES, collapse_spaces
from regard.data.word_segmentation import unspaced_language
from regard.errors import ArgumentError
from regard.evaluation.answers import ROUGE, best_answers, exact_match, rouge_values, word_f1
from regard.evaluation.classification import class_counts, macro_f1, micro_f1, set_counts
from regard.evaluation.spans import span_counts, tag_matches

#: For each source one reference, or several of which any will do.
References = Sequence[str] | Sequence[Sequence[str]]


@runtime_checkable
class Normalizer(Protocol):
    """Normalises texts before they are compared, as a `Tokenizer` does."""

    @property
    def normal_form(self) -> str:
        """Name of the normal form, for signatures."""
        ...

    def normalize(self, text: str) -> str:
        """Return a text in normal form."""
        ...


@final
class PlainText:
    """NFC, with single spaces and none at the ends."""

    normal_form: Final = f"nfc+{SPACES}"

    def normalize(self, text: str) -> str:
        """Return a text in normal form."""
        return collapse_spaces(unicodedata.normalize("NFC", text))


PLAIN_TEXT: Final = PlainText()


class Compared(NamedTuple):
    """Predictions, and a list of one or more references for each, all normalised."""

    predictions: list[str]
    references: list[list[str]]


def compared(
    predictions: Sequence[str], references: References, normalizer: Normalizer
) -> Compared:
    """Normalise predictions and references; raises ArgumentError if a prediction has none."""
    if not predictions:
        raise ArgumentError(
            "predictions", "be one or more", "an empty list", "there is nothing to score"
        )
    if len(predictions) != len(references):
        raise ArgumentError(
            "predictions and references",
            "be as many",
            f"{len(predictions)} predictions and {len(references)} references",
            "give each prediction its reference, or a list of them",
        )
    lists = [[several] if isinstance(several, str) else list(several) for several in references]
    for place, several in enumerate(lists, start=1):
        if not several:
            raise ArgumentError(
                "references",
                "have one or more for each prediction",
                f"an empty list for number {place} of {len(lists)}",
                "leave out predictions that cannot be judged",
            )
    normalize = normalizer.normalize
    return Compared(
        [normalize(text) for text in predictions],
        [[normalize(text) for text in several] for several in lists],
    )


#: One row for each sentence, and as many columns as the metric needs.
Statistics = Float[np.ndarray, "sentences columns"]
Sums = Float[np.ndarray, "samples columns"]
Values = Float[np.ndarray, " samples"]

ORDERS: Final = 4  # of n-grams in BLEU
BETA: Final = 2  # of chrF: recall weighs twice as much as precision


def streams(references: list[list[str]]) -> list[list[str | None]]:
    """Return references as sacrebleu takes them: all first ones, all second ones, or None."""
    most = max(map(len, references))
    padded = [[*several, *[None] * (most - len(several))] for several in references]
    return [list(stream) for stream in zip(*padded, strict=True)]


def sacrebleu_statistics(
    metric: BLEU | CHRF | TER, predictions: Sequence[str], references: list[list[str]]
) -> Statistics:
    """Return the statistics that sacrebleu itself sums."""
    # no public function returns them; a test holds what is made of them to sacrebleu's own results
    rows: Any = metric._extract_corpus_statistics(predictions, streams(references))  # type: ignore[arg-type]
    return np.asarray(rows, dtype=np.float64)


def bleu_values(sums: Sums) -> Values:
    """Return BLEU, 0 to 100, from rows (system length, reference length, 4 matches, 4 totals).

    Papineni et al. (2002), https://aclanthology.org/P02-1040, with the smoothing that sacrebleu
    calls "exp": the first order without a match counts as half a match, the next as a quarter.
    """
    lengths, correct, total = np.split(sums, [2, 2 + ORDERS], axis=1)
    missing = correct == 0
    halves = 0.5 ** np.cumsum(missing, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(missing, halves, correct) / total
        log_brevity = np.minimum(0.0, 1.0 - lengths[:, 1] / lengths[:, 0])
        values = 100.0 * np.exp(log_brevity + np.log(precision).mean(axis=1))
    # what has no match at all, or no 4-gram, scores 0, but what is all right is so without 4-grams
    values = np.where((correct > 0).any(axis=1) & (total > 0).all(axis=1), values, 0.0)
    perfect = (correct == total).all(axis=1) & (lengths[:, 0] == lengths[:, 1])
    return np.where(perfect, 100.0, values)


def chrf_values(sums: Sums) -> Values:
    """Return chrF, 0 to 100, from (n-grams of the system, of the reference, in both) of each order.

    Popović (2015), https://aclanthology.org/W15-3049.
    """
    system, reference, both = sums.reshape(len(sums), -1, 3).transpose(2, 0, 1)
    there = (system > 0) & (reference > 0)
    orders = np.maximum(there.sum(axis=1), 1)
    precision = np.divide(both, system, out=np.zeros_like(both), where=there).sum(axis=1) / orders
    recall = np.divide(both, reference, out=np.zeros_like(both), where=there).sum(axis=1) / orders
    top = (1 + BETA**2) * precision * recall
    bottom = BETA**2 * precision + recall
    values: Values = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    return 100.0 * values


def word_edits(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Return word edits against the nearest reference, and its number of words."""
    pairs = _pairs(predictions, references)
    return _nearest(jiwer.process_words(*pairs), references)


def character_edits(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Return character edits against the nearest reference, and its number of characters."""
    pairs = _pairs(predictions, references)
    return _nearest(jiwer.process_characters(*pairs), references)


def exact_matches(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Return 1 for each prediction that is one of its references, else 0; and 1."""
    right = [p in several for p, several in zip(predictions, references, strict=True)]
    return np.stack([np.array(right, dtype=np.float64), np.ones(len(right))], axis=1)


def ratio(sums: Sums) -> Values:
    """Return the first column divided by the second; the first itself if the second is 0."""
    first, second = sums.T
    values: Values = first / np.where(second == 0, 1.0, second)
    return values


def _pairs(predictions: Sequence[str], references: list[list[str]]) -> tuple[list[str], list[str]]:
    """Return all references, and the prediction of each."""
    again = [p for p, several in zip(predictions, references, strict=True) for _ in several]
    return [reference for several in references for reference in several], again


def _nearest(
    out: jiwer.WordOutput | jiwer.CharacterOutput, references: list[list[str]]
) -> Statistics:
    """Return edits against the reference with the fewest, the first of equals; and its length."""
    edits = [
        sum(
            max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
            for chunk in alignment
            if chunk.type != "equal"
        )
        for alignment in out.alignments
    ]
    compared = iter(zip(edits, map(len, out.references), strict=True))
    nearest = [min((next(compared) for _ in several), key=lambda c: c[0]) for several in references]
    return np.array(nearest, dtype=np.float64)


@dataclass(frozen=True)
class MetricScore:
    """The value of a metric, with its signature.

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
    """The computation of a metric.

    Attributes:
        measure: returns the statistics of each sentence.
        values: turns sums of statistics into values.
        higher_is_better: False for error rates.
        library: the library that computes it, for the signature.
    """

    measure: Callable[[Sequence[str], list[list[str]]], Statistics]
    values: Callable[[Sums], Values]
    higher_is_better: bool
    library: BLEU | CHRF | TER | str | None


def _sacrebleu(library: BLEU | CHRF | TER, values: Callable[[Sums], Values]) -> Metric:
    better = not isinstance(library, TER)
    return Metric(partial(sacrebleu_statistics, library), values, better, library)


def _bleu(tokenize: str, tok: str = "") -> Metric:
    return _sacrebleu(BLEU(tokenize=tokenize, force=True), bleu_values)


def _rouge(name: str, tok: str) -> Metric:
    return Metric(partial(rouge_values, name), ratio, True, "rouge_score")


#: What each name means. `per` and `wer` count the same edits, of what spaces separate: phonemes of
#: a word, or words of a sentence. In `ter` it is one edit, too, to move some words elsewhere.
#: `accuracy` is `exact`, of labels, and `subset-accuracy` of sets of labels; `em` and `f1` of
#: answers are those of SQuAD.
METRICS: Final[dict[str, Callable[[str], Metric]]] = {
    "bleu": _bleu,
    "chrf": lambda tok: _sacrebleu(CHRF(), chrf_values),
    "ter": lambda tok: _sacrebleu(TER(), ratio),
    "wer": lambda tok: Metric(word_edits, ratio, False, "jiwer"),
    "cer": lambda tok: Metric(character_edits, ratio, False, "jiwer"),
    "per": lambda tok: Metric(word_edits, ratio, False, "jiwer"),
    "exact": lambda tok: Metric(exact_matches, ratio, True, None),
    "accuracy": lambda tok: Metric(exact_matches, ratio, True, None),
    "subset-accuracy": lambda tok: Metric(exact_matches, ratio, True, None),
    "micro-f1": lambda tok: Metric(set_counts, micro_f1, True, None),
    "macro-f1": lambda tok: Metric(class_counts, macro_f1, True, None),
    "em": lambda tok: Metric(partial(best_answers, exact_match), ratio, True, None),
    "f1": lambda tok: Metric(partial(best_answers, word_f1), ratio, True, None),
    **{name: partial(_rouge, name) for name in ROUGE},
    "tag-accuracy": lambda tok: Metric(tag_matches, ratio, True, None),
    "span-f1": lambda tok: Metric(span_counts, micro_f1, True, None),
    **{f"bleu-{tok}": partial(_bleu, tok) for tok in ("13a", "zh", "char")},
}

#: those whose values are shares, which are shown in per cent
SHARES: Final = frozenset(name for name in METRICS if not name.startswith(("bleu", "chrf")))

#: how bleu finds words of scripts without spaces, as sacrebleu names it
UNSPACED: Final = {"zh": "zh", "ja": "char", "th": "char"}

SUITABLE: Final = {
    "char": ("cer", "exact"),
    "space": ("per", "exact"),
    "word": ("bleu", "chrf"),
    "bpe": ("bleu", "chrf"),
    "unigram": ("bleu", "chrf"),
    "label": ("accuracy", "macro-f1"),
    "labels": ("micro-f1", "macro-f1", "subset-accuracy"),
}


def score(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    tokenize: str = "auto",
    normalizer: Normalizer = PLAIN_TEXT,
) -> MetricScore:
    """Return the value of a metric over a corpus.

    Where a prediction has several references, it is right if it equals any, error rates count
    against the nearest one, and bleu, chrf and ter take them all as sacrebleu does.

    Args:
        name: bleu, chrf, ter, wer, cer, per, exact; em or f1 of answers; rouge-1, rouge-2 or
            rouge-l of summaries. The word error rate of a table of grapheme-to-phoneme results is
            the share of words that are not right: 1 - exact.
        predictions: one text for each source; phonemes are separated by spaces.
        references: one text for each source, or a list of them.
        tokenize: how bleu finds words, as sacrebleu's option of that name; others do not use it.
            `auto` is `13a`, but `zh` for Chinese references, and `char` for Japanese and Thai ones;
            the metrics bleu-13a, bleu-zh and bleu-char name theirs. The signature states it.
        normalizer: brings predictions and references to one form before they are compared, and is
            named in the signature. By default Unicode's composed form with single spaces; pass the
            target tokeniser to compare texts as it writes them.
    """
    texts = compared(predictions, references, normalizer)
    metric = find_metric(name, bleu_tokenize(tokenize, texts.references))
    sums = metric.measure(*texts).sum(axis=0, keepdims=True)
    value = float(metric.values(sums)[0])
    signature = f"{_signature(name, metric, texts.references)}|norm:{normalizer.normal_form}"
    return MetricScore(name, value, signature, metric.higher_is_better)


def choose_metrics(tgt_kind: str) -> tuple[str, ...]:
    """Return the metrics for a kind of target tokeniser; the first one is the main one.

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


def bleu_tokenize(tokenize: str, references: list[list[str]]) -> str:
    """Return the tokeniser of bleu; `auto` is chosen by the script of the references."""
    if tokenize != "auto":
        return tokenize
    language = unspaced_language(text for several in references for text in several)
    return "13a" if language is None else UNSPACED[language]


def find_metric(name: str, tokenize: str = "13a") -> Metric:
    """Return the metric of this name."""
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
            "tokenize",
            f"be auto or one of {', '.join(BLEU.TOKENIZERS)}",
            repr(tokenize),
            "choose one",
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
    words = "|tok:unicode" if library == "rouge_score" else ""
    return f"{name}|nrefs:{number}|ref:nearest{words}|{library}:{_version(library)}"


def _version(library: str) -> str:
    """Return the version of a package; "unknown" if it was copied without its metadata."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"
