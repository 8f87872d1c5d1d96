"""`-n N`: tests run in N forks of the process that has found them, which takes many seconds.

A fork gets the tests of one file after another, so that fixtures of a file are made once; those
first that take longest by the record. One that ends in the middle of a test is replaced.
"""

import atexit
import contextlib
import json
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

from thinning import RECORD


def add_option(parser: pytest.Parser) -> None:
    """Declare `-n`; other plugins cannot have options of one small letter."""
    help_ = "run tests in as many forks"
    parser.getgroup("forks")._addoption("-n", dest="forks", type=int, default=0, help=help_)


def parts_of(items: list[pytest.Item], *, shuffled: bool) -> deque[list[int]]:
    """Return the places of the tests of each file; what takes long first, if the order is free."""
    by_file = groupby(range(len(items)), key=lambda index: items[index].nodeid.partition("::")[0])
    parts = [(name, list(places)) for name, places in by_file]
    if RECORD.exists() and not shuffled:
        seconds = json.loads(RECORD.read_text(encoding="utf-8"))["files"]
        parts.sort(key=lambda part: -seconds.get(part[0], 0))
    return deque(places for _, places in parts)


class Fork:
    """A process that runs tests, as seen by the one that hands them out."""

    def __init__(self, session: pytest.Session) -> None:
        self.connection, other = multiprocessing.Pipe()
        self.given: list[int] = []
        self.pid = os.fork()
        if not self.pid:
            self.connection.close()
            work(session, other)
        other.close()

    def give(self, part: list[int]) -> None:
        """Hand out more tests; none at all lets it end."""
        self.given += part
        self.connection.send(part)

    def end(self) -> int:
        """Wait for its end, and return its exit code."""
        self.connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run_all(session: pytest.Session) -> bool | None:
    """Run the tests of a session in forks if `-n` asks for several."""
    config, count = session.config, session.config.option.forks
    if count < 2 or config.option.collectonly or session.testsfailed:
        return None
    parts = parts_of(session.items, shuffled=config.pluginmanager.hasplugin("pytest_randomly"))
    forks = {fork.connection: fork for fork in (Fork(session) for _ in range(count))}
    try:
        while forks:
            for connection in wait(list(forks)):
                fork = forks[connection]
                try:
                    ran, reports = connection.recv()
                except (EOFError, ConnectionError):
                    del forks[connection]
                    if reports := lost(session, fork, parts):
                        other = Fork(session)
                        forks[other.connection] = other
                else:
                    if ran is None:
                        fork.give(parts.popleft() if parts else [])
                    else:
                        fork.given.remove(ran)
                for data in reports:
                    report = config.hook.pytest_report_from_serializable(config=config, data=data)
                    config.hook.pytest_runtest_logreport(report=report)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
    finally:
        for fork in forks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork.pid, signal.SIGTERM)
            fork.end()
    return True


def lost(session: pytest.Session, fork: Fork, parts: deque[list[int]]) -> list[dict[str, Any]]:
    """Return the report of the test in which a fork has ended, if any; others may do the rest."""
    code = fork.end()
    if not fork.given:
        return []
    broken, *rest = fork.given
    parts.extendleft([rest] if rest else [])
    item, said = session.items[broken], f"its process ended with exit code {code}"
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
    hook = session.config.hook
    return [hook.pytest_report_to_serializable(config=session.config, report=report)]


class Reports:
    """Collects the reports of a test, to be sent."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.found = config, []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what can be sent of a report."""
        hook = self.config.hook
        self.found.append(hook.pytest_report_to_serializable(config=self.config, report=report))


def work(session: pytest.Session, connection: Connection) -> NoReturn:
    """Run the tests that are handed out until there are none, and end."""
    code = 1
    try:
        atexit._clear()
        plugins, reports = session.config.pluginmanager, Reports(session.config)
        plugins.unregister(name="terminalreporter")
        plugins.register(reports)
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()  # whose files are those of the process that was forked
        capture.start_global_capturing()
        capture.suspend_global_capture()
        places = handed_out(connection)
        here = next(places, None)
        while here is not None:
            after = next(places, None)
            item, nextitem = session.items[here], None if after is None else session.items[after]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            connection.send((here, reports.found))
            reports.found = []
            here = after
        atexit._run_exitfuncs()
        code = 0
    finally:
        os._exit(code)


def handed_out(connection: Connection) -> Iterator[int]:
    """Yield the places of tests that are handed out; asks for more when it has none."""
    while True:
        connection.send((None, []))
        part = connection.recv()
        if not part:
            return
        yield from part
