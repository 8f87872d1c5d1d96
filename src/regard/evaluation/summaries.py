"""ROUGE of summaries, and the share of their words that stand in the source."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from regard import extras
from regard.evaluation.answers import normalize_answer

#: names of the package's own measures, by ours
ROUGE: Final = {"rouge-1": "rouge1", "rouge-2": "rouge2", "rouge-l": "rougeL"}


def rouge_values(
    name: str, predictions: Sequence[str], references: list[list[str]]
) -> Float[np.ndarray, "sentences 2"]:
    """Return ROUGE F of each prediction against the best of its references; and 1.

    Lin (2004), https://aclanthology.org/W04-1013, by the package rouge-score, without stems.
    """
    extras.require("rouge_score", extra="recipes", for_=f"the metric {name}")
    from rouge_score.rouge_scorer import RougeScorer

    kind = ROUGE[name]
    scorer = RougeScorer([kind], use_stemmer=False)
    best = [
        max(scorer.score(reference, prediction)[kind].fmeasure for reference in several)
        for prediction, several in zip(predictions, references, strict=True)
    ]
    return np.stack([np.array(best, dtype=np.float64), np.ones(len(best))], axis=1)


def copied_share(texts: Sequence[str], sources: Sequence[str]) -> float:
    """Return the share of the words of some texts that stand in their sources.

    A word counts as often as the source has it; case and punctuation do not count.
    """
    there = total = 0
    for text, source in zip(texts, sources, strict=True):
        words = Counter(normalize_answer(text).split())
        there += sum((words & Counter(normalize_answer(source).split())).values())
        total += sum(words.values())
    return there / max(1, total)
