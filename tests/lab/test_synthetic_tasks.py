import pytest
import torch
from torch import Generator

from regard.lab.experiments.word_by_word import ORDERS, WORDS, draw_pairs
from regard.lab.small_models import IGNORED, Copy, Offsets
from regard.lab.translation import batch_of
from regard.symbols import BOS, EOS


def chance(seed: int = 5) -> Generator:
    return Generator().manual_seed(seed)


def test_copy_asks_for_the_symbols_in_order():
    batch = Copy(3).draw(7, 11, chance())
    (tokens,) = batch.inputs
    assert tokens.shape == (7, 3 + 11 + 3)
    assert (batch.targets[:, -3:] == tokens[:, :3]).all()
    assert (batch.targets[:, :-3] == IGNORED).all()
    assert tokens[:, -3:].tolist() == [[6, 7, 8]] * 7
    assert int(tokens[:, 3:-3].min()) == 9
    assert int(tokens.max()) == Copy(3).vocab - 1


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
        ("word for word", [2, 4, 6, 0, 1]),
        ("running sum", [1, 4, 0, 4, 7]),
        ("neighbours swapped", [4, 2, 0, 6, 1]),
        ("last word second", [2, 1, 4, 6, 0]),
    ],
)
def test_orders_by_hand(name: str, expected: list[int]):
    assert WORDS == 8
    assert ORDERS[name](torch.tensor([[1, 3, 5, 7, 0]])).tolist() == [expected]


def test_pairs_become_sources_and_targets_from_bos_to_eos():
    pairs = draw_pairs("word for word", 7, 5, chance())
    (source, lengths, target), wanted = batch_of(pairs)
    assert source.tolist() == [source for source, _ in pairs]
    assert lengths.tolist() == [7] * 5
    assert (target[:, 0] == BOS).all()
    assert (target[:, 1:] - 4 == (source - 4 + 1) % WORDS).all()
    assert (wanted[:, :-1] == target[:, 1:]).all()
    assert (wanted[:, -1] == EOS).all()


def test_padding_is_asked_nothing():
    (src, lengths, inputs), targets = batch_of([([5, 6, 7, EOS], [4, 4]), ([8, 9, EOS], [4])])
    assert (src[1].tolist(), int(lengths[1])) == ([8, 9, EOS, 0], 3)
    assert inputs[1].tolist() == [BOS, 4, 0]
    assert targets[1].tolist() == [4, EOS, IGNORED]
