"""Models that have learned so many positions and no more: targets end with the last of them."""

import pytest
import torch
from torch import nn

from regard.decoding import DecodingOptions, Ensemble, decode
from regard.errors import ArgumentError
from regard.layers import LearnedPositions
from regard.models import PRESETS
from regard.symbols import EOS

POSITIONS = 7
SRC, LENGTHS = torch.tensor([[5, 6, 2], [7, 2, 0]]), torch.tensor([3, 2])


@pytest.fixture(scope="module")
def endless():
    """A model that never writes `eos` of itself."""
    torch.manual_seed(0)
    model = PRESETS["conv"](src_vocab=11, tgt_vocab=13, size="tiny", max_len=POSITIONS)
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -50.0
    return model.eval()


def longest(found):
    return [len(hypotheses[0].tokens) for hypotheses in found]


@pytest.mark.parametrize(
    "options",
    [{"beam": 1}, {"beam": 3}, {"beam": 2, "max_len": 10**9}, {"beam": 1, "min_len": 50}],
)
def test_a_target_ends_with_the_last_position(endless, options):
    found = decode(endless, SRC, LENGTHS, DecodingOptions(**options))
    assert longest(found) == [POSITIONS - 1] * 2  # bos has the first
    assert not any(hypotheses[0].finished for hypotheses in found)


def test_a_prefix_that_does_not_fit_is_named(endless):
    options = DecodingOptions(prefix=[[5] * POSITIONS, [5]])
    with pytest.raises(ArgumentError, match=r"prefix must have at most 6 tokens.*one of 7"):
        decode(endless, SRC, LENGTHS, options)


def test_models_state_their_positions(endless):
    assert (endless.src_positions, endless.tgt_positions) == (POSITIONS, POSITIONS)
    wide = PRESETS["conv"](src_vocab=11, tgt_vocab=13, size="tiny", max_len=2 * POSITIONS)
    free = PRESETS["transformer"](src_vocab=11, tgt_vocab=13, size="tiny")
    assert (free.src_positions, free.tgt_positions) == (None, None)
    free.encoder.embedding.positions = LearnedPositions(5, free.encoder.embedding.dim)
    assert (free.src_positions, free.tgt_positions) == (5, None)
    together = Ensemble([wide, endless, free])
    assert (together.src_positions, together.tgt_positions) == (5, POSITIONS)
    assert isinstance(together, nn.Module)
