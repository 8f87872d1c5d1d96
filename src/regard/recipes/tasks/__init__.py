"""The tasks that recipes are about, by name."""

from typing import Final

from regard.recipes.tasks import cmudict, inflection, multi30k, ptb, sigmorphon, sst, tatoeba
from regard.recipes.tasks.task import Task, Verdict

TASKS: Final[dict[str, Task]] = {
    "cmudict": cmudict.TASK,
    "sigmorphon": sigmorphon.TASK,
    "inflection": inflection.TASK,
    "multi30k": multi30k.TASK,
    "tatoeba": tatoeba.TASK,
    "ptb": ptb.TASK,
    "sst": sst.TASK,
}

__all__ = ["TASKS", "Task", "Verdict"]
