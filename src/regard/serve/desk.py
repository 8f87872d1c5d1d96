"""Where questions are taken: they are checked, queued, answered, and given up."""

import asyncio
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from regard.serve import errors
from regard.serve.asking import Ask, AskCheck, AskRun, AskStream
from regard.serve.batching import Batcher, Worker
from regard.serve.events import EventResponse, dumps, streamed
from regard.serve.limits import Gate, Limits
from regard.serve.logs import Log
from regard.serve.models import (
    Json,
    Models,
    Question,
    Task,
    longest,
    source_length,
    source_tokens,
    steps,
)

Found = TypeVar("Found")


class Desk:
    """Takes questions.

    Args:
        models: what answers.
        limits: of each question and of all together.
        log: where to say what went wrong.
    """

    def __init__(self, models: Models, limits: Limits, log: Log) -> None:
        self.models, self.limits, self.log = models, limits, log
        self.gate = Gate(limits.queue)
        self._open()

    def _open(self) -> None:
        self.worker = Worker()
        self.batcher: Batcher[Question, Json] = Batcher(
            self.models.work, self.worker, size=self.limits.batch, wait=self.limits.wait_ms / 1000
        )

    def start(self) -> None:
        """Begins to answer, also once more after it was closed; an event loop must run."""
        if self.batcher.closed:
            self._open()
        self.batcher.start()

    def close(self) -> None:
        """Answers those who wait, stops the model before its next step, and ends its thread."""
        self.batcher.close()
        self.worker.close()

    def info(self) -> Json:
        """What a client may want to know of the server, and how busy it is."""
        load = {"inside": self.gate.inside, **vars(self.batcher.tally)}
        return {**self.models.info(self.limits), "load": load}

    async def answer(self, request: Request, ask: Ask, verb: str = "run") -> Response:
        """A trace, worked out together with those of others who ask at the same time."""
        task, question = self._task(verb, ask)
        with self.gate, self.log.timed(request.url.path, task.model, question.text):
            job = self.batcher.submit(task, question)
            return as_json(await _while_awaited(request, job, self.limits.seconds))

    def stream(self, request: Request, ask: AskStream) -> Response:
        """An answer token by token, and its trace."""
        task, question = self._task("run", ask)
        task = replace(task, beam=1)
        _, model = self.models.find(task.model)
        with ExitStack() as stack:
            stack.enter_context(self.gate)
            stack.enter_context(self.log.timed(request.url.path, task.model, question.text))
            written = steps(model, question.text, task.max_len)
            # by the worker, since a generator cannot be closed while it takes a step
            stack.callback(self.worker.later, written.close)
            events = streamed(
                model,
                source_tokens(model, question.text),
                written,
                lambda: self.batcher.submit(task, question),
                self.worker,
                seconds=self.limits.seconds,
                failed=lambda error: self.log.failed(error, f"POST {request.url.path}"),
            )
            return EventResponse(events, stack.pop_all().close)

    def _task(self, verb: str, ask: Ask) -> tuple[Task, Question]:
        """What is asked for, once it is known that it may be."""
        name, model = self.models.find(ask.model)
        self.limits.check_chars("text", ask.text)
        model.check_source(ask.text)
        length = source_length(model, ask.text)
        self.limits.check_tokens("text", length)
        task = Task(verb, name, max_len=longest(length, self.limits))
        if isinstance(ask, AskRun | AskStream) and ask.kinds is not None:
            task = replace(task, kinds=tuple(sorted(set(ask.kinds))))
        if not isinstance(ask, AskCheck):
            return task, Question(ask.text)
        self.limits.check_beam(ask.beam)
        if ask.target is not None:
            self.limits.check_chars("target", ask.target)
            self.limits.check_tokens("target", len(model.tgt_tokenizer.encode(ask.target)))
        return replace(task, beam=ask.beam), Question(ask.text, ask.target)


async def _while_awaited(request: Request, job: Awaitable[Found], seconds: float) -> Found:
    """The result of a job, which is given up if the client leaves or the time is over."""
    working, leaving = asyncio.ensure_future(job), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise errors.gone() if leaving.done() else errors.too_slow(seconds)
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    """Waits until the client leaves."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def as_json(content: Json) -> Response:
    """An answer as it is sent."""
    return Response(dumps(content), media_type="application/json")
