"""The lab: what the documents claim about attention, as experiments that anybody can run again."""

from regard.lab.bench import Bench
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict

__all__ = ["Bench", "Claim", "Data", "Experiment", "Plot", "Table", "Verdict"]
