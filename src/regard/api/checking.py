"""What mattered beside what was looked at, for one text."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from regard.data import Tokenizer
from regard.decoding import DecodingOptions, greedy
from regard.models import SequenceModel
from regard.seeing import Trace
from regard.seeing.checks import check
from regard.seeing.derive import shuffled_attention
from regard.symbols import EOS, SYMBOLS


def checked(
    module: SequenceModel,
    src_tokenizer: Tokenizer,
    tgt_tokenizer: Tokenizer,
    src: list[int],
    tgt: list[int],
    trace: Trace,
) -> Trace:
    """The trace of these ids with what was derived and checked; see `seeing.checks.check`."""
    found = check(module, src, tgt, trace, [_others(src_tokenizer, i) for i in src])
    if not any(trace.of_kind("cross")):
        return found
    plain = tgt_tokenizer.decode(_greedy(module, src))
    with shuffled_attention(module):
        shuffled = tgt_tokenizer.decode(_greedy(module, src))
    change = "the same" if shuffled == plain else repr(shuffled)
    sentence = f"Left to itself it writes {plain!r}; with its attention shuffled, {change}."
    more = {"greedy_text": plain, "shuffled_text": shuffled}
    sentences = [*found.checks["sentences"], sentence]
    return replace(found, checks={**found.checks, **more, "sentences": sentences})


def _greedy(module: SequenceModel, src: list[int]) -> list[int]:
    device = next(module.parameters()).device
    tokens, lengths = torch.tensor([src], device=device), torch.tensor([len(src)], device=device)
    return greedy(module, tokens, lengths, DecodingOptions(beam=1))[0][0].tokens


def _others(tokenizer: Tokenizer, token: int) -> Sequence[int]:
    """The tokens that could stand in the place of one: features for a feature, text for text.

    Every source ends with `eos`, so that nothing else could stand there: it is always known.
    """
    if token == EOS:
        return [EOS]
    first_feature = tokenizer.vocab_size - len(tokenizer.features)
    if token >= first_feature:
        return range(first_feature, tokenizer.vocab_size)
    return range(len(SYMBOLS), first_feature)
