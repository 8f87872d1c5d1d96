"""Lines to answer, and what `regard predict` does with those that it cannot take."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from regard import api
from regard.cli.pairs import OPTIONS, source_name
from regard.data import BadLines, FrameScaler, read_frame_sources, read_lines
from regard.data.error_hints import BadLine
from regard.data.text_files import display_name
from regard.errors import ArgumentError, DataError

#: how errors write its options
ADVICE: Final = OPTIONS._replace(longer="raise --max-chars")


class InputLines:
    """The lines of a file, or the tables of vectors of some, that a model can take.

    Attributes:
        bad: the other ones; they are left out, or the first of them raises.
    """

    def __init__(
        self, files: Sequence[str], model: api.Model, *, max_chars: int | None, skip_bad: bool
    ) -> None:
        if max_chars is not None and max_chars < 1:
            raise ArgumentError("--max-chars", "be at least 1", max_chars, "choose a larger number")
        self._files, self._model = files, model
        self._max_chars = model.config.max_chars if max_chars is None else max_chars
        # a place for each line that was read and not yet answered
        self._places: deque[DataError | None] = deque()
        self.bad = BadLines(skip_bad, self._places.append, ADVICE)

    def __iter__(self) -> Iterator[Any]:
        side, (first, *others) = self._model.source, self._files
        if isinstance(side, FrameScaler):
            for file in self._files:
                yield from self._tables(file, side.features)
            return
        if others:
            raise ArgumentError("FILE", "be one for a run that reads text", first, "join the files")
        yield from self._lines(first)

    def _tables(self, file: str, features: int) -> Iterator[Any]:
        name = source_name(self._model)
        for table in read_frame_sources(file, features=features, bad=self.bad, name=name):
            self._places.append(None)
            yield table

    def _lines(self, file: str) -> Iterator[str]:
        good = 0
        for line in read_lines(file, max_chars=self._max_chars, bad=self.bad):
            try:
                self._model.check_source(line)
            except DataError as error:
                wrong = BadLine(error.kind, error.reason, error.fix)
                self.bad.add(display_name(file), good + self.bad.total + 1, wrong)
                continue
            good += 1
            self._places.append(None)
            yield line

    def in_place(self, outputs: Iterable[api.Output]) -> Iterator[api.Output | DataError]:
        """The answers, and between them what was wrong with a line that has none."""
        for output in outputs:
            yield from self._left_out()
            self._places.popleft()
            yield output
        yield from self._left_out()

    def _left_out(self) -> Iterator[DataError]:
        while self._places and (error := self._places[0]) is not None:
            self._places.popleft()
            yield error
