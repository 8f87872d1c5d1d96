"""The page of `regard watch`: curves, dev examples and maps of a run, while it trains and after.

The run is only read. Its evaluations are in report.jsonl, with learning rates and maps, and in
metrics.jsonl; both grow by a line at each evaluation. The page asks every few seconds whether they
have changed, and gets the body of the report anew if so.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, final

from fastapi import FastAPI
from starlette.responses import Response

from regard.errors import RegardError
from regard.seeing.page.report import (
    MOST_COLUMNS,
    evenly_spaced,
    render_report_body,
    render_watch,
    short_number,
)
from regard.seeing.trace.trace import Trace
from regard.serve import pages
from regard.serve.app import guarded_app
from regard.serve.http_errors import ServeError
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.request_handler import json_response
from regard.training.reporting import stored_traces
from regard.training.run_folder import RunError, RunFolder


class RunEvaluations(NamedTuple):
    """Evaluations of a run so far.

    Attributes:
        history: a row of numbers for each.
        examples: by step, traces of dev examples; of as many evaluations as a report shows.
        starts: steps at which the run was resumed.
        damaged: number of lines that cannot be read.
    """

    history: list[dict[str, Any]]
    examples: Sequence[tuple[int, Sequence[Trace]]]
    starts: list[int]
    damaged: int


@final
class RunWatcher:
    """Reads the evaluations of a run, again if its files have changed; writes nothing.

    Args:
        path: the run folder; raises RunError if it is none, or has finished without metrics.
    """

    def __init__(self, path: str | Path) -> None:
        self.folder = RunFolder(path)
        self.config = self.folder.read_config()
        self.folder.check_links()
        if self.folder.finished and not self.folder.metrics_file.exists():
            raise RunError(
                f"{path} must have metrics.jsonl to be watched, but it is a finished model without "
                f"it: watch a folder that `regard train` has written."
            )
        self._lock = Lock()
        self._read: tuple[str, dict[str, Any], str] | None = None

    @property
    def title(self) -> str:
        """The name of the run."""
        return self.folder.path.resolve().name

    def card(self) -> dict[str, object]:
        """Return names and values for the head of the page."""
        data = {"": "from Python", "-": "stdin"}.get(str(self.config.data or ""), self.config.data)
        return {
            "run": self.folder.path,
            "model": f"{self.config.preset}, {self.config.size}",
            "data": data,
        }

    def progress(self, since: str = "") -> dict[str, Any]:
        """Return the state of the run, and its report if it has changed since a version.

        Raises ServeError if the folder is gone or cannot be read.
        """
        with self._lock:
            try:
                version = self._version()
                if self._read is None or self._read[0] != version:
                    found = self._evaluations()
                    body = render_report_body(found.history, found.examples, found.starts)
                    self._read = (version, self._state(found), body)
            except (RegardError, OSError) as error:
                self._read = None
                reason = getattr(error, "strerror", None) or str(error).rstrip(".")
                raise ServeError(
                    503,
                    "unreadable",
                    f"the folder of the run must be readable, but it is not ({reason})",
                    "put it back, or watch another one",
                ) from None
            _, state, body = self._read
        file = self.folder.metrics.path  # written at each evaluation
        age = round(max(0.0, time.time() - file.stat().st_mtime), 1) if file.exists() else 0.0
        return {
            "version": version,
            "state": {**state, "age": age},
            "html": None if since == version else body,
        }

    def _version(self) -> str:
        """Return a text that changes with the files of the run; raises OSError without a folder."""
        own, known = self.folder, [os.stat(self.folder.config_file)]
        files = (own.metrics.path, own.report.path, own.card_file)
        known += [file.stat() for file in files if file.exists()]
        return " ".join(f"{one.st_size}:{one.st_mtime_ns}" for one in known)

    def _evaluations(self) -> RunEvaluations:
        lines = self.folder.report.lines()
        found = [row for _, _, row in lines if row is not None and _is_row(row["row"])]
        if not found:  # a run without a report, or before its first evaluation
            lines = self.folder.metrics.lines()
            rows = [row for _, _, row in lines if row is not None and _is_row(row)]
            return RunEvaluations(rows, [], [], len(lines) - len(rows))
        shown = [found[i] for i in evenly_spaced(len(found), MOST_COLUMNS)]
        starts = sorted({int(row.get("start", 0)) for row in found} - {0})
        rows = [row["row"] for row in found]
        examples = [stored_traces(row) for row in shown]
        return RunEvaluations(rows, examples, starts, len(lines) - len(found))

    def _state(self, found: RunEvaluations) -> dict[str, Any]:
        """Return what the status line of the page says."""
        last: Mapping[str, Any] = found.history[-1] if found.history else {}
        # the dev loss comes first, then the metric that decides unless another one is set
        scores = [f"dev_{self.config.metric}", *[n for n in last if n.startswith("dev_")][1::-1]]
        name = next((name for name in scores if name in last), "")
        value = last.get(name)
        note = f"{found.damaged} damaged lines are left out" if found.damaged else ""
        return {
            "step": last.get("step"),
            "epoch": last.get("epoch"),
            "metric": name.replace("_", " "),
            "score": short_number(value) if isinstance(value, int | float) else None,
            "finished": self.folder.finished,
            "note": note,
        }


def _is_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has the numbers of an evaluation: others' files may hold anything."""
    return {"step", "tokens", "seconds"} <= row.keys() and all(
        isinstance(value, int | float | None) for value in row.values()
    )


def create_watch_app(watcher: RunWatcher, limits: Limits, access: Access, log: Log) -> FastAPI:
    """Return the server of a run's page as an ASGI application."""
    app = guarded_app(access, limits, log, title="regard watch", openapi_url=None)

    @app.get("/")
    @app.head("/")
    def page() -> Response:
        return pages.response(render_watch(watcher.card(), watcher.title))

    @app.get("/api/progress")
    def progress(since: str = "") -> Response:  # in a thread, since it reads files
        return json_response(watcher.progress(since))

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app
