"""Links that a person has made, for `regard show`: they count what `regard align` counts."""

from dataclasses import replace

from regard.api.word_alignment import Units
from regard.errors import ArgumentError
from regard.seeing import Trace
from regard.seeing.alignment import Link, parse_links
from regard.seeing.trace import Text, Unit
from regard.seeing.words import one_by_one


def units_of(trace: Trace, words: bool | None) -> Units:
    """What is linked where no model is at hand: as for a model, but seen from the tokens."""
    if words is not None:
        return Units(words, words)
    return Units(*(not one_by_one(side.text, side.tokens) for side in (trace.source, trace.target)))


def with_gold(trace: Trace, line: str, units: Units) -> Trace:
    """The trace with the links of a line of Pharaoh format."""
    try:
        found = parse_links(line)
    except ValueError as error:
        raise ArgumentError("gold", "be links like 0-0 1-2 2p1", repr(line), str(error)) from None
    links = sorted(found.possible)
    source, target = (_unit(words) for words in units)
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
    """How many there are; symbols and features are neither."""
    if unit == "tokens":
        return sum(not token.special for token in text.tokens)
    return max((token.word + 1 for token in text.tokens if token.word is not None), default=0)
