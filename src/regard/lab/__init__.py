"""The lab: what the documents claim about attention, as experiments that anybody can run again."""

from typing import Final

from regard.lab.bench import Bench
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict

#: each experiment's name and the module whose `EXPERIMENT` it is, in the order of running: what
#: is timed comes first, while the machine is quiet
EXPERIMENTS: Final[dict[str, str]] = {
    "cost": "regard.lab.experiments.cost",
    "path": "regard.lab.experiments.path",
    "scale": "regard.lab.experiments.scale",
    "bottleneck": "regard.lab.experiments.bottleneck",
    "recall": "regard.lab.experiments.recall",
    "order": "regard.lab.experiments.order",
    "heads": "regard.lab.experiments.heads",
    "word-by-word": "regard.lab.experiments.word_by_word",
    "reading": "regard.lab.experiments.reading",
    "vision": "regard.lab.experiments.vision",
    "worked-example": "regard.lab.experiments.worked_example",
}

__all__ = ["EXPERIMENTS", "Bench", "Claim", "Data", "Experiment", "Plot", "Table", "Verdict"]
