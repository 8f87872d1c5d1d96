"""Request handling: requests are checked, admitted, queued, answered and cancelled."""

import asyncio
from collections.abc import Awaitable
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from regard.seeing.attention_edits import AttentionCell
from regard.seeing.attribution import method_names
from regard.seeing.what_if import Intervention
from regard.serve import http_errors
from regard.serve.event_stream import EventStreamResponse, event_stream
from regard.serve.http_errors import ServeError, dumps
from regard.serve.limits import AdmissionControl, Cost, Limits
from regard.serve.logs import Log
from regard.serve.middleware import language_of
from regard.serve.request_schema import (
    AnswersRequest,
    CheckRequest,
    DecodingRequest,
    RunRequest,
    SourceRequest,
    StreamRequest,
    WhatIfRequest,
)
from regard.serve.scheduler import Scheduler
from regard.serve.served_model import BatchKey, Json, OnToken, ServedModel, WorkItem
from regard.serve.served_models import Models

T = TypeVar("T")


class PreparedRequest(NamedTuple):
    """A valid request: its batch, its source and target, its model and its cost."""

    key: BatchKey
    item: WorkItem
    model: ServedModel
    cost: Cost


class RequestHandler:
    """Answers requests.

    Args:
        models: the models of the server.
        limits: limits of each request and of all together.
        log: where unexpected errors are printed.
    """

    def __init__(self, models: Models, limits: Limits, log: Log) -> None:
        self.models, self.limits, self.log = models, limits, log
        self.admission = AdmissionControl(limits)
        self._open()

    def _open(self) -> None:
        self.scheduler: Scheduler[WorkItem, Json] = Scheduler(
            self.models.run_batch,
            size=self.limits.batch,
            tokens=self.limits.batch_tokens,
            wait=self.limits.wait_ms / 1000,
            failed=lambda error: self.log.failed(error, "the scheduler"),
            open_session=self.models.open_session,
        )

    def start(self) -> None:
        """Begin to answer, also after `close`; an event loop must run."""
        if self.scheduler.closed:
            self._open()
        self.scheduler.start()

    def refuse(self) -> None:
        """Answer all requests, waiting and new, with the error of a shutdown."""
        self.scheduler.close()

    def close(self) -> None:
        """Refuse all requests, stop the models before their next step, and end their threads."""
        self.scheduler.close()
        self.scheduler.join()

    def check_health(self) -> None:
        """Raise `unhealthy` if requests would not be answered."""
        if not self.scheduler.is_working(self.limits.seconds):
            raise http_errors.unhealthy()

    def info(self) -> Json:
        """Return the body of `/api/info`."""
        load = {"inside": self.admission.inside, **vars(self.scheduler.counts)}
        return {**self.models.info(self.limits), "load": load}

    async def answer(self, request: Request, body: SourceRequest, verb: str = "run") -> Response:
        """Respond with a trace, computed in a batch with concurrent requests."""
        await self._load(body.model)
        prepared = self._prepare(verb, body, language_of(request.headers))
        with ExitStack() as stack:
            self._admit(stack, request, prepared)
            job = self._submit(request, prepared)
            return json_response(await _while_connected(request, job, self.limits.seconds))

    async def stream(self, request: Request, body: StreamRequest) -> Response:
        """Respond with a prediction token by token, and its trace."""
        await self._load(body.model)
        prepared = self._prepare("stream", body, language_of(request.headers))

        def job(on_token: OnToken) -> Awaitable[Json]:
            item = replace(prepared.item, on_token=on_token)
            return self._submit(request, prepared._replace(item=item))

        with ExitStack() as stack:
            self._admit(stack, request, prepared)
            events = event_stream(
                prepared.model.source_labels(prepared.item.source),
                job,
                seconds=self.limits.seconds,
                failed=lambda error: self.log.failed(error, f"POST {request.url.path}"),
            )
            return EventStreamResponse(events, stack.pop_all().close)

    async def _load(self, name: str | None) -> None:
        """Load the model of a request in a thread, so that other requests do not wait for it."""
        _, model = self.models.find(name)
        if not model.is_loaded:
            await asyncio.to_thread(model.load)

    def _admit(self, stack: ExitStack, request: Request, prepared: PreparedRequest) -> None:
        """Count a request, and log it, until the stack is closed."""
        stack.enter_context(self.admission.admit(client_of(request), prepared.cost.work))
        source = prepared.item.source
        text = source if isinstance(source, str) else f"{prepared.cost.source} positions"
        stack.enter_context(self.log.timed(request.url.path, prepared.key.model, text))

    def _submit(self, request: Request, prepared: PreparedRequest) -> Awaitable[Json]:
        client = client_of(request)
        return self.scheduler.submit(prepared.key, prepared.item, client, prepared.cost)

    def _prepare(self, verb: str, body: SourceRequest, language: str | None) -> PreparedRequest:
        """Check a request against the limits and the model."""
        name, model = self.models.find(body.model)
        source = self._source(model, body)
        length = model.source_length(source)
        key = BatchKey(verb, name, max_len=self._max_len(model, length, body), language=language)
        if isinstance(body, RunRequest | StreamRequest) and body.kinds is not None:
            key = replace(key, kinds=tuple(sorted(set(body.kinds))))
        item, forced = WorkItem(source), None
        if isinstance(body, DecodingRequest):
            self.limits.check_beam(body.beam)
            key = replace(key, beam=body.beam)
            if isinstance(body, CheckRequest):
                if body.methods is not None:
                    method_names(body.methods)  # raises before the work
                key = replace(key, methods=body.methods, versus=body.versus)
            if body.target is not None:
                self.limits.check_chars("target", body.target)
                forced = model.target_length(body.target)
                self.limits.check_tokens("target", forced)
                model.check_target(source, body.target)
                item, key = replace(item, target=body.target), replace(key, forced=True)
        elif isinstance(body, WhatIfRequest):
            self.limits.check_beam(body.beam)
            key, item = replace(key, beam=body.beam), replace(item, change=self._change(body))
        elif isinstance(body, AnswersRequest):
            key = replace(key, **self._search(model, body))
        else:
            key = replace(key, beam=1)
        if verb != "run" and not model.can_join(key):
            key = replace(key, only=object())
        bound = model.cost(key, length, forced)
        self.limits.check_work(bound)
        return PreparedRequest(key, item, model, bound)

    def _max_len(self, model: ServedModel, length: int, body: SourceRequest) -> int | None:
        """Return the most tokens of an answer: those asked for, if the server allows so many."""
        allowed = model.max_len(length, self.limits)
        if body.max_len is None:
            return allowed
        model.check_max_len(body.max_len)
        return min(body.max_len, self.limits.tokens if allowed is None else allowed)

    def _change(self, body: WhatIfRequest) -> Intervention:
        """Return the changes of a request, with texts that are not too long."""
        for name, text in (
            ("prefix", body.prefix or ""),
            *(("text", r.text) for r in body.replace),
        ):
            self.limits.check_chars(name, text)
        return Intervention.of(
            {one.token: one.text for one in body.replace},
            body.prefix,
            [(one.kind, one.layer, one.head) for one in body.heads_off],
            [AttentionCell(**one.model_dump()) for one in body.cells],
        )

    def _search(self, model: ServedModel, body: AnswersRequest) -> dict[str, Any]:
        """Return the fields of a batch key for a search or for samples."""
        sampling = {"temperature": body.temperature, "top_k": body.top_k, "top_p": body.top_p}
        if body.samples:
            return {"num_samples": body.samples, **sampling}
        self.limits.check_beam(body.beam)
        beam = max(body.nbest, model.beam) if body.beam is None else body.beam
        return {"beam": min(beam, self.limits.beam), "nbest": body.nbest}

    def _source(self, model: ServedModel, body: SourceRequest) -> Any:
        """Return the source of a request, checked to be what the model reads.

        A text must never reach a model that reads vectors or pictures, which would open the file of
        that name.
        """
        field = model.field
        given = [name for name in ("text", "frames", "file") if getattr(body, name) is not None]
        if given != [field]:
            raise ServeError(
                422,
                "invalid",
                f"a request to this model must have {field}, but it has "
                f"{' and '.join(given) or 'no source'}",
                "see /api/info for what each model reads",
            )
        source = getattr(body, field)
        if field == "text":
            self.limits.check_chars("text", source)
        elif field == "file":
            self.limits.check_file(source)
            source = model.receive(source)
        else:
            self.limits.check_tokens("the source", len(source), "frames")
        model.check_source(source)
        self.limits.check_tokens(field, model.source_length(source))
        return source


def client_of(request: Request) -> str:
    """Return the client's address, or its /64 network for IPv6, of which a client has many."""
    host = request.client.host if request.client is not None else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    return str(ip_network((address, 64), strict=False)) if address.version == 6 else host


async def _while_connected(request: Request, job: Awaitable[T], seconds: float) -> T:
    """Return the result of a job; cancels it if the client leaves or the time is over."""
    working, leaving = asyncio.ensure_future(job), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise http_errors.gone() if leaving.done() else http_errors.too_slow(seconds)
    finally:
        working.cancel()
        leaving.cancel()


async def _disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(content: Json) -> Response:
    """Return a JSON response."""
    return Response(dumps(content), media_type="application/json")
