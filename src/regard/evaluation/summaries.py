"""ROUGE of summaries, and the share of their words that stand in the source."""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from regard import extras
from regard.data.word_segmentation import split_characters
from regard.evaluation.answers import answer_words

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
