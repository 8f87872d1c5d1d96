"""Clients that mean harm, or are very unlucky: everybody else is still answered."""

import json
import socket
import time

import pytest

from regard.preemption import preemption_point
from serve.conftest import until
from serve.test_http_errors import error
from serve.test_live import leave, post

pytestmark = pytest.mark.slow  # real connections

HALF_BODY = (
    b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b'Content-Length: 13\r\n\r\n{"text'
)
LONG = {"text": "abcdefgh" * 60, "target": " ".join("abcdefgh" * 60), "model": "tagged"}


def held(server, content, count=1):
    """Connections that have sent something, and wait."""
    found = [socket.create_connection(server.bound.getsockname()) for _ in range(count)]
    for connection in found:
        connection.settimeout(10)
        connection.sendall(content)
    return found


def read(connection):
    """All that comes until the server closes the connection."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return found


def refusal(content):
    """Status and code of an error that came over a bare connection."""
    head, _, body = content.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]["code"]


@pytest.fixture
def endless(models, monkeypatch):
    """Makes checks endless, in short pieces; counts these."""

    class Pieces:
        taken = 0

    def check(*_, **__):
        while True:
            preemption_point()
            Pieces.taken += 1
            time.sleep(0.002)

    monkeypatch.setattr(models.by_name["tagged"], "check", check)
    return Pieces


@pytest.mark.parametrize("leaves", [True, False])
def test_a_check_that_nobody_waits_for_stops(live, endless, leaves):
    server = live(seconds=60.0 if leaves else 0.5)
    if leaves:
        connection = held(server, request_of("/api/check", LONG))[0]
        until(lambda: endless.taken > 3)
        connection.close()
    else:
        error(post(server, LONG, "/api/check"), 504, "too_slow")
    until(lambda: load(server)["stopped"] == 1)
    taken = endless.taken
    time.sleep(0.1)
    assert endless.taken == taken


def request_of(path, body):
    content = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


def load(server):
    with server.client() as client:
        return client.get("/api/info").json()["load"]


def test_half_a_body_times_out(live):
    server = live(read_seconds=0.2)
    (connection,) = held(server, HALF_BODY)
    assert refusal(read(connection)) == (408, "slow_body")


def test_those_who_wait_are_told_when_the_server_ends(live, slow):
    steps = slow(0.01)
    server = live()
    waiting = [leave(server, "/api/run", b"abcd" * 100) for _ in range(3)]
    streams = [leave(server, "/api/stream", b"abcd" * 100) for _ in range(3)]
    half = held(server, HALF_BODY)
    until(lambda: steps.taken > 3 and load(server)["inside"] == 6)
    server.server.should_exit = True
    for connection in (*waiting, *half):
        assert refusal(read(connection)) == (503, "closing")
    for connection in streams:
        *_, last = read(connection).rstrip(b"\r\n0").strip().split(b"\n\n")
        assert b"event: error" in last
        assert b'"closing"' in last
    server.thread.join(240)
    assert server.lines == []
