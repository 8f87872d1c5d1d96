"""The addresses: what is asked, what is answered."""

import json
import math

import pytest

import regard
from regard.data import Tokenizer
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from regard.version import __version__
from serve.conftest import SIZES, client_of
from untrained import write_run

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<b>&amp;\"'",
    "👩‍👩‍👧‍👦 e\u0301 مرحبا 今日",
    "a\nb\r\nc\x00\x1b[31m\u2028\ufeff",
    "event: done\ndata: {}\n\n",
    "abc" * 10,
    "",
    " ",
]


def events(response):
    """Names and contents of server-sent events, read as the standard says."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_info_names_models_presets_tokenisers_limits_and_version(serve):
    info = serve(chars=77, queue=5).get("/api/info").json()
    assert info["version"] == __version__
    assert [model["name"] for model in info["models"]] == ["looking", "blind", "tagged"]
    assert info["models"][0]["preset"] == "luong"
    assert info["models"][0]["source"] == {"tokenizer": "char", "vocabulary": 13, "features": 0}
    assert info["models"][2]["source"]["features"] == 2
    assert (info["limits"]["chars"], info["limits"]["queue"]) == (77, 5)
    assert info["presets"].keys() == regard.models.PRESETS.keys()


def test_run_gives_the_trace_of_the_models_answer(client, models):
    found = from_json(client.post("/api/run", json={"text": "abc"}).json())
    expected = models.by_name["looking"]("abc")
    assert found.target.text == expected.text
    assert found.source.text == "abc"
    assert found.source.labels == ["a", "b", "c", "</s>"]
    assert found.kinds == ["cross"]
    (weights,) = (m.weights for m in found.maps)
    assert weights == pytest.approx(expected.maps["cross"][0][:, : weights.shape[1]], abs=1e-3)
    assert (found.decoded.mode, found.decoded.beam) == ("beam", 3)
    assert all(len(token.alternatives) == 3 for token in found.target.tokens)


def test_the_model_is_chosen_by_name(client, models):
    body = client.post("/api/run", json={"text": "abc\tV;PST", "model": "tagged"}).json()
    found = from_json(body)
    assert found.source.labels == ["a", "b", "c", "[V]", "[PST]", "</s>"]
    assert found.target.text == models.by_name["tagged"]("abc\tV;PST").text
    assert found.kinds == ["cross", "encoder-self", "decoder-self"]


def test_beam_kinds_and_target_are_heard(client, models):
    asked = {"text": "abc", "model": "tagged", "kinds": ["encoder-self"], "beam": 1}
    found = from_json(client.post("/api/run", json=asked).json())
    assert found.kinds == ["encoder-self"]
    assert found.decoded.mode == "greedy"
    forced = from_json(client.post("/api/run", json={"text": "abc", "target": "c b"}).json())
    assert forced.target.labels == ["c", "b", "</s>"]
    assert forced.decoded.mode == "forced"
    expected = models.by_name["looking"].trace("abc", "c b").decoded.log_prob
    assert forced.decoded.log_prob == pytest.approx(expected, abs=1e-4)


@pytest.mark.sample(4)
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_comes_back_as_it_was(client, text):
    answer = client.post("/api/run", json={"text": text, "target": text})
    assert answer.status_code == 200, answer.text
    assert answer.json()["source"]["text"] == text
    assert answer.json()["target"]["text"] == text
    assert answer.content.isascii()
    (*_, (name, content)) = events(client.post("/api/stream", json={"text": text}))
    assert name == "done"
    assert content["trace"]["source"]["text"] == text


def test_a_stream_gives_tokens_with_rows_and_then_the_trace(client, models):
    first, *tokens, (last, content) = events(client.post("/api/stream", json={"text": "abc"}))
    trace = from_json(content["trace"])
    assert first == ("source", {"tokens": trace.source.labels})
    assert {name for name, _ in tokens} == {"token"}
    assert last == "done"
    assert trace.decoded.mode == "greedy"
    assert [data["token"] for _, data in tokens] == trace.target.labels
    assert [data["token"] for _, data in tokens][-1] == "</s>"
    expected = models.by_name["looking"]("abc", beam=1)
    assert [math.log(data["prob"]) for _, data in tokens] == pytest.approx(
        expected.token_log_probs, abs=1e-4
    )
    rows = [data["row"] for _, data in tokens]
    assert rows == [pytest.approx(row, abs=1e-3) for row in expected.maps["cross"][0][0].tolist()]


def test_a_stream_of_a_label_is_the_label(tmp_path):
    src, tgt = Tokenizer.train("char", ["ab"]), Tokenizer.train("label", ["x", "y"])
    run = write_run(tmp_path / "run", src, tgt, "classifier-rnn", **SIZES)
    with client_of(Models.load([run], device="cpu")) as client:
        _, *tokens, (_, content) = events(client.post("/api/stream", json={"text": "ab"}))
    assert [data["token"] for _, data in tokens] == from_json(content["trace"]).target.labels


def test_numbers_that_json_does_not_have_are_null(client, models, monkeypatch):
    model = models.by_name["looking"]
    trace = model.trace("abc")
    odd = regard.seeing.Trace(
        source=trace.source, target=trace.target, checks={"tau": [math.nan, -math.inf, 0.5]}
    )
    monkeypatch.setattr(model, "check", lambda *_, **__: odd)
    answer = client.post("/api/check", json={"text": "abc"})
    assert answer.json()["checks"] == {"tau": [None, None, 0.5]}
