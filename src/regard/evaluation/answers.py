"""Exact match and F1 of answers, as SQuAD counts them.

Rajpurkar et al. (2016), https://aclanthology.org/D16-1264, section 6.1: case, punctuation, articles
and spaces do not count; F1 is that of the words, against the best of several references, and its
value the mean over the questions. Characters of scripts without spaces count as words, as in MLQA
(Lewis et al., 2020, https://aclanthology.org/2020.acl-main.653).
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from regard import extras
from regard.data.word_segmentation import split_characters

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

    best = [
        max(value(prediction, reference) for reference in several)
        for prediction, several in zip(predictions, references, strict=True)
    ]
    return np.stack([np.array(best, dtype=np.float64), np.ones(len(best))], axis=1)


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
