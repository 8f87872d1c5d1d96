"""Prediction requests: decoding options and maps, checked, and split like their sources."""

import difflib
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from regard.decoding import DecodingOptions
from regard.errors import ArgumentError, DataError
from regard.seeing.trace import KINDS
from regard.tasks import Task

#: batches that are read before the first is answered
READ_AHEAD: Final = 16


@dataclass(frozen=True)
class PredictRequest:
    """Options for the sources of one call.

    Attributes:
        options: of decoding.
        attention: whether outputs carry maps.
        kinds: which maps.
        replace_unk: whether unknown words become source words.
    """

    options: DecodingOptions
    attention: bool
    kinds: Collection[str]
    replace_unk: bool

    def select(self, indices: Sequence[int]) -> "PredictRequest":
        """Return the request for some of the sources; a single prefix is that of each."""
        prefix = self.options.prefix
        if prefix is None or len(prefix) == 1:
            return self
        if indices and max(indices) >= len(prefix):
            raise _wrong_count(len(prefix), f"{max(indices) + 1} sources or more")
        return replace(self, options=replace(self.options, prefix=[prefix[i] for i in indices]))

    def check_total(self, sources: int) -> None:
        """Raises if there are more prefixes than sources."""
        given = len(self.options.prefix or ())
        if given > max(sources, 1):
            raise _wrong_count(given, f"{sources} source{'s' * (sources != 1)}")

    def seeded(self, seed: int | None) -> "PredictRequest":
        """Return the request with another random seed."""
        if seed == self.options.seed:
            return self
        return replace(self, options=replace(self.options, seed=seed))

    def seeds(self) -> Iterator[int | None]:
        """Yield a seed for each batch: batches with the same one would draw the same samples."""
        seed = self.options.seed
        draw = random.Random(seed)
        yield seed
        while True:
            yield None if seed is None else draw.getrandbits(63)

    @property
    def shown_kinds(self) -> Collection[str]:
        """The maps that outputs carry."""
        return self.kinds if self.attention else ()

    @property
    def needed_kinds(self) -> Collection[str]:
        """The maps that decoding must keep."""
        return {*self.shown_kinds, "cross"} if self.replace_unk else self.shown_kinds


def in_chunks(
    sources: Iterable[Any], check: Callable[[Any], None], batch: int, request: PredictRequest
) -> Iterator[tuple[list[Any], PredictRequest]]:
    """Split sources into chunks that are sorted by length together, each with its request.

    The error of an unusable source is raised after the chunk of all sources before it.
    """
    most = READ_AHEAD * batch if batch > 1 else 1
    chunk: list[Any] = []
    before = 0
    try:
        for source in sources:
            check(source)
            chunk.append(source)
            if len(chunk) == most:
                yield chunk, request.select(range(before, before + most))
                before, chunk = before + most, []
    except DataError:
        yield chunk, request.select(range(before, before + len(chunk)))
        raise
    request.check_total(before + len(chunk))
    yield chunk, request.select(range(before, before + len(chunk)))


def check_kinds(kinds: Collection[str] | None) -> Collection[str]:
    """Return the kinds of maps; all if None. Raises for a kind that does not exist."""
    if kinds is None:
        return KINDS
    wrong = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind not in KINDS]
    if wrong:
        raise ArgumentError(
            "kinds", f"be a list of some of {', '.join(KINDS)}", repr(wrong[0]), "choose among them"
        )
    return kinds


def decoding_options(task: Task, beam: int, options: dict[str, Any]) -> DecodingOptions:
    """Return decoding options by name; the beam width of the run is the default.

    Those of the output come first: a label is one token.
    """
    if options.get("prefix") is not None and not task.has_sources:
        raise ArgumentError(
            "prefix", "be left out for a language model", "given", "it goes on with each text"
        )
    one = {} if task.numbers is not None else task.tokens.decoding()
    try:
        return DecodingOptions(**{"beam": beam, **options, **one})
    except TypeError as error:
        known = list(DecodingOptions.__dataclass_fields__)
        wrong = [name for name in options if name not in known]
        if not wrong:
            raise ArgumentError("options", "be numbers", f"{options} ({error})", "check") from None
        close = difflib.get_close_matches(wrong[0], known, n=1, cutoff=0.0)[0]
        raise ArgumentError(
            "option", f"be one of {', '.join(known)}", repr(wrong[0]), f"perhaps {close!r} is meant"
        ) from None


def _wrong_count(given: int, sources: str) -> ArgumentError:
    return ArgumentError(
        "prefix",
        "be one, or one for each source",
        f"{given} for {sources}",
        "give as many as there are sources, empty lists among them",
    )
