import pytest
import torch

from examples import new_mechanism as example
from regard.lab import ExperimentContext
from regard.lab.experiments import cost, path, recall


def test_its_attention_is_a_softmax_of_cosines():
    torch.manual_seed(0)
    layer, x = example.CosineAttention(5), torch.randn(2, 3, 5)
    query, key, value = layer.project(x).chunk(3, dim=-1)
    cosines = torch.nn.functional.cosine_similarity(query[:, :, None], key[:, None], dim=-1)
    expected = layer.out((10.0 * cosines).softmax(-1) @ value)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.long
@pytest.mark.slow
def test_its_family_is_measured_beside_the_others(monkeypatch):
    small = {"length": [{"length": n, "width": 8} for n in (2, 3, 4, 5, 6)]}
    small["width"] = [{"length": 4, "width": d} for d in (2, 3, 4, 5, 6)]
    count, time = cost.count_sizes, cost.time_sizes

    def few(**arguments):
        sweep = "length" if arguments["sizes"][0]["width"] == 64 else "width"
        arguments["sizes"] = small[sweep]
        return arguments

    monkeypatch.setattr(cost, "count_sizes", lambda **a: count(**few(**a)))
    monkeypatch.setattr(cost, "time_sizes", lambda **a: time(**(few(**a) | {"patience": 0.0})))
    monkeypatch.setattr(path, "LENGTHS", (4, 5, 6, 7, 8))
    monkeypatch.setattr(path, "KERNEL_SWEEP_LENGTH", 33)
    monkeypatch.setattr(path, "KERNELS", (3, 5, 9, 17, 33))
    monkeypatch.setattr(path, "RADII", ())
    brief = {"size": 2, "width": 32, "rates": [0.01], "distances": [0, 1], "steps": 2, "batch": 4}
    monkeypatch.setattr(recall, "QUICK", brief)
    monkeypatch.setattr(example, "BESIDE", (example.layers.RNN, example.layers.SELF_ATTENTION))
    table = example.measured(ExperimentContext(torch.device("cpu"), seeds=(0,)), None)
    assert list(table.columns[0].cells) == ["RNN", "self-attention", "cosine attention"]
    assert list(table.columns[4].cells)[-1] == "1 at n = 8"
    assert all(cell.endswith("%") for cell in table.columns[6].cells)
