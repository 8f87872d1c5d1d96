"""Runs that were never trained, and servers over them."""

import threading
import time
from contextlib import ExitStack

import httpx2
import pytest
from starlette.testclient import TestClient

from regard.data import Tokenizer
from regard.serve.app import create_app
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from regard.serve.served_models import Models
from regard.serve.server import bind, server_of, url_of
from untrained import write_run

LETTERS = ["abcdefgh", "hgfe dcba"]
SIZES = {"embed": 6, "hidden": 10, "layers": 1}
SMALL = {"transformer": {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2}}


def run_folder(path, preset, features=()):
    """A run with weights so large that its answers differ."""
    src = Tokenizer.train("char", LETTERS, features=features)
    tgt = Tokenizer.train("space", [" ".join("abcdefgh")])
    return write_run(path, src, tgt, preset, beam=3, **SMALL.get(preset, SIZES))


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """A run with attention, one without, one with features."""
    runs = tmp_path_factory.mktemp("runs")
    return [
        run_folder(runs / "looking", "luong"),
        run_folder(runs / "blind", "seq2seq"),
        run_folder(runs / "tagged", "transformer", features=["V", "PST"]),
    ]


@pytest.fixture(scope="session")
def models(folders):
    return Models.load(folders, device="cpu")


def client_of(models, access=None, tokens=40, **limits):
    """A client of an application in this process, to be entered; `lines` has what it printed.

    Answers are short, since these models do not know when to end.
    """
    lines = []
    log = Log(lines.append)
    app = create_app(models, Limits(tokens=tokens, **limits), access or Access(), log)
    client = TestClient(app, base_url="http://localhost")
    client.lines = lines
    return client


@pytest.fixture
def serve(models):
    """Starts applications that differ from the usual one."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(client_of(models, *args, **options))


@pytest.fixture(scope="session")
def client(models):
    """The usual one."""
    with client_of(models) as client:
        yield client


class Live:
    """A server with real connections, in a thread."""

    def __init__(self, models, access=None, **limits):
        self.lines = []
        self.bound = bind("127.0.0.1", 0)
        limits, log = Limits(**limits), Log(self.lines.append)
        self.server = server_of(create_app(models, limits, access or Access(), log), log)
        self.thread = threading.Thread(target=self.server.run, args=([self.bound],))
        self.url = url_of(self.bound)

    def __enter__(self):
        self.thread.start()
        until(lambda: self.server.started)
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self.thread.join(240)
        self.bound.close()
        assert not self.thread.is_alive()

    def client(self, **options):
        return httpx2.Client(base_url=self.url, trust_env=False, timeout=240, **options)


def until(condition, seconds=10.0):
    """Waits for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def live(models):
    """Starts servers with real connections."""
    opened = []

    def start(**limits):
        opened.append(Live(models, **limits).__enter__())
        return opened[-1]

    yield start
    for server in opened:
        server.__exit__()


class Steps:
    """Counts the decoding steps of a model, each of which takes a while."""

    def __init__(self, model, seconds):
        self.taken, self.model, self.seconds = 0, model, seconds
        self.step = model.module.step

    def __call__(self, *args, **options):
        self.taken += 1
        time.sleep(self.seconds)
        return self.step(*args, **options)


@pytest.fixture
def slow(models, monkeypatch):
    """Makes the first model slow, and unable to end before its limit."""

    def make(seconds=0.01):
        model = next(iter(models.by_name.values()))
        steps = Steps(model, seconds)
        monkeypatch.setattr(type(model.module), "step", lambda _, *a, **o: steps(*a, **o))
        return steps

    return make
