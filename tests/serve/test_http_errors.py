"""Everything that is refused, and how: one shape, a code, a hint, and no traceback."""

import json

import pytest

from regard.serve.middleware import Access


def error(response, status, code):
    """What an answer says that refuses."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error"}
    told = response.json()["error"]
    assert told.keys() == {"code", "message", "hint"}
    assert told["code"] == code
    assert told["message"]
    assert told["hint"]
    assert "Traceback" not in response.text
    return told


INVALID = {
    "no text": {},
    "half a pair": {"text": "\ud800"},
    "a kind that is none": {"text": "a", "kinds": ["cros"]},
    "a beam that is too wide": {"text": "a", "beam": 17},
    "another field": {"text": "a", "bean": 5},
    "a tab": {"text": "a\tb"},
}


@pytest.mark.parametrize("case", INVALID)
@pytest.mark.parametrize("path", ["/api/run"])
def test_what_cannot_be_taken_is_422(client, path, case):
    content = json.dumps(INVALID[case])
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    error(answer, 422, "invalid")


def test_what_was_sent_is_not_repeated(client):
    for body in (
        {"text": ["my secret"]},
        {"text": "a", "my secret": 1},
        {"text": "a", "beam": 777 * 10**4000},
        {"text": "a", "max_len": 777 * 10**4000},
    ):
        answer = client.post("/api/run", json=body)
        error(answer, 422, "invalid")
        assert "secret" not in answer.text
        assert "777" not in answer.text
    for name, status in (("host", 400), ("origin", 403), ("content-type", 415)):
        answer = client.post("/api/run", content=b"{}", headers={name: "my-secret"})
        assert answer.status_code == status
        assert "secret" not in answer.text


@pytest.mark.parametrize("path", ["/nothing", "/api", "/page/nothing.js", "/page/../app.py"])
def test_an_unknown_address_is_404(client, path):
    error(client.get(path), 404, "not_found")


def test_another_media_type_is_415(client):
    form = {"content-type": "application/x-www-form-urlencoded"}
    error(client.post("/api/run", content='{"text": "a"}', headers=form), 415, "not_json")
    plain = {"content-type": "text/plain;application/json"}
    error(client.post("/api/run", content='{"text": "a"}', headers=plain), 415, "not_json")


def test_too_many_characters_are_413(serve):
    client = serve(chars=10)
    assert client.post("/api/run", json={"text": "a" * 10}).status_code == 200
    for body in ({"text": "a" * 11}, {"text": "a", "target": "a" * 11}):
        told = error(client.post("/api/run", json=body), 413, "too_long")
        assert "at most 10 characters" in told["message"]
        assert "--max-chars" in told["hint"]


def test_too_many_tokens_are_413(serve):
    client = serve(tokens=4)
    assert client.post("/api/run", json={"text": "abcd"}).status_code == 200
    for path in ("/api/run", "/api/stream", "/api/check"):
        error(client.post(path, json={"text": "abcde"}), 413, "too_long")
    error(client.post("/api/run", json={"text": "a", "target": "a b c d e"}), 413, "too_long")


def test_too_large_a_body_is_413_with_and_without_a_length(serve):
    client = serve(chars=10)
    kind = {"content-type": "application/json"}
    large = b'{"text": "' + b" " * 5000 + b'"}'
    error(client.post("/api/run", content=large, headers=kind), 413, "too_large")
    pieces = (large[i : i + 100] for i in range(0, len(large), 100))
    error(client.post("/api/run", content=pieces, headers=kind), 413, "too_large")


def test_another_host_is_400(client):
    for host in ("evil.com", "localhost.evil.com", "127.0.0.1.evil.com", "", "evil.com:80"):
        error(client.get("/", headers={"host": host}), 400, "unknown_host")
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:9", "[::1]", "[::1]:8000"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_more_hosts_may_be_allowed(serve):
    client = serve(Access(hosts=["Box.local", "fe80::1", "with.port:8000", "[fe80::2]:80"]))
    for host in ("box.local:8000", "[fe80::1]:8000", "localhost", "with.port:8000", "[fe80::2]:80"):
        assert client.get("/healthz", headers={"host": host}).status_code == 200
    error(client.get("/healthz", headers={"host": "other.local"}), 400, "unknown_host")
    every = serve(Access(hosts=["*"]))
    assert every.get("/healthz", headers={"host": "other.local"}).status_code == 200


def test_without_the_token_nothing_is_answered(serve):
    client = serve(Access(token="s3cret"))
    for path in ("/api/info", "/openapi.json", "/page/main.js"):
        answer = client.get(path)
        error(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    for given in ("Bearer wrong", "Bearer", "Basic s3cret", "s3cret", "Bearer s3cret2"):
        answer = client.post("/api/run", json={"text": "a"}, headers={"authorization": given})
        error(answer, 401, "unauthorized")
    assert client.get("/healthz").status_code == 200
    told = error(client.get("/"), 401, "unauthorized")
    assert "/?token=TOKEN" in told["hint"]


def test_a_program_sends_the_token_and_a_browser_gets_a_cookie_for_it(serve):
    client = serve(Access(token="s3cret"))
    for given in ("Bearer s3cret", "bearer s3cret"):
        answer = client.post("/api/run", json={"text": "a"}, headers={"authorization": given})
        assert answer.status_code == 200
    error(client.get("/?token=wrong"), 401, "unauthorized")
    opened = client.get("/?token=s3cret", follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "s3cret" not in cookie
    assert "regard" in client.get("/").text
    assert client.post("/api/run", json={"text": "a"}).status_code == 200
    client.cookies.clear()
    client.cookies.set("regard-token", "s3cret")
    error(client.post("/api/run", json={"text": "a"}), 401, "unauthorized")


def test_pages_of_other_sites_may_not_ask(client):
    evil = {"origin": "http://evil.com"}
    error(client.post("/api/run", json={"text": "a"}, headers=evil), 403, "cross_origin")
    asked = {**evil, "access-control-request-method": "POST"}
    assert client.options("/api/run", headers=asked).status_code == 405


def test_what_nobody_foresaw_is_500_without_the_text(serve, models, monkeypatch):
    client = serve()

    def broken(*_, **__):
        raise ZeroDivisionError("about my secret")

    monkeypatch.setattr(models.by_name["looking"].module, "step", broken)
    answer = client.post("/api/run", json={"text": "my secret"})
    error(answer, 500, "internal")
    assert "secret" not in answer.text
    (line,) = client.lines
    assert "secret" not in line
    assert "ZeroDivisionError" in line
    assert "test_http_errors.py" in line
    assert client.post("/api/run", json={"text": "a", "model": "blind"}).status_code == 200


def test_a_stream_that_breaks_ends_in_an_error_event(serve, models, monkeypatch):
    client = serve()
    module = models.by_name["looking"].module
    monkeypatch.setattr(type(module), "step", lambda *_, **__: 1 / 0)
    answer = client.post("/api/stream", json={"text": "abc"})
    assert answer.status_code == 200
    _, (name, data) = (part.split("\n") for part in answer.text.strip().split("\n\n"))
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["code"] == "internal"
    assert len(client.lines) == 1


def test_every_answer_has_headers_that_keep_it_safe(client):
    answers = [client.get("/"), client.get("/nothing"), client.get("/api/info")]
    answers.append(client.get("/", headers={"host": "evil.com"}))
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.slow
def test_no_text_is_printed(client):
    before = list(client.lines)
    client.post("/api/run", json={"text": "a\nb\x1b"})
    client.post("/api/stream", json={"text": "my text"})
    assert client.lines == before


def test_a_client_is_answered_in_its_language(client):
    def refused(**headers):
        return client.post("/api/run", json={"text": "a", "beam": 99}, headers=headers)

    told = error(refused(**{"accept-language": "zh"}), 422, "invalid")
    assert told["message"] == "beam 必须在 1 到 16 之间，但现在是 99"
    assert told["hint"] == "请选择其中一个"
    assert "must" in error(refused(), 422, "invalid")["message"]
    absent = error(client.get("/nothing", headers={"accept-language": "zh"}), 404, "not_found")
    assert absent["message"] == "这个地址没有内容"
