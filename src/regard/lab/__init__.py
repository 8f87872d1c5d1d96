"""The lab: reproducible experiments that test what tutorials claim about attention."""

from typing import Final

from regard.lab.context import ExperimentContext
from regard.lab.experiment import Claim, Data, Experiment, Plot, ReportTable, Verdict

#: name of each experiment and its module (`regard.lab.experiment.describe`), in the order of
#: running: timed experiments come first, while the machine is idle
EXPERIMENTS: Final[dict[str, str]] = {
    name: f"regard.lab.experiments.{name.replace('-', '_')}"
    for name in (
        "cost",
        "path",
        "scale",
        "bottleneck",
        "recall",
        "order",
        "heads",
        "word-by-word",
        "reading",
        "vision",
        "worked-example",
    )
}

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Data",
    "Experiment",
    "ExperimentContext",
    "Plot",
    "ReportTable",
    "Verdict",
]
