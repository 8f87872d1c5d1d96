"""A run that predicts numbers or forecasts series, as a server uses it."""

from collections.abc import Sequence
from typing import Any, NoReturn, final

from torch import nn

from regard.errors import ArgumentError
from regard.seeing.attribution.what_if import Intervention, WhatIf
from regard.serve.limits import Cost, Limits
from regard.serve.served_model import Answer, BatchKey, Json, OnToken, RunSources, ServedModel
from regard.tasks.outputs.forecast import SEGMENTS
from regard.tasks.outputs.number import TRIED

#: options of a request that are for models that write tokens
TOKEN_OPTIONS = ("kinds", "methods", "versus", "max_len")


@final
class ServedNumbers(RunSources, ServedModel):
    """The model of a run folder that predicts numbers.

    A prediction has no tokens: a stream has its end alone, and nothing can be forced or sampled.
    """

    @property
    def module(self) -> nn.Module:
        """The module that is run."""
        return self.model.trained

    @property
    def beam(self) -> int:
        """1: there is no search."""
        return 1

    def describe(self) -> Json:
        """Return preset, size, what it reads, the names of its numbers, and examples."""
        target = self.task.encoders.target
        names = list(getattr(target, "names", ()))
        return self.describe_run(1, {"tokenizer": target.kind, "names": names})

    def target_length(self, target: str) -> int:
        """Raise ArgumentError: no number is forced."""
        self._refuse("target", target)

    def check_target(self, source: Any, target: str) -> None:
        """Raise ArgumentError: no number is forced."""
        self._refuse("target", target)

    def check_max_len(self, most: int) -> None:
        """Raise ArgumentError: a number has no tokens."""
        self._refuse("max_len", most)

    def max_len(self, length: int, limits: Limits) -> int | None:
        """Return None: nothing is limited."""
        return None

    def cost(self, key: BatchKey, length: int, forced: int | None) -> Cost:
        """Return an upper bound of the positions that a request takes."""
        passes = 1 + max(SEGMENTS, TRIED * length) if key.verb == "check" else 1
        return Cost(length, 1, 2 * length * passes)

    def traces(
        self, sources: Sequence[Any], targets: Sequence[str] | None, key: BatchKey
    ) -> Sequence[Answer]:
        """Return what can be drawn of the prediction for each source."""
        self._check_options(key, *TOKEN_OPTIONS, "beam")
        return self.model.traces(sources)

    def stream(
        self, sources: Sequence[Any], key: BatchKey, on_token: Sequence[OnToken]
    ) -> Sequence[Answer]:
        """Return what can be drawn of predictions, without any token before them."""
        self._check_options(key, *TOKEN_OPTIONS)
        return self.model.traces(sources)

    def check(self, source: Any, target: str | None, key: BatchKey) -> Answer:
        """Return a prediction with what mattered to it."""
        self._check_options(key, *TOKEN_OPTIONS, "beam")
        found: Answer = self.model.check(source)
        return found

    def changed_source(self, source: Any, change: Intervention) -> Any:
        """Raise ArgumentError: a what-if compares what is written."""
        self._refuse("/api/what-if", "asked")

    def what_if(self, source: Any, change: Intervention, key: BatchKey) -> WhatIf:
        """Raise ArgumentError: a what-if compares what is written."""
        self._refuse("/api/what-if", "asked")

    def answers(self, source: Any, key: BatchKey) -> list[Json]:
        """Raise ArgumentError: there is one answer."""
        self._refuse("/api/answers", "asked")

    def _check_options(self, key: BatchKey, *names: str) -> None:
        for name, value in key.options(*names).items():
            self._refuse(name, value)

    def _refuse(self, name: str, value: object) -> NoReturn:
        rule = "be left out for a model that predicts numbers"
        raise ArgumentError(name, rule, value, "ask /api/run or /api/check without it")
