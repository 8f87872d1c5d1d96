"""What mattered beside what was looked at, for one source."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from regard.data import Tokenizer
from regard.decoding import DecodingOptions, greedy
from regard.models import SequenceModel
from regard.seeing import Trace
from regard.seeing.attribution import shuffled_attention
from regard.seeing.checks import check
from regard.seeing.replacements import Replacements, token_replacements
from regard.symbols import EOS, SYMBOLS


def checked(
    module: SequenceModel,
    tgt_tokenizer: Tokenizer,
    row: Any,
    batch: tuple[Tensor, Tensor],
    tgt: list[int],
    trace: Trace,
    unknown: Replacements,
    max_len: int | None = None,
) -> Trace:
    """The trace with what was derived and checked; see `seeing.checks.check`.

    Args:
        module: which has left the trace.
        tgt_tokenizer: of what it writes.
        row: the source as the model reads it.
        batch: the same as a batch, and its length.
        tgt: ids of the target.
        trace: of all kinds of maps that the model has.
        unknown: what stands in each place of the source when it is not known.
        max_len: the most tokens of what the model writes by itself.
    """
    found = check(module, row, tgt, trace, unknown)
    if not any(trace.of_kind("cross")):
        return found
    options = DecodingOptions(beam=1, max_len=max_len)
    plain = tgt_tokenizer.decode(_greedy(module, *batch, options))
    with shuffled_attention(module):
        shuffled = tgt_tokenizer.decode(_greedy(module, *batch, options))
    change = "the same" if shuffled == plain else repr(shuffled)
    sentence = f"Left to itself it writes {plain!r}; with its attention shuffled, {change}."
    more = {"greedy_text": plain, "shuffled_text": shuffled}
    sentences = [*found.checks["sentences"], sentence]
    return replace(found, checks={**found.checks, **more, "sentences": sentences})


def _greedy(
    module: SequenceModel, src: Tensor, lengths: Tensor, options: DecodingOptions
) -> list[int]:
    return greedy(module, src, lengths, options)[0][0].tokens


def unknown_tokens(tokenizer: Tokenizer, src: Sequence[int]) -> Replacements:
    """What could stand in the place of each token of a source."""
    return token_replacements(src, [_others(tokenizer, token) for token in src])


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
