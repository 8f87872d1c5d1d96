"""The addresses of the server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from regard.seeing import html_page
from regard.serve import http_errors, pages
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access, RequestGuard, as_response
from regard.serve.request_handler import RequestHandler, as_json
from regard.serve.request_schema import CheckRequest, RunRequest, StreamRequest
from regard.serve.response_schema import EVENTS, HEALTH, INFO, TRACE
from regard.serve.served_models import Models
from regard.version import __version__


def create_app(models: Models, limits: Limits, access: Access, log: Log) -> FastAPI:
    """The server as an ASGI application.

    Args:
        models: what answers; the first does if none is named.
        limits: how much may be asked for.
        access: who may ask.
        log: where to say what went wrong.
    """
    desk = RequestHandler(models, limits, log)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        desk.start()
        try:
            yield
        finally:
            desk.close()

    app = FastAPI(
        title="regard",
        version=__version__,
        description="Sequence models that show what they look at.",
        lifespan=lifespan,
        docs_url=None,  # its scripts would come from another site
        redoc_url=None,
        # nothing of what is asked may leave by way of the framework's own records
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.add_middleware(
        RequestGuard, access=access, limits=limits, features=models.features, failed=log.failed
    )
    app.state.desk = desk
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    _add_pages(app, models, limits)
    _add_api(app, desk)
    return app


def _add_api(app: FastAPI, desk: RequestHandler) -> None:
    @app.get("/healthz", responses=HEALTH)
    @app.head("/healthz", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """Say that the server is there, and that its models can be asked."""
        desk.check_health()
        return {"status": "ok"}

    @app.get("/api/info", responses=INFO)
    async def info() -> Response:
        """Name the models, presets, tokenisers, limits and version; count what was asked."""
        return as_json(desk.info())

    @app.post("/api/run", responses=TRACE)
    async def run(ask: RunRequest, request: Request) -> Response:
        """Answer a text, and say where each output looked."""
        return await desk.answer(request, ask)

    @app.post("/api/stream", responses=EVENTS, response_class=StreamingResponse)
    async def stream(ask: StreamRequest, request: Request) -> Response:
        """Answer a text token by token, each with where it looked."""
        return desk.stream(request, ask)

    @app.post("/api/check", responses=TRACE)
    async def check(ask: CheckRequest, request: Request) -> Response:
        """Answer a text, and measure what mattered: ablation, gradient, and how they agree."""
        return await desk.answer(request, ask, "check")


def _add_pages(app: FastAPI, models: Models, limits: Limits) -> None:
    @app.get("/", include_in_schema=False)
    @app.head("/", include_in_schema=False)
    async def live() -> Response:
        return pages.response(html_page.render_live(models.info(limits)))

    @app.get("/page/{name}", include_in_schema=False)
    async def module(name: str) -> Response:
        return Response(pages.module(name), media_type="text/javascript")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return pages.response(pages.docs(app.openapi()))

    @app.get("/favicon.ico", include_in_schema=False)
    async def favicon() -> Response:
        return Response(status_code=204)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return as_response(http_errors.of_status(error.status_code, error.headers))


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return as_response(http_errors.of_validation(error.errors()))
