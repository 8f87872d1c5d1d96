"""Servers with real connections: many clients at once, clients that leave, servers that end."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from regard.api.predictor import Predictor
from serve.conftest import until
from serve.test_http_errors import error

pytestmark = pytest.mark.slow  # waits for real connections


def post(server, body, path="/api/run"):
    with server.client() as client:
        return client.post(path, json=body)


def leave(server, path, text):
    """Asks and leaves without waiting for the answer; what came until then."""
    body = b'{"text": "%s", "beam": 1}' % text if path == "/api/run" else b'{"text": "%s"}' % text
    connection = socket.create_connection(server.bound.getsockname())
    connection.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)
    )
    return connection


def workers():
    return {t.ident for t in threading.enumerate() if t.name.startswith("regard-worker")}


def test_requests_that_arrive_together_are_decoded_as_one_batch(live, models, monkeypatch):
    sizes, best = [], Predictor._best

    def counted(self, src, *rest):
        sizes.append(len(src))
        return best(self, src, *rest)

    monkeypatch.setattr(Predictor, "_best", counted)
    server = live(wait_ms=20000.0, batch=12)
    texts = ["abcdefgh"[: 1 + i % 8] for i in range(12)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda text: post(server, {"text": text}).json(), texts))
    assert [answer["source"]["text"] for answer in answers] == texts
    assert sizes == [12]
    alone = models.by_name["looking"](texts[3])
    assert answers[3]["target"]["text"] == alone.text
    assert answers[3]["decoded"]["log_prob"] == pytest.approx(alone.log_prob, abs=1e-4)


def test_a_stream_that_the_client_leaves_takes_no_further_steps(live, slow):
    steps = slow()
    server = live()
    connection = leave(server, "/api/stream", b"abcd" * 100)
    came = b""
    while b"event: token" not in came:
        came += connection.recv(4096)
    connection.close()
    time.sleep(0.1)
    taken = steps.taken
    time.sleep(0.1)
    assert steps.taken == taken < 30
    assert post(server, {"text": "a", "model": "blind"}).status_code == 200


def test_more_than_the_queue_holds_are_429(live, slow):
    steps = slow()
    server = live(queue=2)
    paths = ("/api/run", "/api/stream")
    connections = [leave(server, path, b"abcd" * 50) for path in paths]
    connections[1].recv(1)
    until(lambda: steps.taken > 0)
    for path in ("/api/run", "/api/stream", "/api/check"):
        answer = post(server, {"text": "a"}, path)
        error(answer, 429, "busy")
        assert int(answer.headers["retry-after"]) >= 1
    with server.client() as client:
        assert client.get("/healthz").status_code == 200
    for connection in connections:
        connection.close()
    asked = {"text": "a", "model": "blind"}
    until(lambda: post(server, asked).status_code == 200)
    for _ in range(3):
        assert post(server, asked, "/api/stream").status_code == 200


def test_what_takes_too_long_is_504_and_stops(live, slow):
    steps = slow()
    server = live(seconds=0.3)
    start = time.monotonic()
    told = error(post(server, {"text": "abcd" * 100}), 504, "too_slow")
    assert time.monotonic() - start < 2
    assert "0.3 seconds" in told["message"]
    time.sleep(0.1)
    taken = steps.taken
    time.sleep(0.2)
    assert steps.taken == taken


def test_a_server_ends_although_a_client_still_waits(live, slow):
    steps, before = slow(), workers()
    server = live()
    server.server.config.timeout_graceful_shutdown = 1
    connection = leave(server, "/api/stream", b"abcd" * 100)
    other = leave(server, "/api/run", b"abcd" * 100)
    until(lambda: steps.taken > 3)
    start = time.monotonic()
    server.server.should_exit = True
    server.thread.join(240)
    assert time.monotonic() - start < 5
    assert workers() <= before
    connection.close()
    other.close()
