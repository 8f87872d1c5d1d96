import pytest
import torch

# Tests run side by side, and their tensors are tiny: more threads would only fight over the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
