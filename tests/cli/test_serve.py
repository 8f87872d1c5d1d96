"""`regard serve`: from a command line to a page, and to an end."""

import os
import re
import select
import signal
import socket
import subprocess
import time

import httpx2
import pytest

from cli.tools import done, regard, sentence
from forked_python import forked_python

pytestmark = pytest.mark.slow  # starts processes


def line_of(process, seconds=60):
    """The next line on stderr."""
    assert select.select([process.stderr], [], [], seconds)[0], "nothing was printed"
    return process.stderr.readline()


@pytest.fixture
def started():
    """Starts a server as a user does; what is left of it is ended."""
    processes = []

    def start(*words):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [forked_python(), "-m", "regard", "serve", *map(str, words)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_one_line_says_where_and_an_interrupt_ends_it_quickly(run, started):
    process = started(run, "--port", 0, "--device", "cpu")
    line = line_of(process)
    url = re.fullmatch(r"regard: run at (http://127\.0\.0\.1:\d+) \(Ctrl-C ends it\)\n", line)[1]
    with httpx2.Client(base_url=url, trust_env=False) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        found = client.post("/api/run", json={"text": "abc"}).json()
        assert found["source"]["text"] == "abc"
        start = time.monotonic()
        process.send_signal(signal.SIGINT)  # while a connection is open
        stdout, stderr = process.communicate(timeout=240)
    assert time.monotonic() - start < 5
    assert process.returncode == 130
    assert stdout == ""
    assert stderr == "regard: stopped.\n"


def test_without_a_run_the_bundled_model_is_served(run, monkeypatch):
    monkeypatch.setattr("regard.api.bundled_models.HOME", run.parent)
    monkeypatch.setattr("regard.api.bundled_models.names", lambda: ["run"])
    served = []
    monkeypatch.setattr(
        "regard.serve.server.run", lambda bound, app, *rest, **more: served.append(app)
    )
    done(regard("serve", "--port", 0))
    assert served[0].state.handler.models.names == ["run"]


def test_a_port_in_use_is_one_sentence(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = sentence(regard("serve", run, "--port", port), 1)
    assert f"{port} is in use: choose another with --port" in words


WRONG = {
    "--port": ("70000", "--port must be from 0 to 65535"),
    "--max-chars": ("0", "--max-chars must be at least 1"),
    "--timeout": ("0", "--timeout must be above 0"),
    "--wait-ms": ("-1", "--wait-ms must be at least 0"),
    "--token": ("", "--token must be letters and digits"),
    "--device": ("tpu9", "device must be"),
}


@pytest.mark.parametrize("option", WRONG)
def test_wrong_options_are_one_sentence(run, option):
    value, words = WRONG[option]
    extra = () if option == "--port" else ("--port", 0)
    assert words in sentence(regard("serve", run, option, value, *extra), 2)


def test_other_machines_are_let_in_with_a_token_or_on_purpose(run, monkeypatch):
    served = []

    def run_app(bound, app, *rest, **more):
        served.append(app.user_middleware[0].kwargs["access"])

    monkeypatch.setattr("regard.serve.server.run", run_app)
    words = sentence(regard("serve", run, "--port", 0, "--host", "0.0.0.0"), 2)
    assert "--token must be given, since --host 0.0.0.0 lets other machines in" in words
    assert "--no-token" in words
    assert not served
    done(regard("serve", run, "--port", 0, "--host", "0.0.0.0", "--no-token"))
    assert served[-1].token is None
    done(regard("serve", run, "--port", 0, "--host", "0.0.0.0", "--token", "s3cret"))
    assert served[-1].token == "s3cret"
    monkeypatch.setenv("REGARD_TOKEN", "of-the-environment")
    done(regard("serve", run, "--port", 0, "--host", "0.0.0.0"))
    assert served[-1].token == "of-the-environment"
    both = regard("serve", run, "--port", 0, "--no-token")
    assert "--no-token must stand alone" in sentence(both, 2)
