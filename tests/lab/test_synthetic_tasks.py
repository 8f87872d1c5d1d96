import pytest
import torch
from torch import Generator

from regard.errors import ArgumentError
from regard.lab.small_models import FIRST_WORD, IGNORED, ORDERS, Copy, Offsets, Recall, Rewriting
from regard.symbols import BOS, EOS


def chance(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


def test_recall_asks_for_the_value_that_came_with_the_key():
    task = Recall(pairs=3, keys=5, values=7, noise=2)
    batch = task.draw(11, 13, chance())
    (tokens,) = batch.inputs
    assert tokens.shape == (11, 3 + 13 + 1)
    for row, targets in zip(tokens.tolist(), batch.targets.tolist(), strict=True):
        shown = {token // 7: token % 7 for token in row[:3]}
        assert len(shown) == 3
        assert targets[-1] == shown[row[-1] - 5 * 7]
        assert set(targets[:-1]) == {IGNORED}
        assert all(40 <= token < task.vocab for token in row[3:-1])


def test_recall_refuses_more_pairs_than_keys():
    with pytest.raises(ArgumentError, match="pairs must be at most keys = 2"):
        Recall(pairs=3, keys=2)


def test_copy_asks_for_the_symbols_in_order():
    batch = Copy(span=3, symbols=5, noise=2).draw(7, 11, chance())
    (tokens,) = batch.inputs
    assert tokens.shape == (7, 3 + 11 + 3)
    assert (batch.targets[:, -3:] == tokens[:, :3]).all()
    assert (batch.targets[:, :-3] == IGNORED).all()
    assert tokens[:, -3:].tolist() == [[5, 6, 7]] * 7


def test_offsets_stand_side_by_side_and_are_not_asked_before_the_start():
    batch = Offsets((1, 3), vocab=5).draw(2, 7, chance())
    tokens = batch.inputs[0][1].tolist()
    targets = batch.targets[1].view(7, 2).tolist()
    for place, (near, far) in enumerate(targets):
        assert near == (tokens[place - 1] if place >= 1 else IGNORED)
        assert far == (tokens[place - 3] if place >= 3 else IGNORED)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("word for word", [1, 2, 3, 4, 0]),
        ("running sum", [0, 1, 3, 0, 2]),
        ("neighbours swapped", [2, 1, 4, 3, 0]),
        ("last word second", [1, 0, 2, 3, 4]),
    ],
)
def test_orders_by_hand(name: str, expected: list[int]):
    source = torch.tensor([[0, 1, 2, 3, 4]])
    assert ORDERS[name](source, 5).tolist() == [expected]


def test_rewriting_gives_a_preset_its_source_and_its_target_from_bos_to_eos():
    task = Rewriting("word for word", words=3)
    batch = task.draw(5, 7, chance())
    source, lengths, target = batch.inputs
    wanted = FIRST_WORD + (source - FIRST_WORD + 1) % 3
    assert lengths.tolist() == [7] * 5
    assert (target[:, 0] == BOS).all()
    assert (target[:, 1:] == wanted).all()
    assert (batch.targets[:, :-1] == wanted).all()
    assert (batch.targets[:, -1] == EOS).all()
