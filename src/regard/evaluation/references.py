"""Predictions and what they are compared with, checked."""

from collections.abc import Sequence

from regard.errors import ArgumentError

#: For each source one reference, or several of which any will do.
References = Sequence[str] | Sequence[Sequence[str]]


def as_lists(predictions: Sequence[str], references: References) -> list[list[str]]:
    """The references of each prediction, as a list of one or more."""
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
    return lists
