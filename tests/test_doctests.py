"""The examples in the docstrings of all public names run, and every name has one."""

import doctest
import inspect
import re

import pytest
import torch

import regard
from pretrained import families
from regard import masks
from test_public_api import NAMES

#: names whose examples load transformers, with models that the fixture `folder` writes
WITH_TRANSFORMERS = ("regard.PretrainedModel", "regard.generate")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented():
    """Modules, classes and functions by their public names, each once."""
    found = {module.__name__: module for module in (*NAMES, masks)}
    for name, thing in inspect.getmembers(masks, inspect.isfunction):
        if thing.__module__ == masks.__name__ and not name.startswith("_"):
            found[f"regard.masks.{name}"] = thing
    for module, names in NAMES.items():
        for name in names:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found.setdefault(f"{module.__name__}.{name}", thing)
    return found


THINGS = documented()


def example(name, thing):
    """The example of a docstring, in which `torch` and `regard` are imported already."""
    names = {"torch": torch, "regard": regard}
    text = inspect.getdoc(thing) or ""
    return doctest.DocTestParser().get_doctest(text, names, name, None, 0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of examples that load models of transformers."""
    hugging = pytest.importorskip("transformers")
    families.save(hugging, tmp_path / "tiny-llama", "llama")
    monkeypatch.chdir(tmp_path)


def check(name, thing):
    test, said = example(name, thing), []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert not said, "".join(said)


@pytest.mark.parametrize("name", sorted({*THINGS} - {*WITH_TRANSFORMERS}))
def test_the_example_runs(name):
    check(name, THINGS[name])


@pytest.mark.slow
def test_examples_with_transformers_run(folder):
    for name in WITH_TRANSFORMERS:
        check(name, THINGS[name])


def test_every_public_name_has_an_example():
    """In its own docstring, or, if it has none, in that of its module."""
    missing = [name for name, thing in THINGS.items() if not example(name, thing).examples]
    for module, names in NAMES.items():
        shown = "".join(step.source for step in example("", module).examples)
        plain = (name for name in names if f"{module.__name__}.{name}" not in THINGS)
        missing += [
            f"{module.__name__}.{name}"
            for name in plain
            if not re.search(rf"\b{module.__name__}\.{name}\b", shown)
        ]
    assert not missing, f"add an example to the docstring of {missing}"
