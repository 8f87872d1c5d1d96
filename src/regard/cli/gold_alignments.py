"""Gold alignments: links made by people, read from a file or given for one trace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from regard.api.word_alignment import Units, spread
from regard.data import read_lines
from regard.data.text_files import display_name
from regard.errors import ArgumentError
from regard.seeing import Trace
from regard.seeing.trace import Text, Unit
from regard.seeing.trace.alignment import Gold, Link, check_gold, parse_links, read_gold
from regard.seeing.trace.words import are_characters

#: longest line of a file of gold, in characters
MAX_CHARS: Final = 1_000_000
NO_GOLD: Final = Gold(frozenset(), frozenset())


def read_gold_file(
    file: str, first: int, sizes: Sequence[tuple[int, int]], bad: Sequence[bool]
) -> list[Gold]:
    """Return the gold of each pair; a bad line of the pairs has a line here that is not used."""
    lines = list(read_lines(file, max_chars=MAX_CHARS))
    while len(lines) > len(bad) and not lines[-1].strip():
        lines.pop()
    found = read_gold(display_name(file), lines, first=first)
    if len(found) == len(bad):
        found = [NO_GOLD if left else gold for left, gold in zip(bad, found, strict=True)]
    check_gold(display_name(file), found, spread(sizes, bad, (0, 0)))
    return [gold for left, gold in zip(bad, found, strict=True) if not left]


def units_of(trace: Trace, words: bool | None) -> Units:
    """Return the units that a saved trace links: as for its model, but judged by its tokens."""
    if words is not None:
        return Units(words, words)
    return Units(
        *(not are_characters(side.text, side.tokens) for side in (trace.source, trace.target))
    )


def with_gold(trace: Trace, line: str, units: Units) -> Trace:
    """Return the trace with the links of a line of Pharaoh format."""
    try:
        found = parse_links(line)
    except ValueError as error:
        raise ArgumentError("gold", "be links like 0-0 1-2 2p1", repr(line), str(error)) from None
    links = sorted(found.possible)
    source, target = map(_unit, units)
    _check(links, (trace.source, source), (trace.target, target))
    gold = tuple((t, s, (s, t) in found.sure) for s, t in links)
    return replace(trace, gold=gold, gold_units=(target, source))


def _unit(words: bool) -> Unit:
    return "words" if words else "tokens"


def _check(links: list[Link], *sides: tuple[Text, Unit]) -> None:
    sizes = [_size(text, unit) for text, unit in sides]
    for link in links:
        if any(number >= size for number, size in zip(link, sizes, strict=True)):
            there = zip(sides, sizes, strict=True)
            ranges = [f"{unit} from 0 to {size - 1}" for (_, unit), size in there]
            raise ArgumentError(
                "gold",
                f"link {' with '.join(ranges)}",
                f"{link[0]}-{link[1]}",
                "count from 0, the source first, as `regard align` does",
            )


def _size(text: Text, unit: Unit) -> int:
    """Return the number of words or tokens; symbols and features are neither."""
    if unit == "tokens":
        return sum(not token.special for token in text.tokens)
    return max((token.word + 1 for token in text.tokens if token.word is not None), default=0)
