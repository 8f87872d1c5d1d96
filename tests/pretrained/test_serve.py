"""`regard serve` with models of transformers: the live page's requests, limits and refusals."""

import json
import math

import pytest

from regard.preemption import preemptible
from regard.pretrained import PretrainedModel
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import client_of
from serve.test_app import events
from serve.test_http_errors import error

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def models(saved):
    folders = [saved(family) for family in ("gpt2", "marian", "bert")]
    return Models.load(folders, device="cpu")


@pytest.fixture(scope="module")
def client(models):
    with client_of(models, tokens=12) as client:
        yield client


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "beam"), [("gpt2", 1), ("gpt2", 3), ("marian", 3)])
def test_run_gives_the_trace_of_the_models_own_answer(client, models, name, beam):
    asked = {"text": TEXT, "model": name, "beam": beam}
    found = from_json(client.post("/api/run", json=asked).json())
    expected = models.by_name[name](TEXT, beam=beam, max_len=12).trace
    assert found.target.text == expected.target.text
    assert found.kinds == expected.kinds
    assert found.maps[0].weights == pytest.approx(expected.maps[0].weights, abs=1e-3)


def test_a_text_that_names_a_file_is_a_text(client, tmp_path, monkeypatch):
    """Or requests could ask which files exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").touch()
    for path in ("run", "stream", "check", "what-if"):
        asked = {"text": "cat.png", "model": "gpt2", "max_len": 1}
        asked |= {"prefix": "a"} if path == "what-if" else {}
        assert client.post(f"/api/{path}", json=asked).status_code == 200, path


def test_a_text_does_not_tell_which_files_there_are(client, media_files):
    for verb in ("run", "stream", "check", "what-if"):
        answers = [
            client.post(f"/api/{verb}", json={"text": str(file), "max_len": 2})
            for file in (media_files / "p.png", media_files / "x.png")
        ]
        assert "the file of a picture" not in answers[0].text
        assert answers[0].status_code == answers[1].status_code


@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_a_stream_gives_the_tokens_and_then_their_trace(client, name):
    asked = {"text": TEXT, "model": name}
    first, *tokens, (last, content) = events(client.post("/api/stream", json=asked))
    trace = from_json(content["trace"])
    assert first[0] == "source"
    assert {kind for kind, _ in tokens} == {"token"}
    assert last == "done"
    written = trace.target.tokens[-len(tokens) :]
    assert [data["token"] for _, data in tokens] == [token.text for token in written]
    assert [data["prob"] for _, data in tokens] == pytest.approx([t.prob for t in written])
    assert {json.dumps(data["row"]) for _, data in tokens} == {"null"}


def test_an_encoder_streams_nothing_and_its_answer_is_a_note(client):
    asked = {"text": "the cat <mask> on", "model": "bert"}
    (first, _), (last, content) = events(client.post("/api/stream", json=asked))
    assert (first, last) == ("source", "done")
    trace = from_json(content["trace"])
    assert trace.kinds == ["encoder-self"]
    assert trace.notes[0].startswith("it answers '")
    plain = from_json(client.post("/api/run", json={"text": TEXT, "model": "bert"}).json())
    assert not any("answers" in note for note in plain.notes)  # there is no mask to fill


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"), [("gpt2", TEXT), ("marian", TEXT), ("bert", "the cat <mask> on")]
)
def test_a_check_has_what_mattered(client, name, text):
    asked = {"text": text, "model": name, "methods": "ablation,gradient"}
    answer = client.post("/api/check", json=asked)
    assert answer.status_code == 200, answer.text
    found = from_json(answer.json())
    assert {"ablation", "gradient"} <= found.derived.keys()
    assert found.checks["faithfulness"].keys() == {"ablation", "gradient", "random"}


def test_limits_hold_as_for_runs(models):
    with client_of(models, tokens=12) as client:
        long = {"text": "cat " * 13, "model": "gpt2"}
        error(client.post("/api/run", json=long), 413, "too_long")
        answer = client.post("/api/run", json={"text": "cat", "model": "gpt2"}).json()
        assert len(from_json(answer).target.tokens) <= 2 + 12
    with client_of(models, tokens=12, work=3000) as client:
        assert client.post("/api/run", json={"text": TEXT}).status_code == 200
        told = error(client.post("/api/check", json={"text": TEXT}), 413, "too_much_work")
        assert "3,000 tokens of work" in told["message"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/run", {"model": "bert", "target": "a"}, "a target must be for a model that writes"),
        ("/api/run", {"model": "bert", "beam": 4}, "beam must be left out"),
        ("/api/check", {"model": "gpt2", "beam": 4}, "greedy answer"),
        ("/api/check", {"model": "bert"}, "have a <mask>"),
        ("/api/check", {"model": "gpt2", "methods": "magic"}, "methods must be all, or some of"),
        ("/api/run", {"model": "gpt2", "text": None, "frames": [[0.5]]}, "must have text"),
    ],
)
def test_what_a_model_cannot_do_is_one_sentence(client, path, body, words):
    told = error(client.post(path, json={"text": TEXT, **body}), 422, "invalid")
    assert words in told["message"]


class StopError(Exception):
    """Ends work at a preemption point."""


def test_generation_stops_at_a_preemption_point(models):
    model, seen = models.by_name["gpt2"], []

    def point():
        seen.append(1)
        if len(seen) == 60:
            raise StopError

    expected = model(TEXT, max_len=8).text
    hooks = [len(part._forward_hooks) for part in model.module.modules()]
    with pytest.raises(StopError), preemptible(point):
        model(TEXT, max_len=8)
    assert len(seen) == 60
    assert [len(part._forward_hooks) for part in model.module.modules()] == hooks
    assert model(TEXT, max_len=8).text == expected


@pytest.mark.parametrize("family", ["gpt2", "bart"])
def test_probabilities_of_a_stream_are_those_of_the_trace(saved, family):
    model, told = PretrainedModel.load(saved(family), "cpu"), []
    # forbidden repeats change the scores that tokens are chosen by, and no probability
    options = {"max_len": 5, "no_repeat_ngram": 1}
    trace = model.stream("the cat", lambda *one: told.append(one), **options)
    assert math.fsum(log_prob for _, log_prob in told) == pytest.approx(trace.decoded.log_prob)
