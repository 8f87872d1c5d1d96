"""The ASGI application: routes, error handlers and middleware."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from regard.seeing.page import html_page
from regard.seeing.page.writer import module_names, policy, text_of
from regard.serve import http_errors
from regard.serve.http_errors import ServeError
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access, GuardMiddleware, as_response
from regard.serve.request_handler import (
    AnswersRequest,
    CheckRequest,
    ErrorResponse,
    RequestHandler,
    RunRequest,
    StreamRequest,
    WhatIfRequest,
    json_response,
)
from regard.serve.served_models import Models
from regard.version import __version__

#: of a stream: `source` with the tokens that rows are of; `token` with token, prob and row, one for
#: each token; then `done` with the trace; or `error`
EVENTS: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/event-stream": {}}}}


def create_app(models: Models, limits: Limits, access: Access, log: Log) -> FastAPI:
    """Return the server as an ASGI application."""
    handler = RequestHandler(models, limits, log)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        handler.start()
        try:
            yield
        finally:
            handler.close()

    app = FastAPI(
        title="regard",
        description="Sequence models that show what they look at.",
        version=__version__,
        responses={"default": {"model": ErrorResponse}},
        lifespan=lifespan,
        docs_url=None,  # its scripts would come from another site
        redoc_url=None,
        # no text of a request may leave through the framework's own telemetry
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.add_middleware(
        GuardMiddleware,
        access=access,
        limits=limits,
        frame_size=models.frame_size,
        files=models.reads_files,
        failed=log.failed,
    )
    app.add_exception_handler(HTTPException, _http_error)
    app.state.handler = handler
    app.add_exception_handler(RequestValidationError, _invalid_body)
    _add_api(app, handler)  # first, since routes are tried in turn
    _add_pages(app, models, limits)
    return app


def _add_api(app: FastAPI, handler: RequestHandler) -> None:
    @app.post("/api/run")
    async def run(body: RunRequest, request: Request) -> Response:
        """Predict a target, and return where each output looked."""
        return await handler.answer(request, body)

    @app.post("/api/stream", responses=EVENTS, response_class=StreamingResponse)
    async def stream(body: StreamRequest, request: Request) -> Response:
        """Predict a target token by token, each with where it looked."""
        return await handler.stream(request, body)

    @app.post("/api/check")
    async def check(body: CheckRequest, request: Request) -> Response:
        """Predict a target, and compare attention with ablation and gradient."""
        return await handler.answer(request, body, "check")

    @app.post("/api/what-if")
    async def what_if(body: WhatIfRequest, request: Request) -> Response:
        """Decode again after a change: of tokens, the prefix, heads or cells of maps."""
        return await handler.answer(request, body, "what-if")

    @app.post("/api/answers")
    async def answers(body: AnswersRequest, request: Request) -> Response:
        """Return several answers: the best of a beam search, or samples."""
        return await handler.answer(request, body, "answers")

    @app.get("/healthz")
    @app.head("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """Report that the server runs and that its models answer."""
        handler.check_health()
        return {"status": "ok"}

    @app.get("/api/info")
    async def info() -> Response:
        """List the models, presets, tokenisers, limits and version, and the load."""
        return json_response(handler.info())


def _add_pages(app: FastAPI, models: Models, limits: Limits) -> None:
    @app.get("/", include_in_schema=False)
    @app.head("/", include_in_schema=False)
    async def live() -> Response:
        headers = {"Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'"}
        return HTMLResponse(html_page.render_live(models.page_info(limits)), headers=headers)

    @app.get("/page/{name}", include_in_schema=False)
    async def module(name: str) -> Response:
        if name not in module_names():
            raise ServeError(404, "not_found", "the page has no such module", "load the page again")
        return Response(text_of(name), media_type="text/javascript")

    @app.get("/favicon.ico", include_in_schema=False)
    async def favicon() -> Response:
        return Response(status_code=204)


async def _http_error(_: Request, error: Exception) -> Response:
    """Return the response to an error that the framework raises."""
    assert isinstance(error, HTTPException)
    return as_response(http_errors.from_status(error.status_code, error.headers))


async def _invalid_body(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return as_response(http_errors.from_validation(error.errors()))
