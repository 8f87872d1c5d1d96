"""Experiments that take no time, in the place of the lab's."""

import sys
from types import ModuleType

from regard import lab
from regard.lab import Claim, ReportTable
from regard.lab.plots import curves


def half(*, number, device):
    return number / 2


def measure(context):
    found = [context.call(f"piece {seed}", half, number=seed) for seed in context.seeds]
    return {"halves": found, "pair": (1, float("nan"))}


def judge(data):
    verdict = "holds" if data["halves"] == [0.0, 0.5] else "does not hold"
    evidence = f"The halves are {data['halves']} & `more` <b>."
    return [Claim("document 1, a | b", "Halves <i>grow</i>.", verdict, evidence)]


def draw(data):
    x, lines = range(len(data["halves"])), {"halves": data["halves"]}
    return [curves("halves", 'Halves, "drawn" & <seen>', x, {"": lines})]


def tabulate(data):
    return [ReportTable("All <halves>", ("seed", "half"), [(str(i), "a|b") for i in range(2)])]


def draw_nothing(data):
    return []


TOLD = "Halves.\n\nQuestion: Is <half> less?\n\nMethod: By `halving`."
BASE = {"measure": measure, "judge": judge, "draw": draw_nothing, "tabulate": tabulate}
#: drawing takes longer than all else
DRAWN = {"draw": draw}


def stop(*_):
    raise KeyboardInterrupt


def install(monkeypatch, **changes):
    """Makes experiments out of what each changes in `BASE`, and the lab of these alone."""
    modules = {}
    for name, changed in changes.items():
        module = ModuleType(f"experiment_{name}")
        name = name.replace("_", "-")
        vars(module).update(BASE | changed, __doc__=TOLD)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        modules[name] = module.__name__
    monkeypatch.setattr(lab, "EXPERIMENTS", modules)
