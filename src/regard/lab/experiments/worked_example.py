"""A published worked example of self-attention, recomputed, with a verdict on each number.

The example takes four vectors as queries and keys, and four as values, and follows the first query
through scores, scaled scores, weights and context. Each printed number is compared with the right
one, and with the one that follows from the numbers printed a stage before. The second comparison
tells a mistake from the consequence of an earlier one.

Question: Are the numbers of the example that is computed by hand right?

Method: The example's queries, keys and values go through `ops.dot_product_attention` in float64.
Every printed number is compared, at its two digits, with the right one and with what its formula
gives for the numbers printed one stage before: right; carried over from an earlier mistake; or
wrong in itself. A stage holds if all its numbers are right, holds with limits if some are carried
over, and does not hold if one is wrong in itself. No chance, no training.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from regard import ops
from regard.lab.context import ExperimentContext
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.plots import COLOURS, MARKERS, legend, new_figure

KEY: Final = [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [1.0, 1.1, 1.2]]
VALUE: Final = [[1.0, 1.1, 1.2], [1.3, 1.4, 1.5], [1.6, 1.7, 1.8], [1.9, 2.0, 2.1]]

#: the numbers that the example prints for its first query
PRINTED: Final = {
    "score": [0.14, 0.35, 0.56, 0.77],
    "scaled score": [0.08, 0.20, 0.32, 0.44],
    "weight": [0.15, 0.22, 0.31, 0.32],
    "context": [1.61, 1.72, 1.83],
}
FORMULAS: Final = {
    "score": "q₁ · kᵢ",
    "scaled score": "score / √d",
    "weight": "softmax over i",
    "context": "Σ weight · vᵢ",
}
HEADER: Final = ("number", "printed", "from the stage before", "right", "the printed number is")

#: verdicts on a number; one that follows from an earlier mistake is carried over
RIGHT, CARRIED, WRONG = "right", "carried over", "wrong in itself"
#: a query attends to a key from this share of even weights on
ATTENDS: Final = 0.1


class PrintedNumber(NamedTuple):
    """A printed number with the numbers that should be there."""

    stage: str
    number: int
    printed: float
    follows: float
    right: float

    @property
    def verdict(self) -> str:
        """The verdict on the printed number, at its two digits."""
        if not agrees(self.printed, self.follows):
            return WRONG
        return RIGHT if agrees(self.printed, self.right) else CARRIED

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        return (
            f"{self.stage} {self.number}",
            f"{self.printed:.2f}",
            f"{self.follows:.4f}",
            f"{self.right:.4f}",
            self.verdict,
        )


def agrees(printed: float, exact: float) -> bool:
    """Return whether `printed` is `exact`, rounded to two digits."""
    return abs(printed - exact) <= 0.005 + 1e-9


def right() -> dict[str, Tensor]:
    """Return all stages of the first query, as regard computes them."""
    key, value = _tensor(KEY), _tensor(VALUE)
    query, scale = key[:1], key.shape[1] ** -0.5
    scores = query @ key.T
    context, weights = ops.dot_product_attention(
        query[None, None], key[None, None], value[None, None], scale=scale, need_weights=True
    )
    assert weights is not None
    stages = (scores, scores * scale, weights, context)
    return {name: stage.flatten() for name, stage in zip(PRINTED, stages, strict=True)}


def follows() -> dict[str, Tensor]:
    """Return each stage computed from the numbers printed for the stage before it."""
    printed = {name: _tensor(numbers) for name, numbers in PRINTED.items()}
    return {
        "score": right()["score"],
        "scaled score": printed["score"] * len(KEY[0]) ** -0.5,
        "weight": ops.masked_softmax(printed["scaled score"][None, None, None], None).flatten(),
        "context": printed["weight"] @ _tensor(VALUE),
    }


def printed_numbers() -> list[PrintedNumber]:
    """Return every number of the example, in order."""
    ours, theirs = right(), follows()
    return [
        PrintedNumber(stage, i + 1, number, theirs[stage][i].item(), ours[stage][i].item())
        for stage, numbers in PRINTED.items()
        for i, number in enumerate(numbers)
    ]


def measure(context: ExperimentContext) -> Data:
    """Compute the example: a few products in float64."""
    return {"lines": [list(line) for line in printed_numbers()]}


def judge(data: Data) -> list[Claim]:
    """Judge each stage, and the conclusion of the example."""
    found = _lines(data)
    claims = [
        _judge_stage(stage, [line for line in found if line.stage == stage]) for stage in FORMULAS
    ]
    return [*claims, _judge_conclusion([line.right for line in found if line.stage == "weight"])]


def draw(data: Data) -> list[Plot]:
    """Draw each stage's numbers: printed, following from the stage before, right."""
    figure, axes = new_figure(columns=2, rows=2)
    for at, stage in zip(axes, FORMULAS, strict=True):
        found = [line for line in _lines(data) if line.stage == stage]
        for i, kind in enumerate(("right", "follows", "printed")):
            x = [line.number + (i - 1) * 0.16 for line in found]
            y = [getattr(line, kind) for line in found]
            label = {"follows": "from the stage before"}.get(kind, kind)
            at.plot(x, y, MARKERS[i], color=COLOURS[(0, 2, 1)[i]], label=label)
        at.set_title(f"{stage}: {FORMULAS[stage]}")
        at.set_xticks([line.number for line in found])
        at.set_xlabel("entry" if stage == "context" else "key i")
        at.set_ylabel(stage)
    legend(axes[0], below=True)
    caption = (
        "The numbers of the worked example, stage by stage. Where all three marks stand level the "
        "printed number is right; where it stands level with the middle one alone, it follows from "
        "an earlier mistake."
    )
    return [Plot("stages", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate every number."""
    rows = [line.cells() for line in _lines(data)]
    return [ReportTable("Every printed number beside the two of ours", HEADER, rows)]


def _tensor(rows: list[float] | list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def _lines(data: Data) -> list[PrintedNumber]:
    return [PrintedNumber(*line) for line in data["lines"]]


def _judge_stage(stage: str, found: list[PrintedNumber]) -> Claim:
    verdicts = [line.verdict for line in found]
    counted = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in (RIGHT, CARRIED, WRONG))
    printed = ", ".join(f"{line.printed:.2f}" for line in found)
    exact = ", ".join(f"{line.right:.4f}" for line in found)
    own = ", ".join(f"{line.follows:.4f}" for line in found)
    after = "" if stage == "score" else f"; from its own numbers a stage before: {own}"
    return Claim(
        source="document 5, section 4",
        text=f"For the first query, {stage} ({FORMULAS[stage]}): {printed}.",
        verdict=verdict(WRONG not in verdicts, CARRIED not in verdicts),
        evidence=f"Of {len(found)} numbers {counted}. Right: {exact}{after}.",
    )


def _judge_conclusion(weights: list[float]) -> Claim:
    least, even = min(weights), 1 / len(weights)
    greatest = 1 + weights.index(max(weights))
    return Claim(
        source="document 5, section 4",
        text="The output of the first position takes in all the others, not its own alone.",
        verdict=verdict(least >= ATTENDS * even, least >= ATTENDS * even),
        evidence=(
            f"With the right weights, too: they go from {least:.4f} to {max(weights):.4f}, and an "
            f"even spread is {even:.4f}. The greatest goes to key {greatest}; the query's own gets "
            f"{weights[0]:.4f}."
        ),
    )
