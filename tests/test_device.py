import pytest
import torch

from ops.messages import refuses
from regard import device


@pytest.mark.parametrize(("has_cuda", "kind"), [(True, "cuda"), (False, "cpu")])
def test_auto_takes_cuda_where_there_is_one(monkeypatch, has_cuda, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    assert device.pick() == torch.device(kind)


def test_a_device_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.pick("cpu") == torch.device("cpu")
    assert device.pick("cpu:3") == torch.device("cpu")
    assert device.pick("cuda:1") == torch.device("cuda", 1)
    assert device.pick("cuda") == torch.device("cuda")


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("cuda:2", "from 0 to 1"),
        ("vulkan", "finds none"),
        ("hpu:1", "finds none"),
        ("meta", "nothing on it has values"),
    ],
)
def test_a_device_that_this_machine_has_not_is_refused(monkeypatch, name, seen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with refuses("device", "exist on this machine", f"'{name}', and ") as caught:
        device.pick(name)
    assert seen in str(caught.value)
