import importlib
import sys

import pytest
import torch

from regard.lab import context as module
from regard.lab.context import fingerprint

CPU = torch.device("cpu")
SOURCES = {
    "__init__": "",
    "top": "from small.middle import helped\nimport json\n\n"
    "def compute(*, device):\n    return helped()\n\n\ndef other(*, device):\n    return 0\n",
    "middle": "from small import bottom\n\ndef helped():\n    return bottom.ANSWER\n",
    "bottom": "ANSWER = 42\n",
    "beside": "ANSWER = 43\n",
}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A package of a few modules in the place of regard."""
    folder = tmp_path / "small"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "PACKAGE", "small")
    _forget()
    yield folder
    _forget()
    for name in [name for name in sys.modules if name.split(".")[0] == "small"]:
        del sys.modules[name]


def _forget():
    module._sources.cache_clear()
    module._module_file.cache_clear()
    importlib.invalidate_caches()


def of(function="compute", arguments=None, device=CPU):
    found = getattr(importlib.import_module("small.top"), function)
    return fingerprint(found, arguments or {}, device)


@pytest.mark.parametrize("changed", ["top", "middle", "bottom"])
def test_a_change_of_what_it_stands_on_changes_it(small, changed):
    before = of()
    path = small / f"{changed}.py"
    path.write_text(path.read_text() + "# changed\n")
    assert of() != before


def test_a_change_elsewhere_leaves_it(small):
    before = of()
    (small / "beside.py").write_text("ANSWER = 44\n")
    _forget()
    assert of() == before


def test_it_is_the_same_when_nothing_changes(small):
    before = of(arguments={"a": 1, "b": [2]})
    _forget()
    assert of(arguments={"b": [2], "a": 1}) == before


def test_function_arguments_and_torch_change_it(small, monkeypatch):
    before = of()
    assert of("other") != before
    assert of(arguments={"a": 1}) != before
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert of() != before


def test_the_device_changes_it(small):
    assert of(device=torch.device("meta")) != of()


def test_experiments_do_not_stand_on_how_they_are_drawn_and_listed():
    from regard.lab.experiments import scale

    module._sources.cache_clear()
    names = {path.name for path in module._sources(module.Path(scale.__file__))}
    assert {"scale.py", "estimates.py", "primitives.py"} <= names
    assert not names & {"plots.py", "experiment.py"}
