import pytest
import torch

from examples import read_vectors as example


@pytest.mark.long
def test_it_learns_to_hear(monkeypatch):
    monkeypatch.setattr(example, "NOISE", 0.3)
    torch.manual_seed(0)
    model, heard = example.build_listener(), example.speak(200)
    example.listen(model, 120)
    found = example.understand(model, heard)
    answers = [[token - example.FIRST for token in best.tokens] for best in found]
    right = example.share(answers, heard.sounds)
    print(f"{right:.1%} right, {example.own_share(found, heard):.0%} of attention to its own sound")
    assert right >= 0.7
    assert example.own_share(found, heard) >= 0.6
