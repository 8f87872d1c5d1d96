import pytest
import torch

from regard.lab import context as module
from regard.lab.context import fingerprint

CPU = torch.device("cpu")


def compute(*, device):
    return 0


def other(*, device):
    return 1


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder in the place of regard's sources."""
    (tmp_path / "top.py").write_text("ANSWER = 42\n")
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    module._package_digest.cache_clear()
    yield tmp_path
    module._package_digest.cache_clear()


def test_a_change_of_the_package_changes_it(package):
    before = fingerprint(compute, {}, CPU)
    (package / "top.py").write_text("ANSWER = 43\n")
    assert fingerprint(compute, {}, CPU) == before  # a run has the code that it began with
    module._package_digest.cache_clear()
    assert fingerprint(compute, {}, CPU) != before


def test_function_arguments_device_and_torch_change_it(package, monkeypatch):
    before = fingerprint(compute, {"a": 1, "b": [2]}, CPU)
    assert fingerprint(compute, {"b": [2], "a": 1}, CPU) == before
    assert fingerprint(other, {"a": 1, "b": [2]}, CPU) != before
    assert fingerprint(compute, {"a": 2, "b": [2]}, CPU) != before
    assert fingerprint(compute, {"a": 1, "b": [2]}, torch.device("meta")) != before
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert fingerprint(compute, {"a": 1, "b": [2]}, CPU) != before
