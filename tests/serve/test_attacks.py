"""Clients that mean harm, or are very unlucky: everybody else is still answered."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.preemption import preemption_point
from regard.serve import server as server_process
from regard.serve.limits import Limits, RefusalWaits
from regard.serve.server import ConnectionLimiter
from serve.conftest import until
from serve.test_http_errors import error
from serve.test_live import leave, post

pytestmark = pytest.mark.slow  # real connections

HALF_HEADER = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
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


def test_two_clients_that_loop_long_checks_do_not_starve_others(live, endless):
    server = live(seconds=20.0)
    with ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(post, server, LONG, "/api/check") for _ in range(2)]
        until(lambda: endless.taken > 10)
        start = time.monotonic()
        for _ in range(5):
            assert post(server, {"text": "abc", "model": "blind"}).status_code == 200
        assert time.monotonic() - start < 15  # an endless check would have taken all of the 20
        assert not any(attack.done() for attack in attacks)
        server.server.should_exit = True
        for attack in attacks:
            error(attack.result(), 503, "closing")


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


def test_too_much_work_is_refused(serve):
    client = serve(tokens=600, work=100_000)
    told = error(client.post("/api/check", json=LONG), 413, "too_much_work")
    assert "--max-work" in told["hint"]
    assert client.post("/api/run", json={"text": "abc"}).status_code == 200


def test_a_client_whose_requests_take_too_much_work_is_refused(live, endless):
    server = live(work=9_000_000)
    connections = held(server, request_of("/api/check", LONG), 2)
    until(lambda: load(server)["inside"] == 2)
    error(post(server, LONG, "/api/check"), 429, "busy")
    assert post(server, {"text": "abc"}).status_code == 200
    for connection in connections:
        connection.close()


def test_half_a_header_times_out(live):
    server = live(read_seconds=0.2)
    (connection,) = held(server, HALF_HEADER)
    assert refusal(read(connection)) == (408, "slow_header")
    (silent,) = held(server, b"")
    assert read(silent) == b""


def test_a_header_that_drips_times_out(live):
    server = live(read_seconds=0.3)
    (connection,) = held(server, HALF_HEADER)
    start = time.monotonic()
    try:
        while time.monotonic() - start < 10:
            connection.sendall(b"x")
            time.sleep(0.02)
    except OSError:
        pass
    assert time.monotonic() - start < 5
    connection.close()


def test_half_a_body_times_out(live):
    server = live(read_seconds=0.2)
    (connection,) = held(server, HALF_BODY)
    assert refusal(read(connection)) == (408, "slow_body")


@pytest.mark.parametrize("content", [HALF_HEADER, HALF_BODY, b""], ids=["header", "body", "none"])
def test_many_held_connections_do_not_keep_others_out(live, content):
    server = live(connections=20)
    connections = held(server, content, 60)
    for _ in range(3):
        assert post(server, {"text": "abc", "model": "blind"}).status_code == 200
    opened = len(server.server.server_state.connections)
    assert opened <= 20
    for connection in connections:
        connection.close()


class Connection:
    """What a watch knows of a connection."""

    def __init__(self, address):
        self.address, self.dropped, self.refused = address, False, False

    def drop(self):
        self.dropped = True

    def crowded(self):
        self.refused = True


def test_those_whose_bodies_stop_lose_them_for_others():
    watch = ConnectionLimiter(Limits())
    watch.most_bytes = 100
    stopped, moving, whole = (Connection(name) for name in ("stopped", "moving", "whole"))
    for connection, count in ((moving, 10), (stopped, 40), (whole, 30), (moving, 10)):
        watch.opened(connection)
        watch.received(connection, count)
    watch.asks(whole)
    watch.received(new := Connection("new"), 50)
    assert [c.dropped for c in (stopped, moving, whole, new)] == [True, False, False, False]
    watch.opened(Connection("whole"))
    watch.received(more := Connection("whole"), 50)  # 80 is more than a client may hold
    assert more.refused
    for connection in (moving, new, whole):
        watch.answered(connection)
    watch.received(last := Connection("last"), 75)
    assert not last.refused
    assert not last.dropped


def test_half_sent_bodies_take_bounded_memory_and_others_are_answered(live, monkeypatch):
    monkeypatch.setattr(server_process, "MOST_BYTES", 1)
    server = live()
    limiter = server.server.config.http.args[0]
    assert limiter.most_bytes < 300_000  # 4 of the largest bodies
    half = request_of("/api/run", {"text": "a" * 45_000})[:40_000]
    attacks = held(server, half, 30)
    assert post(server, {"text": "abc", "model": "blind"}).status_code == 200
    until(lambda: sum(limiter._bytes.values()) <= limiter.most_bytes)
    assert len(limiter._bytes) <= limiter.most_bytes // len(half)
    for connection in attacks:
        connection.close()
    until(lambda: not limiter._bytes)


def test_those_who_hold_most_lose_first():
    watch = ConnectionLimiter(Limits(connections=8))
    modest = [Connection("modest") for _ in range(3)]
    greedy = [Connection("greedy") for _ in range(5)]
    for connection in (*modest, *greedy):
        watch.opened(connection)
    asking = greedy[0]
    watch.asks(asking)
    watch.opened(Connection("new"))
    assert [c.dropped for c in greedy] == [False, True, False, False, False]
    assert not any(c.dropped for c in modest)
    for connection in (greedy[1], *modest):
        watch.closed(connection)
    for connection in [Connection("greedy") for _ in range(3)]:
        watch.opened(connection)
    assert [c.dropped for c in greedy] == [False, True, True, False, False]  # 6 of 8 is the most


def test_few_file_handles_mean_few_connections(monkeypatch):
    monkeypatch.setattr(server_process, "open_files", lambda wanted: 256)
    watch = ConnectionLimiter(Limits(connections=2048))
    assert watch.most + 3 * watch.backlog + server_process.RESERVED_HANDLES == 256
    monkeypatch.setattr(server_process, "open_files", lambda wanted: 20)
    assert ConnectionLimiter(Limits()).most == 1


@pytest.mark.parametrize(
    "content",
    [
        b"\x16\x03\x01\x02\x00 nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + 40_000 * b"a",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + 40_000 * b"a" + b"\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_the_form_of_the_api(live, content):
    server = live()
    (connection,) = held(server, content)
    assert refusal(read(connection)) == (400, "bad_request")
    with server.client() as client:
        assert client.get("/healthz").status_code == 200


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


def test_a_client_that_is_often_refused_keeps_to_its_share_of_the_clock():
    waits, now, spent = RefusalWaits(), 100.0, 0.01
    for _ in range(1000):  # each is sent as soon as the one before is answered
        now += spent + waits.wait("10.0.0.1", spent, now + spent)
    free = waits.FREE_SECONDS
    assert now - 100 == pytest.approx(1000 * spent * waits.SHARE - free, rel=0.01)
    assert waits.wait("10.0.0.2", spent, now) == 0.0  # others do not wait
    assert waits.wait("10.0.0.1", spent, now + 10) == 0.0  # nor does it later


def test_one_refusal_never_waits_and_none_waits_for_long():
    waits = RefusalWaits()
    assert waits.wait("2001:db8::1", 30.0, 5.0) == 0.0  # its body came slowly
    found = [waits.wait(f"2001:db8::{i}", 30.0, 5.0) for i in range(1, 9)]
    assert found == [1.0, 2.0, *[waits.LONGEST_WAIT] * 6]


def test_refused_requests_are_charged_by_the_time_that_they_take(serve, monkeypatch):
    charged = []

    def wait(_, host, spent, now):
        charged.append((host, spent))
        return 0.2

    monkeypatch.setattr(RefusalWaits, "wait", wait)
    client = serve(tokens=600, work=100_000)
    assert client.post("/api/run", json={"text": "abc"}).status_code == 200
    assert not charged
    start = time.monotonic()
    error(client.post("/api/check", json=LONG), 413, "too_much_work")
    error(client.post("/api/run", json={"text": 1}), 422, "invalid")
    took = time.monotonic() - start
    assert [host for host, _ in charged] == ["testclient"] * 2
    assert all(spent > 0 for _, spent in charged)
    assert took > 0.4
    assert sum(spent for _, spent in charged) < took - 0.4
