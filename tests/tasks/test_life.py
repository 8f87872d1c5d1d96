"""Each kind of data is trained, killed, resumed, predicted, evaluated, shown, checked and served.

`tasks.life` does it; docs/guides/tasks.md has its table, which this holds true.
"""

from itertools import product

import pytest

from regard.tasks import INPUTS, OUTPUTS, refusal
from tasks import life
from tasks.toys import TOYS

pytestmark = [
    pytest.mark.slow,
    # a few steps are not worth the compilation of kernels
    pytest.mark.usefixtures("plain_steps"),
    # the run that is killed is forked, so that it need not import torch again
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

#: each input and each output once; the whole table takes minutes
LIVED = (
    *("plain text", "summaries", "several labels", "questions, answer pointed at"),
    *("keywords in sound", "cells of pictures", "numbers of vectors", "series"),
)
#: kinds that are refused at once; others take seconds each
EXPORTED = ("plain text", "questions, answer chosen", "questions, answer pointed at")


def test_every_input_and_every_output_has_a_toy():
    found = [tuple(toy.task.split(" to ")) for toy in TOYS.values()]
    assert {read for read, _ in found} == INPUTS.keys()
    assert {write for _, write in found} == OUTPUTS.keys()
    # each combination has a toy that lives, or a reason against it
    assert all(((pair in found) != bool(refusal(*pair))) for pair in product(INPUTS, OUTPUTS))
    assert life.matrix() in life.in_guide()
    tried = [tuple(TOYS[name].task.split(" to ")) for name in LIVED]
    assert [{*side} for side in zip(*tried, strict=True)] == [INPUTS.keys(), OUTPUTS.keys()]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", [n if n in LIVED else pytest.param(n, marks=pytest.mark.long) for n in TOYS]
)
def test_a_run_lives(name, tmp_path):
    whole = life.Life(name, tmp_path)
    found = whole.walk(*life.VERBS[:-1])
    cells = life.row_of(name, whole.toy, {**found, "export": ""}).removesuffix(" |")
    assert cells in life.in_guide()
    assert all(line in life.in_guide() for line in life.refusals(whole))


@pytest.mark.sample(1)
@pytest.mark.usefixtures("onnx_registry")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in EXPORTED else pytest.mark.long) for n in TOYS]
)
def test_a_run_is_exported_or_says_why_not(name, tmp_path):
    whole = life.Life(name, tmp_path)
    found = whole.walk("train", "export")
    (row,) = [
        line
        for line in life.in_guide().splitlines()
        if line.startswith(f"| {name} | {whole.toy.task} |")
    ]
    assert row.endswith(f"| {found['export']} |")
    assert all(line in life.in_guide() for line in life.refusals(whole))
