"""Translation with presets of one layer of GRUs: training on pairs of ids, and greedy answers."""

from collections.abc import Sequence

import torch

from regard.data import pad
from regard.decoding import DecodingOptions, decode
from regard.lab.small_models import IGNORED, TaskBatch
from regard.models import PRESETS, SequenceModel
from regard.symbols import BOS, EOS, PAD

IdPairs = Sequence[tuple[list[int], list[int]]]
"""Sources as the encoder reads them, and targets without bos and eos."""


def build(
    preset: str, vocab: tuple[int, int], width: int, *, embed: int | None = None, dropout: float = 0
) -> SequenceModel:
    """Build a preset; both directions of an encoder share `2 * width`."""
    sizes = {"embed": embed or width, "hidden": 2 * width, "layers": 1, "cell": "gru"}
    return PRESETS[preset](*vocab, dropout=dropout, **sizes)


def batch_of(pairs: IdPairs) -> TaskBatch:
    """Return inputs of a preset, source, lengths and target from bos, and the target to eos."""
    src, lengths = pad([source for source, _ in pairs])
    inputs, _ = pad([[BOS, *target] for _, target in pairs])
    targets, _ = pad([[*target, EOS] for _, target in pairs])
    return TaskBatch((src, lengths, inputs), targets.masked_fill(targets == PAD, IGNORED))


@torch.no_grad()
def translate(
    model: SequenceModel, pairs: IdPairs, batch: int, device: torch.device
) -> list[list[int]]:
    """Decode the source of every pair greedily."""
    options = DecodingOptions(beam=1, max_len_ratio=1.5, max_len_extra=10)
    found: list[list[int]] = []
    for start in range(0, len(pairs), batch):
        src, lengths = pad([source for source, _ in pairs[start : start + batch]])
        best = decode(model.eval(), src.to(device), lengths.to(device), options)
        found += [hypotheses[0].tokens for hypotheses in best]
    return found
