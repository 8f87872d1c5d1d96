import jaxtyping
import pytest
import torch

import shapes

# before anything of the package is imported
jaxtyping.jaxtyped = shapes.jaxtyped

# Tests run side by side, and their tensors are tiny: more threads would only fight over the cores.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    # what trains comes first, so that at the end both workers have short tests to share
    items.sort(key=lambda item: item.get_closest_marker("system") is None)


@pytest.fixture(autouse=True)
def seed():
    # without a GPU, torch.manual_seed writes down the stack for each kind of device that may come
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
