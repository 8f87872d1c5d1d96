"""Answers as bytes: JSON, and server-sent events."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from regard import api
from regard.decoding import Streamed
from regard.serve import http_errors
from regard.symbols import EOS, SYMBOLS

Found = TypeVar("Found")


def dumps(content: Any) -> bytes:
    """JSON in ASCII, so that any text comes through; numbers that JSON does not have are null."""
    try:
        return json.dumps(content, allow_nan=False).encode("ascii")
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False).encode("ascii")


def event(name: str, content: Any) -> bytes:
    """One server-sent event; JSON has no line breaks that could end it early."""
    return b"event: " + name.encode("ascii") + b"\ndata: " + dumps(content) + b"\n\n"


def token_event(model: api.Model, step: Streamed) -> bytes:
    """A token, how likely it was, and where the model looked; no row if it cannot look."""
    tokens = model.tgt_tokenizer.tokens([step.token])
    return event(
        "token",
        {
            "token": SYMBOLS[EOS] if step.token == EOS else tokens[0],
            "prob": math.exp(min(step.log_prob, 0.0)),
            "row": None if step.cross is None else [round(w, 4) for w in step.cross.tolist()],
        },
    )


def source_event(tokens: Sequence[str]) -> bytes:
    """What the rows of all tokens are of: the inputs, in their order."""
    return event("source", {"tokens": list(tokens)})


async def streamed(
    model: api.Model,
    source: Sequence[str],
    job: Callable[[Callable[[Streamed], None]], Awaitable[dict[str, Any]]],
    *,
    seconds: float,
    failed: Callable[[Exception], None],
) -> AsyncIterator[bytes]:
    """The events of one answer. If the client leaves, the work stops before its next step.

    Args:
        model: what writes.
        source: the tokens that it reads.
        job: works on the answer, hands each step to its argument, from any thread, and returns
            the whole trace.
        seconds: the longest that it may take.
        failed: is told of what nobody has foreseen.
    """
    deadline = time.monotonic() + seconds
    yield source_event(source)
    loop, steps = asyncio.get_running_loop(), asyncio.Queue[Streamed | None]()

    def write(step: Streamed | None) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody reads
            loop.call_soon_threadsafe(steps.put_nowait, step)

    working = asyncio.ensure_future(job(write))
    working.add_done_callback(lambda _: steps.put_nowait(None))
    try:
        while (step := await _until(deadline, steps.get())) is not None:
            yield token_event(model, step)
        yield event("done", {"trace": working.result()})
    except TimeoutError:
        yield event("error", http_errors.too_slow(seconds).body)
    except Exception as error:
        told = http_errors.of_any(error)
        if told.status == http_errors.INTERNAL:
            failed(error)
        yield event("error", told.body)
    finally:
        working.cancel()


async def _until(deadline: float, found: Awaitable[Found]) -> Found:
    return await asyncio.wait_for(found, deadline - time.monotonic())


@final
class EventStreamResponse(StreamingResponse):
    """Server-sent events. However it ends, also if the client leaves, `done` is called once."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], done: Callable[[], None]) -> None:
        super().__init__(content)
        self.done = done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.done()


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
