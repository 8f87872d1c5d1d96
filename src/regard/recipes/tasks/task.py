"""What every task is: a way to prepare its files, and a way to judge a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from regard.api import Model
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import Count, Figure

#: questions that are answered at a time
BATCH: Final = 256


class Verdict(NamedTuple):
    """What is printed of a model on one set, and its answers, where it gives any."""

    figures: list[Figure]
    answers: list[str]


#: (model, what it is asked, options of decoding) -> figures
Judge = Callable[[Model, Sequence[Example], Mapping[str, Any]], Verdict]


@dataclass(frozen=True)
class Task:
    """A data set of the field.

    Attributes:
        prepare: reads a folder of public data sets; its options are those of the recipe.
        judge: gives a model's figures, the one that decides first.
    """

    prepare: Callable[..., Prepared]
    judge: Judge


def by_answers(*counts: Count) -> Judge:
    """Judges what a model answers."""

    def judge(model: Model, examples: Sequence[Example], decoding: Mapping[str, Any]) -> Verdict:
        questions = [example.question for example in examples]
        found = model.predict(questions, attention=False, batch=BATCH, **decoding)
        answers = [output.text for output in found]
        return Verdict([count(examples, answers, model.tgt_tokenizer) for count in counts], answers)

    return judge
