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
from regard.symbols import SYMBOLS


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
    device = next(module.parameters()).device
    tokens, lengths = torch.tensor([src], device=device), torch.tensor([len(src)], device=device)
    with shuffled_attention(module):
        answer = greedy(module, tokens, lengths, DecodingOptions(beam=1))[0][0]
    changed = "the same" if answer.tokens == list(tgt) else "another"
    text = tgt_tokenizer.decode(answer.tokens)
    sentence = f"Left to itself with its attention shuffled, it writes {changed}: {text!r}."
    sentences = [*found.checks["sentences"], sentence]
    more = {"shuffled_text": text, "sentences": sentences}
    return replace(found, checks={**found.checks, **more})


def _others(tokenizer: Tokenizer, token: int) -> Sequence[int]:
    """The tokens that could stand in the place of one: other features for a feature."""
    first_feature = tokenizer.vocab_size - len(tokenizer.features)
    if token >= first_feature:
        return range(first_feature, tokenizer.vocab_size)
    return range(len(SYMBOLS), first_feature)
