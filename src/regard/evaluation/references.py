"""Predictions and the references that they are compared with, checked and in one form."""

import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, final, runtime_checkable

from regard.data.normalization import SPACES, collapse_spaces
from regard.errors import ArgumentError

#: For each source one reference, or several of which any will do.
References = Sequence[str] | Sequence[Sequence[str]]


@runtime_checkable
class Normalizer(Protocol):
    """Brings texts to the form in which they are compared, as a `Tokenizer` does."""

    @property
    def normal_form(self) -> str:
        """The name of the form, for signatures."""
        ...

    def normalize(self, text: str) -> str:
        """Return a text in the form."""
        ...


@final
class PlainText:
    """Unicode's composed form, with one space for each run of white space and none at the ends."""

    normal_form: Final = f"nfc+{SPACES}"

    def normalize(self, text: str) -> str:
        """Return a text in the form."""
        return collapse_spaces(unicodedata.normalize("NFC", text))


PLAIN_TEXT: Final = PlainText()


class Compared(NamedTuple):
    """Predictions, and for each a list of one or more references, all in one form."""

    predictions: list[str]
    references: list[list[str]]


def compared(
    predictions: Sequence[str], references: References, normalizer: Normalizer
) -> Compared:
    """Return predictions and references in one form. Raises unless each prediction has some."""
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
