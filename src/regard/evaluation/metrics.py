"""Metrics of predictions, by name.

Every metric is a function of sums over sentences: one function reads the sentences once, another
turns any number of sums into values at once, which makes thousands of resamples cheap.

Exact match and F1 of answers, as SQuAD counts them.

Rajpurkar et al. (2016), https://aclanthology.org/D16-1264, section 6.1: case, punctuation, articles
and spaces do not count; F1 is that of the words, against the best of several references, and its
value the mean over the questions. Characters of scripts without spaces count as words, as in MLQA
(Lewis et al., 2020, https://aclanthology.org/2020.acl-main.653).
"""

import difflib
import re
import string
import unicodedata
from collections import Counter
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

from regard import extras
from regard.data.lookup_codecs import SPACES, collapse_spaces
from regard.data.word_vectors import split_characters, unspaced_language
from regard.errors import ArgumentError
from regard.evaluation.classification import (
    class_counts,
    macro_f1,
    micro_f1,
    set_counts,
    span_set,
    tag_matches,
)

ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without punctuation, articles and further spaces."""
    plain = text.lower().translate(PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", plain).split())


def answer_words(text: str) -> list[str]:
    """Return the words of an answer once normalised."""
    return split_characters(normalize_answer(text)).split()


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if the answers are equal once normalised, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(reference))


def word_f1(prediction: str, reference: str) -> float:
    """Return F1 of the words of two answers; 1 if neither has any, 0 if one of them has none."""
    found, right = (answer_words(text) for text in (prediction, reference))
    if not found or not right:
        return float(found == right)
    both = sum((Counter(found) & Counter(right)).values())
    return 2 * both / (len(found) + len(right))


def best_answers(
    compare: Callable[[str, str], float],
    predictions: Sequence[str],
    references: list[list[str]],
) -> Float[np.ndarray, "sentences 2"]:
    """Return for each prediction the best value against any of its references; and 1."""
    best = [
        max(compare(prediction, reference) for reference in several)
        for prediction, several in zip(predictions, references, strict=True)
    ]
    return np.stack([np.array(best, dtype=np.float64), np.ones(len(best))], axis=1)


#: names of the package's own measures, by ours
ROUGE: Final = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}


def rouge_values(
    name: str, predictions: Sequence[str], references: list[list[str]]
) -> Float[np.ndarray, "sentences 2"]:
    """Return ROUGE F of each prediction against the best of its references; and 1.

    Lin (2004), https://aclanthology.org/W04-1013, by the package rouge-score, without stems. Its
    own tokeniser drops all but the letters a to z and digits; `Words` does the same with those, and
    keeps letters of other scripts. Texts of the same words have 1, even without a bigram.
    """
    extras.require("rouge_score", extra="recipes", for_=f"the metric {name}")
    from rouge_score.rouge_scorer import RougeScorer

    kind = ROUGE[name]
    scorer = RougeScorer([kind], tokenizer=Words)

    def value(prediction: str, reference: str) -> float:
        if Words.tokenize(prediction) == Words.tokenize(reference):
            return 1.0
        return float(scorer.score(reference, prediction)[kind].fmeasure)

    return best_answers(value, predictions, references)


class Words:
    """Words in lower case for ROUGE: letters, marks and digits of any script.

    Characters of scripts without spaces are words; so is any character of a text without letters.
    """

    @staticmethod
    def tokenize(text: str) -> list[str]:
        """Return the words of a text."""
        spaced = split_characters(text.lower())
        kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in spaced)
        return "".join(kept).split() or list("".join(text.split()))


def copied_share(texts: Sequence[str], sources: Sequence[str]) -> float:
    """Return the share of the words of some texts that stand in their sources.

    A word counts as often as the source has it; case and punctuation do not count.
    """
    there = total = 0
    for text, source in zip(texts, sources, strict=True):
        words = Counter(answer_words(text))
        there += sum((words & Counter(answer_words(source))).values())
        total += sum(words.values())
    return there / max(1, total)


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


def sacrebleu_values(metric: BLEU | CHRF, sums: Sums) -> Values:
    """Return the scores of sacrebleu, 0 to 100, of sums of its statistics.

    BLEU of what is all right is 100 even without a 4-gram, which sacrebleu asks for.
    """
    found = [metric._compute_score_from_stats(row).score for row in sums.tolist()]
    values = np.array(found, dtype=np.float64)
    if isinstance(metric, CHRF):
        return values
    lengths, correct, total = np.split(sums, [2, 2 + ORDERS], axis=1)
    perfect = (correct == total).all(axis=1) & (lengths[:, 0] == lengths[:, 1])
    return np.where(perfect, 100.0, values)


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
    return best_answers(lambda one, other: float(one == other), predictions, references)


def ratio(sums: Sums) -> Values:
    """Return the first column divided by the second; the first itself if the second is 0."""
    first, second = sums.T
    return np.asarray(first / np.where(second == 0, 1.0, second))


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


def no_sentences(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Raise TypeError: the metric is not one of texts."""
    raise TypeError("the metric has no sentences to measure")


class Metric(NamedTuple):
    """A name of a metric: what it means, how values are compared and shown, and its computation.

    Attributes:
        meaning: in words.
        measure: returns the statistics of each sentence, if it is a metric of texts.
        values: turns sums of statistics into values.
        higher_is_better: False for error rates.
        share: whether values are shares, which are shown in per cent.
        library: the library that computes it, for the signature.
    """

    meaning: str
    measure: Callable[[Sequence[str], list[list[str]]], Statistics] = no_sentences
    values: Callable[[Sums], Values] = ratio
    higher_is_better: bool = True
    share: bool = True
    library: BLEU | CHRF | TER | str | None = None


def _sacrebleu(meaning: str, library: BLEU | CHRF | TER) -> Metric:
    measure = partial(sacrebleu_statistics, library)
    if isinstance(library, TER):
        return Metric(meaning, measure, higher_is_better=False, library=library)
    values = partial(sacrebleu_values, library)
    return Metric(meaning, measure, values, share=False, library=library)


def _bleu(tokenize: str) -> Metric:
    return _sacrebleu("n-grams of words", BLEU(tokenize=tokenize, force=True))


def _edits(meaning: str, measure: Callable[..., Statistics]) -> Metric:
    return Metric(meaning, measure, higher_is_better=False, library="jiwer")


#: What each name means; an output with metrics of its own adds them in its file. Metrics without
#: sentences to measure are computed by the outputs that have them. `per` and `wer` count the same
#: edits, of what spaces separate: phonemes of a word, or words of a sentence. In `ter` it is one
#: edit, too, to move some words elsewhere. `em` and `f1` of answers are those of SQuAD.
METRICS: Final[dict[str, Metric]] = {
    "bleu": _bleu("13a"),
    "chrf": _sacrebleu("n-grams of characters", CHRF()),
    "ter": _sacrebleu("edits and moves of words", TER()),
    "wer": _edits("edits of words", word_edits),
    "cer": _edits("edits of characters", character_edits),
    "per": _edits("edits of symbols", word_edits),
    "exact": Metric("outputs that are right as a whole", exact_matches),
    "accuracy": Metric("labels that are right", exact_matches),
    "subset-accuracy": Metric("sets of labels that are right", exact_matches),
    "micro-f1": Metric("F1 of all labels together", set_counts, micro_f1),
    "macro-f1": Metric("mean over labels of their F1", class_counts, macro_f1),
    "em": Metric("answers that are right", partial(best_answers, exact_match)),
    "f1": Metric("F1 of the words of answers", partial(best_answers, word_f1)),
    **{
        name: Metric("overlap with a summary", partial(rouge_values, name), library="rouge_score")
        for name in ROUGE
    },
    "tag-accuracy": Metric("tags that are right", tag_matches),
    "span-f1": Metric(
        "F1 of the spans that tags mark", partial(set_counts, read=span_set), micro_f1
    ),
    **{f"bleu-{tok}": _bleu(tok) for tok in ("13a", "zh", "char")},
    "loss": Metric("what training minimises", higher_is_better=False, share=False),
    "perplexity": Metric("per token of a text", higher_is_better=False, share=False),
    "mse": Metric("squared error of numbers", higher_is_better=False, share=False),
    "mae": Metric("absolute error of numbers", higher_is_better=False, share=False),
}

#: how bleu finds words of scripts without spaces, as sacrebleu names it
UNSPACED: Final = {"zh": "zh", "ja": "char", "th": "char"}


def text_metrics() -> list[str]:
    """Return the names of the metrics of texts."""
    return [name for name, metric in METRICS.items() if metric.measure is not no_sentences]


def is_share(name: str) -> bool:
    """Return whether values of a metric are shares."""
    return name in METRICS and METRICS[name].share


def format_metric(name: str, value: float, digits: int = 2) -> str:
    """Return the value of a metric as text, in per cent if it is a share."""
    return f"{100 * value:.2f}%" if is_share(name) else f"{value:.{digits}f}"


def score(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    normalizer: Normalizer = PLAIN_TEXT,
) -> MetricScore:
    """Return the value of a metric over a corpus.

    Where a prediction has several references, it is right if it equals any, error rates count
    against the nearest one, and bleu, chrf and ter take them all as sacrebleu does. Words of bleu
    are found as sacrebleu's `13a` does, but `zh` for Chinese references, and `char` for Japanese
    and Thai ones; bleu-13a, bleu-zh and bleu-char name theirs. The signature states it.

    Args:
        name: bleu, chrf, ter, wer, cer, per, exact; em or f1 of answers; rouge-1, rouge-2 or
            rouge-l of summaries. The word error rate of a table of grapheme-to-phoneme results is
            the share of words that are not right: 1 - exact.
        predictions: one text for each source; phonemes are separated by spaces.
        references: one text for each source, or a list of them.
        normalizer: brings predictions and references to one form before they are compared, and is
            named in the signature. By default Unicode's composed form with single spaces; pass the
            target tokeniser to compare texts as it writes them.
    """
    texts = compared(predictions, references, normalizer)
    metric = find_metric(name, texts.references)
    sums = metric.measure(*texts).sum(axis=0, keepdims=True)
    value = float(metric.values(sums)[0])
    signature = f"{_signature(name, metric, texts.references)}|norm:{normalizer.normal_form}"
    return MetricScore(name, value, signature, metric.higher_is_better)


def find_metric(name: str, references: list[list[str]]) -> Metric:
    """Return the metric of texts of this name; the words of bleu are those of the references."""
    known = text_metrics()
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
        raise ArgumentError(
            "metric",
            f"be one of {', '.join(known)}",
            repr(name),
            f"did you mean {near[0]}" if near else "choose one of them",
        )
    if name == "bleu":
        language = unspaced_language(text for several in references for text in several)
        return _bleu("13a" if language is None else UNSPACED[language])
    return METRICS[name]


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
