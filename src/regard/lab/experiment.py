"""What an experiment is: a measurement, a judgement of claims, plots, all made of plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.lab.bench import Bench

Data = dict[str, Any]
"""What a measurement returns: whatever JSON can hold, so that it can be kept and drawn again."""

Verdict = Literal["holds", "holds with limits", "does not hold"]


@dataclass(frozen=True)
class Claim:
    """One claim of a document beside what was measured.

    Attributes:
        source: Which document makes it, and where.
        text: The claim, in our words.
        verdict: What the numbers say of it.
        evidence: The measured numbers, in a sentence or two.
    """

    source: str
    text: str
    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Plot:
    """A figure with its name (a file's stem) and a caption that can be read without it."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class Table:
    """Rows of text under a heading; numbers are already written out."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Experiment:
    """A question, and how it is answered.

    Only `measure` runs models. `judge`, `draw` and `tabulate` are functions of its data, so that a
    report is made again from kept data without measuring anything.

    Attributes:
        name: What the command line calls it.
        question: What it asks, in one sentence.
        method: How it is measured, in a paragraph: models, parameter counts, budgets, seeds.
        measure: Runs it on a bench.
        judge: The claims with their verdicts.
        draw: The plots.
        tabulate: The tables.
    """

    name: str
    question: str
    method: str
    measure: "Callable[[Bench], Data]"
    judge: Callable[[Data], list[Claim]]
    draw: Callable[[Data], list[Plot]]
    tabulate: Callable[[Data], list[Table]]
