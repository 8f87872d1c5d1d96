"""Two hundred clients at once: none is lost, and each gets what it would have got alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import numpy as np
import pytest

from regard.seeing.trace.storage import from_json

pytestmark = pytest.mark.slow  # real connections, and many of them

CLIENTS = 200


def texts():
    return ["abcdefgh"[i % 5 :][: 1 + i % 8] + "hgfedcba"[: i % 7] for i in range(CLIENTS)]


def together(server, bodies):
    """The answers to requests that are sent in the same moment, each by its own connection."""
    start = threading.Barrier(len(bodies))

    def ask(body):
        start.wait()
        return client.post("/api/run", json=body)

    many = httpx2.Limits(max_connections=len(bodies))
    with (
        httpx2.Client(base_url=server.url, trust_env=False, timeout=240, limits=many) as client,
        ThreadPoolExecutor(len(bodies)) as pool,
    ):
        return list(pool.map(ask, bodies))


def load(server):
    with server.client() as client:
        return client.get("/api/info").json()["load"]


@pytest.mark.long
def test_two_hundred_clients_at_once_get_what_each_would_get_alone(live, models):
    server = live(tokens=20)
    asked = [{"text": text, "beam": 1} for text in texts()]
    answers = together(server, asked)
    assert [answer.status_code for answer in answers] == [200] * CLIENTS
    model = models.by_name["looking"]
    alone = {text: model.trace(text, beam=1, max_len=20) for text in set(texts())}
    for text, answer in zip(texts(), answers, strict=True):
        found, expected = from_json(answer.json()), alone[text]
        assert found.source.text == text
        assert found.target.labels == expected.target.labels
        assert found.decoded.log_prob == pytest.approx(expected.decoded.log_prob, abs=1e-3)
        for one, other in zip(found.maps, expected.maps, strict=True):
            np.testing.assert_allclose(one.weights, other.weights, atol=2e-3)
    busy = load(server)
    assert (busy["asked"], busy["left"], busy["inside"]) == (CLIENTS, 0, 0)
    assert busy["batches"] < CLIENTS / 4
    assert server.lines == []
