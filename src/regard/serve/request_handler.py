"""Where questions are taken: they are checked, queued, answered, and given up."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from regard import api
from regard.data import FrameScaler
from regard.decoding import Streamed
from regard.serve import http_errors
from regard.serve.event_stream import EventStreamResponse, dumps, streamed
from regard.serve.limits import AdmissionControl, Cost, Limits
from regard.serve.logs import Log
from regard.serve.request_schema import CheckRequest, RunRequest, SourceRequest, StreamRequest
from regard.serve.scheduler import Scheduler
from regard.serve.served_models import (
    BatchKey,
    Json,
    Models,
    WorkItem,
    cost,
    longest,
    source_length,
)

Found = TypeVar("Found")


class PreparedRequest(NamedTuple):
    """A request that may be worked on: what it asks for, of which model, and what it takes."""

    task: BatchKey
    question: WorkItem
    model: api.Model
    cost: Cost


class RequestHandler:
    """Takes questions.

    Args:
        models: what answers.
        limits: of each question and of all together.
        log: where to say what went wrong.
    """

    def __init__(self, models: Models, limits: Limits, log: Log) -> None:
        self.models, self.limits, self.log = models, limits, log
        self.gate = AdmissionControl(limits)
        self._open()

    def _open(self) -> None:
        self.scheduler: Scheduler[WorkItem, Json] = Scheduler(
            self.models.work,
            size=self.limits.batch,
            tokens=self.limits.batch_tokens,
            wait=self.limits.wait_ms / 1000,
            failed=lambda error: self.log.failed(error, "the scheduler"),
        )

    def start(self) -> None:
        """Begins to answer, also once more after it was closed; an event loop must run."""
        if self.scheduler.closed:
            self._open()
        self.scheduler.start()

    def refuse(self) -> None:
        """Answer all that wait, and all that come, with `closing`."""
        self.scheduler.close()

    def close(self) -> None:
        """Answers those who wait, stops the models before their next step, ends their threads."""
        self.scheduler.close()
        self.scheduler.join()

    def check_health(self) -> None:
        """Raise `unhealthy` where requests would not be answered."""
        if not self.scheduler.is_working(self.limits.seconds):
            raise http_errors.unhealthy()

    def info(self) -> Json:
        """What a client may want to know of the server, and how busy it is."""
        load = {"inside": self.gate.inside, **vars(self.scheduler.tally)}
        return {**self.models.info(self.limits), "load": load}

    async def answer(self, request: Request, ask: SourceRequest, verb: str = "run") -> Response:
        """A trace, worked out together with those of others who ask at the same time."""
        order = self._order(verb, ask)
        with ExitStack() as stack:
            self._admit(stack, request, order)
            job = self._submit(request, order)
            return as_json(await _while_awaited(request, job, self.limits.seconds))

    def stream(self, request: Request, ask: StreamRequest) -> Response:
        """An answer token by token, and its trace."""
        order = self._order("stream", ask)

        def job(write: Callable[[Streamed], None]) -> Awaitable[Json]:
            written = order._replace(question=replace(order.question, write=write))
            return self._submit(request, written)

        with ExitStack() as stack:
            self._admit(stack, request, order)
            events = streamed(
                order.model,
                order.model.source_labels(order.question.source),
                job,
                seconds=self.limits.seconds,
                failed=lambda error: self.log.failed(error, f"POST {request.url.path}"),
            )
            return EventStreamResponse(events, stack.pop_all().close)

    def _admit(self, stack: ExitStack, request: Request, order: PreparedRequest) -> None:
        """Let a request inside until the stack is closed."""
        stack.enter_context(self.gate.admit(client_of(request), order.cost.work))
        source = order.question.source
        text = source if isinstance(source, str) else f"{len(source)} frames"
        stack.enter_context(self.log.timed(request.url.path, order.task.model, text))

    def _submit(self, request: Request, order: PreparedRequest) -> Awaitable[Json]:
        return self.scheduler.submit(order.task, order.question, client_of(request), order.cost)

    def _order(self, verb: str, ask: SourceRequest) -> PreparedRequest:
        """What is asked for, once it is known that it may be."""
        name, model = self.models.find(ask.model)
        source = self._source(model, ask)
        length = source_length(model, source)
        task = BatchKey(verb, name, max_len=longest(length, self.limits))
        if verb != "run":
            task = replace(task, only=object())
        if isinstance(ask, RunRequest | StreamRequest) and ask.kinds is not None:
            task = replace(task, kinds=tuple(sorted(set(ask.kinds))))
        question, forced = WorkItem(source), None
        if isinstance(ask, CheckRequest):
            self.limits.check_beam(ask.beam)
            task = replace(task, beam=ask.beam)
            if ask.target is not None:
                self.limits.check_chars("target", ask.target)
                forced = len(model.tgt_tokenizer.encode(ask.target))
                self.limits.check_tokens("target", forced)
                model.check_target(ask.target)
                question = replace(question, target=ask.target)
        else:
            task = replace(task, beam=1)
        takes = cost(model, task, length, forced)
        self.limits.check_work(takes)
        return PreparedRequest(task, question, model, takes)

    def _source(self, model: api.Model, ask: SourceRequest) -> Any:
        """The source of a question, which is of the kind that the model reads.

        A text is never given to a model that reads vectors, which would open the file of that name.
        """
        kind = "frames" if isinstance(model.source, FrameScaler) else "text"
        given = [name for name in ("text", "frames") if getattr(ask, name) is not None]
        if given != [kind]:
            raise http_errors.ServeError(
                422,
                "invalid",
                f"a question to this model must have {kind}, but it has "
                f"{' and '.join(given) or 'neither text nor frames'}",
                "see /api/info for what each model reads",
            )
        source = getattr(ask, kind)
        if kind == "text":
            self.limits.check_chars("text", source)
        else:
            self.limits.check_tokens("the source", len(source), "frames")
        model.check_source(source)
        self.limits.check_tokens(kind, source_length(model, source))
        return source


def client_of(request: Request) -> str:
    """Return who asks: an address, or the network of one where a client has many of them."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(ip_network((address, 64), strict=False)) if address.version == 6 else host


async def _while_awaited(request: Request, job: Awaitable[Found], seconds: float) -> Found:
    """The result of a job, which is given up if the client leaves or the time is over."""
    working, leaving = asyncio.ensure_future(job), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise http_errors.gone() if leaving.done() else http_errors.too_slow(seconds)
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
