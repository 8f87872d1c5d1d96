"""Request handling: requests are checked, admitted, queued, answered and cancelled."""

import asyncio
import base64
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, final

from fastapi.sse import EventSourceResponse, format_sse_event
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from regard.api.predictor import changed_source
from regard.data.media_files import without_files
from regard.decoding_options import DecodingOptions
from regard.messages import use_language
from regard.seeing.attribution.interventions import AttentionCell, Intervention
from regard.seeing.attribution.methods import method_names
from regard.seeing.trace.trace import MapKind
from regard.serve import http_errors
from regard.serve.http_errors import ServeError, dumps
from regard.serve.limits import Limits, busy
from regard.serve.logs import Log
from regard.serve.middleware import language_of
from regard.serve.scheduler import Scheduler
from regard.serve.served_models import (
    BatchKey,
    Json,
    Models,
    OnToken,
    ServedRun,
    StreamedToken,
    WorkItem,
)

BEAM_HELP: Final = DecodingOptions.__dataclass_fields__["beam"].metadata["help"]


def _check_unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("it must be Unicode, but it has half of a surrogate pair") from None
    return text


def _decoded(value: object) -> object:
    """Return the bytes of a text in base64; anything else is refused later."""
    if not isinstance(value, str):
        raise ValueError("it must be a text in base64")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise ValueError("it must be base64, but it is not") from None


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]
#: a number that errors and notes may repeat: JSON has some of thousands of digits
Index = Annotated[int, Field(ge=0, lt=1 << 31)]


class _Strict(BaseModel):
    """A body with these fields and no others, of these types and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SourceRequest(_Strict):
    """A source: a text, frames for a model that reads vectors, or a file."""

    text: UnicodeText | None = Field(
        None, description="The source; features follow it after a tab."
    )
    frames: list[list[FiniteFloat]] | None = Field(
        None,
        description="The source of a model that reads vectors: a list of numbers for each frame.",
    )
    file: Annotated[bytes, BeforeValidator(_decoded)] | None = Field(
        None,
        description="The source of a model that reads pictures or recordings: the content of its "
        "file in base64.",
        json_schema_extra={"contentEncoding": "base64", "type": "string", "format": "byte"},
    )
    model: str | None = Field(None, description="A model of /api/info; the first if left out.")
    max_len: Annotated[int, Field(ge=1, lt=1 << 31)] | None = Field(
        None, description="Most tokens of an answer; by the source or the model if left out."
    )


class StreamRequest(SourceRequest):
    """A source to predict for token by token, by greedy search."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


class DecodingRequest(SourceRequest):
    """A source with decoding options."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    target: UnicodeText | None = Field(None, description="Text that the model is forced to write.")


class CheckRequest(DecodingRequest):
    """A source with decoding options and attribution methods."""

    methods: UnicodeText | None = Field(
        None,
        description="Attribution methods to compare, separated by commas, or `all`; if left out, "
        "the checks of attention alone, or `all` for a language model or one of transformers.",
    )
    versus: UnicodeText | None = Field(
        None, description="Token or class that each output is compared with."
    )


class ReplacedToken(_Strict):
    """A source token to replace."""

    token: Index = Field(description="Number of the token, from 0.")
    text: UnicodeText = Field(description="Text that stands in its place.")


def _check_different(replace: list[ReplacedToken]) -> list[ReplacedToken]:
    if len({one.token for one in replace}) < len(replace):
        raise ValueError("each token must be replaced once, but one is named twice")
    return replace


class SwitchedHead(_Strict):
    """A head to switch off."""

    kind: MapKind
    layer: Index = Field(description="From 0.")
    head: Index = Field(description="From 0.")


class CellWeight(_Strict):
    """A cell of an attention map, and the weight that it is given."""

    kind: MapKind
    layer: Index = Field(description="From 0.")
    head: Index | None = Field(None, description="From 0; all heads if left out.")
    row: Index = Field(description="From 0.")
    column: Index = Field(description="From 0.")
    weight: float = Field(description="The rest of the row shares what is left.", ge=0, le=1)


class WhatIfRequest(SourceRequest):
    """A source, and changes after which it is decoded again."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    prefix: UnicodeText | None = Field(None, description="Text that the answer begins with.")
    replace: Annotated[list[ReplacedToken], AfterValidator(_check_different)] = Field(
        [], description="Source tokens to replace, each once.", max_length=64
    )
    heads_off: list[SwitchedHead] = Field([], description="Heads to switch off.", max_length=64)
    cells: list[CellWeight] = Field(
        [], description="Cells of attention maps to set by hand.", max_length=64
    )


class AnswersRequest(SourceRequest):
    """A source, and options of search or sampling."""

    beam: Index | None = Field(None, description=f"{BEAM_HELP} That of the run if left out.")
    nbest: int = Field(
        1, description="Answers of a search, at most the beam width.", ge=1, le=Limits.beam
    )
    samples: int = Field(
        0, description="Answers to sample instead of searching.", ge=0, le=Limits.beam
    )
    temperature: FiniteFloat = Field(1.0, description="Of the samples.", gt=0)
    top_k: Index = Field(0, description="Sample among the k likeliest tokens; 0 for all.")
    top_p: FiniteFloat = Field(
        1.0, description="Sample among tokens of this total probability.", gt=0, le=1
    )


class RunRequest(DecodingRequest):
    """A source with decoding options and the kinds of maps to return."""

    kinds: list[MapKind] | None = Field(None, description="Maps wanted; all if left out.")


class ErrorResponse(BaseModel):
    """An error: `code` for programs, `message` for people, and the next step as `hint`."""

    model_config = ConfigDict(extra="forbid")

    error: dict[Literal["code", "message", "hint"], str]


T = TypeVar("T")


class PreparedRequest(NamedTuple):
    """A valid request: its batch, its source and target, its cost, and labels for a stream."""

    key: BatchKey
    item: WorkItem
    cost: int
    labels: list[str]


class RequestHandler:
    """Answers requests.

    Only sizes are looked at in the event loop. What a client has sent is read (a text tokenised, a
    file decoded) in a thread of the loop's pool; models run in that of the scheduler.
    """

    def __init__(self, models: Models, limits: Limits, log: Log) -> None:
        self.models, self.limits, self.log = models, limits, log
        self.inside = 0
        self._open()

    def _open(self) -> None:
        self.scheduler: Scheduler[WorkItem, Json] = Scheduler(
            self.models.run_batch,
            size=self.limits.batch,
            tokens=self.limits.batch_tokens,
            wait=self.limits.wait_ms / 1000,
            failed=lambda error: self.log.failed(error, "the scheduler"),
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
        """Refuse all requests, stop the models before their next step, and end their thread."""
        self.refuse()
        self.scheduler.join()

    def check_health(self) -> None:
        """Raise ServeError if the thread of the models has stopped or hangs."""
        if not self.scheduler.is_working(self.limits.seconds):
            raise ServeError(
                503,
                "unhealthy",
                "the server must be able to run its models, but their thread does not go on",
                "look at what the server has printed, and start it again",
            )

    def info(self) -> Json:
        """Return the body of `/api/info`."""
        load = {"inside": self.inside, **self.scheduler.counts}
        return {**self.models.info(self.limits), "load": load}

    async def answer(self, request: Request, body: SourceRequest, verb: str = "run") -> Response:
        """Respond with a trace, computed in a batch with concurrent requests."""
        with ExitStack() as stack:

            async def job() -> Json:
                return await self._submit(await self._prepare(stack, request, verb, body))

            return json_response(await _while_connected(request, job(), self.limits.seconds))

    async def stream(self, request: Request, body: StreamRequest) -> Response:
        """Respond with a prediction token by token, and its trace."""
        with ExitStack() as stack:
            preparing = self._prepare(stack, request, "stream", body)
            prepared = await _while_connected(request, preparing, self.limits.seconds)

            def job(on_token: OnToken) -> Awaitable[Json]:
                item = replace(prepared.item, on_token=on_token)
                return self._submit(prepared._replace(item=item))

            events = event_stream(
                prepared.labels,
                job,
                seconds=self.limits.seconds,
                failed=lambda error: self.log.failed(error, f"POST {request.url.path}"),
            )
            return EventStreamResponse(events, stack.pop_all().close)

    def _submit(self, prepared: PreparedRequest) -> Awaitable[Json]:
        return self.scheduler.submit(prepared.key, prepared.item, prepared.cost)

    @contextmanager
    def _admit(self) -> Iterator[None]:
        """Count a request inside the block; raises if there are too many."""
        if self.inside >= self.limits.queue:
            raise busy(f"at most {self.limits.queue} requests may wait at a time, and as many do")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def _prepare(
        self, stack: ExitStack, request: Request, verb: str, body: SourceRequest
    ) -> PreparedRequest:
        """Admit a request, and check it against the limits and the model.

        It is counted until the stack is closed.
        """
        _, model = self.models.find(body.model)
        self._check_size(model, body)
        stack.enter_context(self._admit())
        language = language_of(request.headers)
        return await asyncio.to_thread(self._check, verb, body, language)

    def _check(self, verb: str, body: SourceRequest, language: str | None) -> PreparedRequest:
        """Read what a client has sent and check it against the limits, outside the event loop."""
        with use_language(language), without_files():
            return self._checked(verb, body, language)

    def _checked(self, verb: str, body: SourceRequest, language: str | None) -> PreparedRequest:
        name, model = self.models.find(body.model)
        model.check_options(verb, dict(body))
        source = getattr(body, model.field)
        if model.field == "file":
            source = model.task.input.parse(source)
        source = self._source(model, source)
        item, forced = WorkItem(source), None
        length = model.source_length(source)
        if isinstance(body, WhatIfRequest):
            item = replace(item, change=self._change(body))
            length = max(length, self._changed_length(model, item))
        # the most tokens of an answer: those asked for, if the server allows so many
        allowed = model.max_len(length, self.limits)
        if body.max_len is not None:
            allowed = min(body.max_len, self.limits.tokens if allowed is None else allowed)
        key = BatchKey(verb, name, max_len=allowed, language=language)
        if isinstance(body, RunRequest | StreamRequest) and body.kinds is not None:
            key = replace(key, kinds=tuple(sorted(set(body.kinds))))
        if isinstance(body, DecodingRequest | WhatIfRequest):
            self.limits.check_beam(body.beam)
            key = replace(key, beam=body.beam)
        if isinstance(body, CheckRequest):
            if body.methods is not None:
                method_names(body.methods)  # raises before the work
            key = replace(key, methods=body.methods, versus=body.versus)
        if isinstance(body, DecodingRequest) and body.target is not None:
            self.limits.check_chars("target", body.target)
            forced = model.target_length(body.target)
            self.limits.check_tokens("target", forced)
            model.model.check_target(body.target)
            item, key = replace(item, target=body.target), replace(key, forced=True)
        if isinstance(body, AnswersRequest):
            key = replace(key, **self._search(model, body))
        if verb == "stream":
            key = replace(key, beam=1)
        if verb not in ("run", "stream"):
            key = replace(key, only=object())
        bound = model.cost(key, length, forced)
        labels = model.model.source_labels(source) if verb == "stream" else []
        return PreparedRequest(key, item, bound, labels)

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

    def _search(self, model: ServedRun, body: AnswersRequest) -> dict[str, Any]:
        """Return the fields of a batch key for a search or for samples."""
        if body.samples:
            chances = {"temperature": body.temperature, "top_k": body.top_k, "top_p": body.top_p}
            return {"search": (("num_samples", body.samples), *chances.items())}
        self.limits.check_beam(body.beam)
        beam = max(body.nbest, model.beam) if body.beam is None else body.beam
        return {"beam": min(beam, self.limits.beam), "search": (("nbest", body.nbest),)}

    def _check_size(self, model: ServedRun, body: SourceRequest) -> None:
        """Check that a request has what the model reads, and no more.

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
        else:
            self.limits.check_tokens("the source", len(source), "frames")

    def _source(self, model: ServedRun, source: Any) -> Any:
        """Return a source that the model can read within the limits, or raise."""
        if isinstance(source, str):
            self.limits.check_chars("text", source)
        model.model.check_source(source)
        self.limits.check_tokens(model.field, model.source_length(source))
        return source

    def _changed_length(self, model: ServedRun, item: WorkItem) -> int:
        """Return the positions that a model reads and is given of a changed source."""
        assert item.change is not None
        _, changed = changed_source(model.model.predictor, item.source, item.change)
        changed = self._source(model, changed)
        prefix = model.target_length(item.change.prefix) if item.change.prefix else 0
        self.limits.check_tokens("prefix", prefix)
        return model.source_length(changed) + prefix


def event(name: str, content: Any) -> bytes:
    """Return one server-sent event with JSON data."""
    return format_sse_event(event=name, data_str=dumps(content).decode("ascii"))


async def event_stream(
    source: Sequence[str],
    job: Callable[[OnToken], Awaitable[dict[str, Any]]],
    *,
    seconds: float,
    failed: Callable[[Exception], None],
) -> AsyncIterator[bytes]:
    """Yield the events of one prediction; if the client leaves, work stops before its next step."""
    deadline = time.monotonic() + seconds
    yield event("source", {"tokens": list(source)})
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[StreamedToken | None]()

    def on_token(step: StreamedToken | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody reads
            loop.call_soon_threadsafe(steps.put_nowait, step)

    working = asyncio.ensure_future(job(on_token))
    working.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while True:
            step = await asyncio.wait_for(steps.get(), deadline - time.monotonic())
            if step is None:
                break
            row = None if step.row is None else [round(weight, 4) for weight in step.row]
            prob = math.exp(min(step.log_prob, 0.0))
            yield event("token", {"token": step.token, "prob": prob, "row": row})
        yield event("done", {"trace": working.result()})
    except TimeoutError:
        yield event("error", http_errors.too_slow(seconds).body)
    except Exception as error:
        response = http_errors.from_exception(error)
        if response.status == http_errors.INTERNAL:
            failed(error)
        yield event("error", response.body)
    finally:
        working.cancel()


@final
class EventStreamResponse(EventSourceResponse):
    """Server-sent events that call `done` once however they end, also if the client leaves."""

    def __init__(self, content: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        super().__init__(content)
        self.done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.done()


async def _while_connected(request: Request, job: Awaitable[T], seconds: float) -> T:
    """Return the result of a job; cancels it if the client leaves or the time is over."""
    working, leaving = asyncio.ensure_future(job), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise ServeError(499, "gone", "the client has left", "stay")  # which nobody reads
        raise http_errors.too_slow(seconds)
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
