"""A worked example of self-attention, recomputed, with a verdict on each of its numbers.

The example takes four vectors as queries and keys, and four as values, and follows the first query
through scores, scaled scores, weights and context. Each number that it prints is compared with two
of ours: the right one, and the one that follows from the numbers the example printed a stage
before. The second tells a mistake from the trace of an earlier one.

    python examples/worked_example.py              a table for the terminal
    python examples/worked_example.py --markdown   the tables of docs/worked-example.md
"""

import argparse
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from regard import ops

KEY = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [1.0, 1.1, 1.2]]
VALUE = [[1.0, 1.1, 1.2], [1.3, 1.4, 1.5], [1.6, 1.7, 1.8], [1.9, 2.0, 2.1]]

# what the example prints for its first query
PRINTED = {
    "score": [0.14, 0.35, 0.56, 0.77],
    "scaled score": [0.08, 0.20, 0.32, 0.44],
    "weight": [0.15, 0.22, 0.31, 0.32],
    "context": [1.61, 1.72, 1.83],
}

FORMULAS = {
    "score": "q₁ · kᵢ",
    "scaled score": "score / √d",
    "weight": "softmax over i",
    "context": "Σ weight · vᵢ",
}

# carried over: it follows from an earlier mistake
RIGHT, CARRIED, WRONG = "right", "carried over", "wrong in itself"
STYLES = {RIGHT: "green", CARRIED: "yellow", WRONG: "bold red"}


class Line(NamedTuple):
    """One printed number beside ours."""

    stage: str
    number: int
    printed: float
    follows: float
    right: float

    @property
    def verdict(self) -> str:
        """What is to be said of the printed number, at the two digits that it has."""
        if not agrees(self.printed, self.follows):
            return WRONG
        return RIGHT if agrees(self.printed, self.right) else CARRIED

    def cells(self) -> tuple[str, ...]:
        """The line as text."""
        return (
            f"{self.stage} {self.number}",
            f"{self.printed:.2f}",
            f"{self.follows:.4f}",
            f"{self.right:.4f}",
            self.verdict,
        )


def agrees(printed: float, exact: float) -> bool:
    """Whether `printed` is `exact`, rounded to two digits."""
    return abs(printed - exact) <= 0.005 + 1e-9


def tensor(rows: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def right() -> dict[str, Tensor]:
    """All stages of the first query, as regard computes them."""
    key, value = tensor(KEY), tensor(VALUE)
    query, scale = key[:1], key.shape[1] ** -0.5
    scores = query @ key.T
    context, weights = ops.dot_product_attention(
        query[None, None], key[None, None], value[None, None], scale=scale, need_weights=True
    )
    assert weights is not None
    stages = (scores, scores * scale, weights, context)
    return {name: stage.flatten() for name, stage in zip(PRINTED, stages, strict=True)}


def follows() -> dict[str, Tensor]:
    """Each stage computed from what the example prints for the stage before it."""
    printed = {name: tensor(numbers) for name, numbers in PRINTED.items()}
    return {
        "score": right()["score"],
        "scaled score": printed["score"] * len(KEY[0]) ** -0.5,
        "weight": ops.masked_softmax(printed["scaled score"][None, None, None], None).flatten(),
        "context": printed["weight"] @ tensor(VALUE),
    }


def lines() -> list[Line]:
    """Every number of the example, in order."""
    ours, theirs = right(), follows()
    return [
        Line(stage, i + 1, number, theirs[stage][i].item(), ours[stage][i].item())
        for stage, numbers in PRINTED.items()
        for i, number in enumerate(numbers)
    ]


HEADER = ("number", "printed", "from the stage before", "right", "the printed number is")


def markdown() -> str:
    """The two tables of docs/worked-example.md: line by line, and stage by stage."""
    rows = [HEADER, ("---", "---:", "---:", "---:", "---"), *(line.cells() for line in lines())]
    rows += [(), ("stage", "formula", *STYLES), ("---", "---", *("---:" for _ in STYLES))]
    for stage, formula in FORMULAS.items():
        verdicts = [line.verdict for line in lines() if line.stage == stage]
        rows.append((stage, formula, *(str(verdicts.count(verdict)) for verdict in STYLES)))
    return "\n".join(f"| {' | '.join(row)} |" if row else "" for row in rows)


def table() -> Table:
    """The lines for a terminal, in colour where it has any."""
    result = Table(*HEADER, box=None, pad_edge=False)
    for before, line in zip([None, *lines()], lines(), strict=False):
        if before is not None and before.stage != line.stage:
            result.add_row()
        *cells, verdict = line.cells()
        style = STYLES[line.verdict]
        result.add_row(*cells, f"[{style}]{verdict}[/{style}]")
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the tables of the guide")
    if parser.parse_args(arguments).markdown:
        print(markdown())
    else:
        Console().print(table())


if __name__ == "__main__":
    main()
