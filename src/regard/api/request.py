"""What a model is asked for, checked."""

import difflib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from regard.decoding import DecodingOptions
from regard.errors import ArgumentError, DataError, RegardError
from regard.models import TEXT_PRESETS
from regard.training import Config

#: batches that are read before the first is answered
AHEAD: Final = 16


@dataclass(frozen=True)
class PredictRequest:
    """What is asked for with each source of a call.

    Attributes:
        options: of decoding.
        attention: whether answers carry maps.
        kinds: which maps.
        replace_unk: whether unknown words become source words.
    """

    options: DecodingOptions
    attention: bool
    kinds: Collection[str]
    replace_unk: bool

    def of(self, rows: Sequence[int]) -> "PredictRequest":
        """The same for some of the sources, in this order. One prefix alone is that of each."""
        prefix = self.options.prefix
        if prefix is None or len(prefix) == 1:
            return self
        if rows and max(rows) >= len(prefix):
            raise _other_count(len(prefix), f"{max(rows) + 1} sources or more")
        return replace(self, options=replace(self.options, prefix=[prefix[i] for i in rows]))

    def check_total(self, sources: int) -> None:
        """Raises where there are prefixes for more sources than there were."""
        given = len(self.options.prefix or ())
        if given > max(sources, 1):
            raise _other_count(given, f"{sources} source{'s' * (sources != 1)}")

    def seeded(self, seed: int | None) -> "PredictRequest":
        """The same with another seed of the draws."""
        if seed == self.options.seed:
            return self
        return replace(self, options=replace(self.options, seed=seed))

    def seeds(self) -> Iterator[int | None]:
        """A seed for each batch: batches that share one would draw the same answers."""
        seed = self.options.seed
        draw = random.Random(seed)
        yield seed
        while True:
            yield None if seed is None else draw.getrandbits(63)

    def check(self, config: Config) -> None:
        """Raises where a model of these settings cannot do it."""
        if self.replace_unk and config.reads_texts:
            raise ArgumentError(
                "replace_unk", "be left out for a language model", True, "it has no source to copy"
            )

    @property
    def shown(self) -> Collection[str]:
        """The maps that answers carry."""
        return self.kinds if self.attention else ()

    @property
    def needed(self) -> Collection[str]:
        """The maps that decoding must keep."""
        return {*self.shown, "cross"} if self.replace_unk else self.shown


def in_chunks(
    texts: Iterable[Any], check: Callable[[Any], None], batch: int, wish: PredictRequest
) -> Iterator[tuple[list[Any], PredictRequest]]:
    """Sources that are looked at together, and what is asked for with them.

    The error of one that cannot be read comes after all that was read before it.
    """
    most = AHEAD * batch if batch > 1 else 1
    chunk: list[Any] = []
    before = 0
    try:
        for text in texts:
            check(text)
            chunk.append(text)
            if len(chunk) == most:
                yield chunk, wish.of(range(before, before + most))
                before, chunk = before + most, []
    except DataError:
        yield chunk, wish.of(range(before, before + len(chunk)))
        raise
    wish.check_total(before + len(chunk))
    yield chunk, wish.of(range(before, before + len(chunk)))


def _other_count(given: int, sources: str) -> ArgumentError:
    return ArgumentError(
        "prefix",
        "be one, or one for each source",
        f"{given} for {sources}",
        "give as many as there are sources, empty lists among them",
    )


def check_has_sources(config: Config) -> None:
    """Raises for a language model, which cannot be checked."""
    if config.reads_texts:
        raise RegardError(
            "a check must have a source whose tokens can be taken away, but a language model has "
            "none: see where it looked with `regard show` or Model.trace."
        )


def check_reads_texts(config: Config) -> None:
    """Raises unless it is a language model, which has a perplexity."""
    if not config.reads_texts:
        raise RegardError(
            f"perplexity must be asked of a language model, but the preset of this run is "
            f"{config.preset}: train one of {', '.join(TEXT_PRESETS)}."
        )


def check_several(texts: Any) -> None:
    """Raises for what is not several texts, though python may be able to walk through it."""
    if isinstance(texts, str | bytes):
        fix = "call the model with it, or put it in a list"
        raise ArgumentError("texts", "be several", f"one text, {texts!r:.40}", fix)
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        fix = "give the model a string, or a list of strings"
        raise ArgumentError("text", "be a string, or several", f"{texts!r:.40}", fix)


def check_pairs(pairs: Any) -> None:
    """Raises for what is no file and no pairs, though python may be able to walk through it."""
    if isinstance(pairs, Mapping | bytes) or not isinstance(pairs, str | Path | Iterable):
        raise ArgumentError(
            "pairs",
            "be a file, or tuples of source and target",
            f"{pairs!r:.40}",
            'give "pairs.tsv", or [("a", "b"), ("c", "d")]',
        )


def decoding_options(config: Config, options: dict[str, Any]) -> DecodingOptions:
    """The options of decoding by name, on top of the width that the run has."""
    if options.get("prefix") is not None and config.reads_texts:
        raise ArgumentError(
            "prefix", "be left out for a language model", "given", "it goes on with each text"
        )
    try:
        return DecodingOptions(**{"beam": config.beam, **options})
    except TypeError as error:
        known = list(DecodingOptions.__dataclass_fields__)
        wrong = [name for name in options if name not in known]
        if not wrong:
            raise ArgumentError("options", "be numbers", f"{options} ({error})", "check") from None
        close = difflib.get_close_matches(wrong[0], known, n=1, cutoff=0.0)[0]
        raise ArgumentError(
            "option", f"be one of {', '.join(known)}", repr(wrong[0]), f"perhaps {close!r} is meant"
        ) from None
