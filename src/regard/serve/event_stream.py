"""Server-sent events: a prediction token by token."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, final

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Receive, Scope, Send

from regard.serve import http_errors
from regard.serve.http_errors import dumps
from regard.serve.served_model import OnToken, StreamedToken


def event(name: str, content: Any) -> bytes:
    """Return one server-sent event with JSON data."""
    return format_sse_event(event=name, data_str=dumps(content).decode("ascii"))


def token_event(step: StreamedToken) -> bytes:
    """Return the event of a token: its probability and its row of attention, if there is one."""
    return event(
        "token",
        {
            "token": step.token,
            "prob": math.exp(min(step.log_prob, 0.0)),
            "row": None if step.row is None else [round(weight, 4) for weight in step.row],
        },
    )


async def event_stream(
    source: Sequence[str],
    job: Callable[[OnToken], Awaitable[dict[str, Any]]],
    *,
    seconds: float,
    failed: Callable[[Exception], None],
) -> AsyncIterator[bytes]:
    """Yield the events of one prediction; if the client leaves, work stops before its next step.

    Args:
        source: labels of the columns of all rows of attention.
        job: computes the prediction, passes each step to its argument, from any thread, and
            returns the whole trace.
        seconds: time limit.
        failed: called with unexpected errors.
    """
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
            yield token_event(step)
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
