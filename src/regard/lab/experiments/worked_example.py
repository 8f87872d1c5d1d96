"""A published worked example of self-attention, recomputed, with a verdict on each number.

Question: Are the numbers of the example that is computed by hand right?

Method: The example takes four vectors as queries and keys, and four as values, and follows the
first query through scores, scaled scores, weights and context. They go through
`ops.dot_product_attention` in float64. Every printed number is compared, at its two digits, with
the right one and with what its formula gives for the numbers printed one stage before: right;
carried over from an earlier mistake; or wrong in itself. A stage holds if all its numbers are
right, holds with limits if some are carried over, and does not hold if one is wrong in itself. No
chance, no training.
"""

from typing import Final, NamedTuple

import torch

from regard import ops
from regard.lab.context import ExperimentContext
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.plots import COLOURS, MARKERS, legend, new_figure

KEY: Final = torch.tensor(
    [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.7, 0.8, 0.9], [1.0, 1.1, 1.2]], dtype=torch.float64
)
VALUE: Final = KEY + 0.9
SCALE: Final = KEY.shape[1] ** -0.5
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
        numbers = f"{self.printed:.2f}", f"{self.follows:.4f}", f"{self.right:.4f}"
        return f"{self.stage} {self.number}", *numbers, self.verdict


def agrees(printed: float, exact: float) -> bool:
    """Return whether `printed` is `exact`, rounded to two digits."""
    return abs(printed - exact) <= 0.005 + 1e-9


def printed_numbers() -> list[PrintedNumber]:
    """Return every number of the example, in order, with those that regard computes."""
    context, weights = ops.dot_product_attention(
        KEY[None, None, :1], KEY[None, None], VALUE[None, None], scale=SCALE, need_weights=True
    )
    assert weights is not None
    scores = KEY @ KEY[0]
    right = (scores, scores * SCALE, weights.flatten(), context.flatten())
    # each stage from the numbers printed for the one before
    before = [torch.tensor(stage, dtype=torch.float64) for stage in PRINTED.values()]
    soft = ops.masked_softmax(before[1][None, None, None], None).flatten()
    follows = (scores, before[0] * SCALE, soft, before[2] @ VALUE)
    return [
        PrintedNumber(stage, i + 1, number, theirs[i].item(), ours[i].item())
        for (stage, numbers), theirs, ours in zip(PRINTED.items(), follows, right, strict=True)
        for i, number in enumerate(numbers)
    ]


def measure(context: ExperimentContext) -> Data:
    """Compute the example: a few products in float64."""
    return {"lines": [list(line) for line in printed_numbers()]}


def stages(data: Data) -> dict[str, list[PrintedNumber]]:
    """Return the numbers of each stage."""
    lines = [PrintedNumber(*line) for line in data["lines"]]
    return {stage: [line for line in lines if line.stage == stage] for stage in FORMULAS}


def judge(data: Data) -> list[Claim]:
    """Judge each stage, and the conclusion of the example."""
    claims = []
    for stage, found in stages(data).items():
        verdicts = [line.verdict for line in found]
        counted = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in (RIGHT, CARRIED, WRONG))
        printed, exact, own = (
            ", ".join(f"{line[place]:.{digits}f}" for line in found)
            for place, digits in ((2, 2), (4, 4), (3, 4))
        )
        claims.append(
            Claim(
                "document 5, section 4",
                f"For the first query, {stage} ({FORMULAS[stage]}): {printed}.",
                verdict(WRONG not in verdicts, CARRIED not in verdicts),
                f"Of {len(found)} numbers {counted}. Right: {exact}; from its own numbers a stage "
                f"before: {own}.",
            )
        )
    weights = [line.right for line in stages(data)["weight"]]
    least, most, even = min(weights), max(weights), 1 / len(weights)
    takes_in = least >= ATTENDS * even
    return [
        *claims,
        Claim(
            "document 5, section 4",
            "The output of the first position takes in all the others, not its own alone.",
            verdict(takes_in, takes_in),
            f"With the right weights, too: they go from {least:.4f} to {most:.4f}, and an even "
            f"spread is {even:.4f}. The greatest goes to key {1 + weights.index(most)}; the "
            f"query's own gets {weights[0]:.4f}.",
        ),
    ]


def draw(data: Data) -> list[Plot]:
    """Draw each stage's numbers: printed, following from the stage before, right."""
    figure, axes = new_figure(columns=2, rows=2)
    kinds = (("right", 4, 0), ("from the stage before", 3, 2), ("printed", 2, 1))
    for at, (stage, found) in zip(axes, stages(data).items(), strict=True):
        for i, (label, place, colour) in enumerate(kinds):
            x = [line.number + (i - 1) * 0.16 for line in found]
            y = [line[place] for line in found]
            at.plot(x, y, MARKERS[i], color=COLOURS[colour], label=label)
        at.set(
            title=f"{stage}: {FORMULAS[stage]}",
            xticks=[line.number for line in found],
            xlabel="entry" if stage == "context" else "key i",
            ylabel=stage,
        )
    legend(axes[0], below=True)
    caption = (
        "The numbers of the worked example, stage by stage. Where all three marks stand level the "
        "printed number is right; where it stands level with the middle one alone, it follows from "
        "an earlier mistake."
    )
    return [Plot("stages", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate every number."""
    rows = [line.cells() for found in stages(data).values() for line in found]
    return [ReportTable("Every printed number beside the two of ours", HEADER, rows)]
