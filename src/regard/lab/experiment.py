"""Experiments: a measurement, the claims it tests, and the plots and tables that show it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.lab.context import ExperimentContext

Data = dict[str, Any]
"""Result of a measurement: JSON-serialisable, so that it can be saved and drawn again."""

Rows = list[Data]
"""Results of the points of a grid, each with its place in it."""

Verdict = Literal["holds", "holds with limits", "does not hold"]


@dataclass(frozen=True)
class Claim:
    """A claim of a document and the measured verdict on it.

    Attributes:
        source: the document that makes the claim, with its section.
        text: the claim, paraphrased.
        verdict: the verdict of the measurement.
        evidence: the measured numbers, in one or two sentences.
    """

    source: str
    text: str
    verdict: Verdict
    evidence: str


def verdict(partly: object, fully: object) -> Verdict:
    """Return "does not hold" unless `partly`, and "holds" if `fully` is true as well."""
    if not partly:
        return "does not hold"
    return "holds" if fully else "holds with limits"


@dataclass(frozen=True)
class Plot:
    """A figure with its name (the stem of its file) and a self-contained caption."""

    name: str
    caption: str
    figure: "Figure"


@dataclass(frozen=True)
class ReportTable:
    """A table of formatted text with a caption."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Experiment:
    """A question, and the functions that answer it.

    Only `measure` runs models. `judge`, `draw` and `tabulate` are functions of its data, so that a
    report can be written from saved data without measuring anything.
    """

    name: str
    question: str
    method: str
    measure: "Callable[[ExperimentContext], Data]"
    judge: Callable[[Data], list[Claim]]
    draw: Callable[[Data], list[Plot]]
    tabulate: Callable[[Data], list[ReportTable]]


def describe(name: str, module: Any) -> Experiment:
    """Return the experiment of a module: its functions, and what its docstring says.

    The docstring has a paragraph that starts with `Question:`, and ends with one that starts with
    `Method:`; names in braces stand for constants of the module.
    """
    _, _, told = module.__doc__.partition("\n\nQuestion: ")
    texts = told.format_map(vars(module)).split("\n\nMethod: ")
    question, method = (" ".join(text.split()) for text in texts)
    draw: Callable[[Data], list[Plot]] = getattr(module, "draw", lambda data: [])
    return Experiment(name, question, method, module.measure, module.judge, draw, module.tabulate)
