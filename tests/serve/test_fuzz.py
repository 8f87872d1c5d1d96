"""The API against its own schema: whatever is sent, nothing breaks, and answers are as it says."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.python import asgi

from regard.serve.app import create_app
from regard.serve.limits import Limits
from regard.serve.logs import Log
from regard.serve.middleware import Access
from serve.conftest import client_of
from serve.test_http_errors import error

pytestmark = pytest.mark.slow  # hundreds of requests

load_all_checks()
#: not among them: that what fits the schema is taken, since limits and models are the server's own
REJECTION = "negative_data_rejection"
NAMES = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    REJECTION,
    "unsupported_method",
)
EXAMPLES = 12


class Printed:
    """What the server prints, which is nothing unless something broke."""

    lines: list[str] = []  # noqa: RUF012


@pytest.fixture(scope="module")
def api(models):
    """The schema, and requests to an application in this process."""
    access, log = Access(hosts=(asgi.HOST,)), Log(Printed.lines.append)
    app = create_app(models, Limits(tokens=15, chars=1000), access, log)
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    asgi.shutdown_lifespans()


ADDRESSES = [
    ("GET", "/healthz"),
    ("GET", "/api/info"),
    ("POST", "/api/run"),
    ("POST", "/api/stream"),
    ("POST", "/api/check"),
    ("POST", "/api/what-if"),
    ("POST", "/api/answers"),
]


def test_every_address_of_the_schema_is_tried(api):
    found = [result.ok() for result in api.get_all_operations()]
    assert sorted((one.method.upper(), one.path) for one in found) == sorted(ADDRESSES)


@pytest.mark.sample(2)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), ADDRESSES)
def test_whatever_is_sent_the_answer_is_as_the_schema_says(api, method, path, mode):
    operation = api[path][method]
    if mode.is_negative and method == "GET":
        return  # it takes nothing that could be wrong
    statuses = Counter()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        answer = case.call()
        # a body that is too large is refused before it is read, which the check does not know
        names = [name for name in NAMES if name != REJECTION or answer.status_code != 413]
        case.validate_response(answer, checks=[CHECKS.get_one(name) for name in names])
        statuses[answer.status_code] += 1

    send()
    assert Printed.lines == []
    assert set(statuses) <= {200, 413, 422} if mode.is_positive else 200 not in statuses
    # bodies have so many fields that few examples have them all right
    assert method == "POST" or statuses[200]
    assert mode.is_positive or statuses[422]


def test_an_application_that_was_ended_can_be_started_again(models):
    client = client_of(models)
    for _ in range(2):
        with client:
            assert client.post("/api/run", json={"text": "abc"}).status_code == 200
            assert "event: done" in client.post("/api/stream", json={"text": "abc"}).text
    assert client.lines == []


def test_a_length_that_is_no_number_is_refused(client):
    for wrong in ("abc", "-1", "²", ""):
        headers = {"content-length": wrong.encode("utf-8"), "content-type": "application/json"}
        error(client.post("/api/run", content=b"{}", headers=headers), 400, "bad_request")
