import pytest
import torch

POISONED = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)


def poison(allocate):
    def allocate_poison(*args, **kwargs):
        memory = allocate(*args, **kwargs)
        with torch.no_grad():
            if memory.is_floating_point():
                return memory.fill_(float("nan"))
            return memory.fill_(
                True if memory.dtype == torch.bool else torch.iinfo(memory.dtype).max
            )

    return allocate_poison


@pytest.fixture(autouse=True)
def poisoned_memory(request, monkeypatch):
    """What an operator allocates and forgets to write is NaN, never a lucky zero.

    Torch's own deterministic mode can fill memory too, but it also chooses other kernels (never
    cuDNN's attention, for one), so that the tests would not run what users run.
    """
    if request.node.get_closest_marker("compile"):
        return  # torch.compile cannot trace the wrapper
    for owner, name in POISONED:
        monkeypatch.setattr(owner, name, poison(getattr(owner, name)))
