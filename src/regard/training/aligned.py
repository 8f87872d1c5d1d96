"""Pairs for a model that writes one token for each it reads: their two sides are equally long."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from regard.data import Pair, Tokenizer, source_ids
from regard.data.error_hints import SETTING_HINTS, BadLine, BadLines
from regard.data.tokenizers import target_ids
from regard.errors import DataError

#: pairs that are cut into tokens at once
CHUNK: Final = 4096


def aligned(
    pairs: Iterable[Pair],
    src: Tokenizer,
    tgt: Tokenizer,
    *,
    preset: str,
    name: str,
    skip_bad: bool,
    say: Callable[[str], None],
) -> Iterator[Pair]:
    """The pairs; one of other lengths is a bad line.

    How long they are is known only when they are cut into tokens.

    Args:
        pairs: what to look at.
        src: cuts their sources,
        tgt: and their targets.
        preset: what wants them to be so.
        name: what messages call the file they come from.
        skip_bad: whether to leave bad lines out; otherwise the first one raises `DataError`.
        say: called with a sentence if any were left out.
    """
    bad, good, rest = BadLines(skip_bad, advice=SETTING_HINTS), 0, iter(pairs)
    while chunk := list(itertools.islice(rest, CHUNK)):
        # a source ends with eos, for which nothing is written
        reads = source_ids(src, [p.src for p in chunk], [p.features for p in chunk])
        writes = target_ids(tgt, chunk)
        for pair, read, written in zip(chunk, reads, writes, strict=True):
            if len(read) - 1 != len(written):
                words = _in_words(pair, (src, len(read) - 1), (tgt, len(written)))
                bad.add(name, pair.line, _of_other_lengths(pair, preset, *words))
                continue
            good += 1
            yield pair
    if bad.total and not good:
        first = bad.first[0]
        reason = f"all {bad.total:,} pairs are bad ({bad.reasons}), this one because {first.reason}"
        raise DataError(name, first.line, reason, first.fix)
    if bad.total:
        say(f"{name}: {bad}")


def _in_words(
    pair: Pair, read: tuple[Tokenizer, int], written: tuple[Tokenizer, int]
) -> tuple[str, str]:
    """How much of what a pair has on its two sides."""
    count = len(pair.features)
    features = f", {count} feature{'s' * (count != 1)} among them" if count else ""
    (src, reads), (tgt, writes) = read, written
    return (
        f"{reads:,} source token{'s' * (reads != 1)} ({src.kind}{features})",
        f"{writes:,} target token{'s' * (writes != 1)} ({tgt.kind})",
    )


def _of_other_lengths(pair: Pair, preset: str, read: str, written: str) -> BadLine:
    words_agree = len(pair.src.split()) + len(pair.features) == len(pair.tgt.split())
    first = "add src_tokenizer=space tgt_tokenizer=space" if words_agree else "mend the line"
    return BadLine(
        "other number of tokens",
        f"the preset {preset} writes one token for each that it reads, but the line has {read} "
        f"and {written}",
        f"{first}, or choose seq2seq or another preset",
    )
