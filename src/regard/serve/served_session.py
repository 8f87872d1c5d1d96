"""Continuous batching of requests: answers as JSON, and tokens of streams as they are written."""

from collections.abc import Iterable, Sequence
from typing import Final, final

from regard.api.predictor import TraceSession
from regard.messages import use_language
from regard.seeing.trace.storage import to_json
from regard.serve.served_model import Json, OnToken, StreamedToken, WorkItem, token_label

#: share of a batch's places that must be free before requests join it, since encoding a few at a
#: time is slow
LEAST_FREE: Final = 1 / 2


@final
class ServedSession:
    """Requests that are decoded together, whenever they come; see `scheduler.Session`.

    Args:
        session: that decodes and traces.
        language: of sentences in the responses; that of the server if None.
    """

    def __init__(self, session: TraceSession, language: str | None) -> None:
        self._session, self._language = session, language
        self._listeners: dict[int, OnToken] = {}
        self._told: set[int] = set()

    @property
    def least_free(self) -> float:
        """Share of the places of a batch that must be free before requests join."""
        return LEAST_FREE

    def is_open(self) -> bool:
        """Return whether requests may still join."""
        return self._session.is_open()

    def add(self, items: Sequence[WorkItem]) -> list[int]:
        """Encode the sources of requests."""
        with use_language(self._language):
            numbers = self._session.add([item.source for item in items])
        for number, item in zip(numbers, items, strict=True):
            if item.on_token is not None:
                self._listeners[number] = item.on_token
        return numbers

    def remove(self, numbers: list[int]) -> None:
        """Remove requests that nobody waits for."""
        self._session.remove(numbers)
        self._forget(numbers)

    def step(self) -> dict[int, Json | Exception]:
        """Write a token of each answer, pass on those of streams, and return what is done."""
        with use_language(self._language):
            done, written = self._session.step()
            for number, token, log_prob, cross in written:
                if number in self._listeners:
                    self._told.add(number)
                    row = None if cross is None else cross.tolist()
                    label = token_label(self._session.target, token)
                    self._listeners[number](StreamedToken(label, log_prob, row))
            self._forget(done)
            return {
                number: found if isinstance(found, Exception) else to_json(found)
                for number, found in done.items()
            }

    def can_rerun(self, number: int) -> bool:
        """Return whether no token of a request has been passed on."""
        return number not in self._told

    def _forget(self, numbers: Iterable[int]) -> None:
        """Let go of requests that have left: others may join a session without an end."""
        for number in numbers:
            self._listeners.pop(number, None)
            self._told.discard(number)
