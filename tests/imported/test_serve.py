"""`regard serve` with models of transformers: they answer as `regard import` brings them over."""

import shutil

import pytest
import torch
from transformers import AutoTokenizer

import regard
from regard.errors import RegardError
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import client_of
from serve.test_app import events
from serve.test_http_errors import error

TEXT = "the cat sat on a mat"


@pytest.fixture(scope="module")
def client(folders):
    paths = [folders(family)[0] for family in ("gpt2", "marian")]
    with client_of(Models.load(paths, device="cpu"), tokens=12) as found:
        yield found


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gpt2", "marian"])
def test_answers_are_those_of_the_imported_model(client, folders, name):
    answer = client.post("/api/run", json={"text": TEXT, "model": name, "beam": 1, "max_len": 7})
    model = regard.load(folders(name)[0], device="cpu", engine="regard")
    expected = model(TEXT, beam=1, max_len=7)
    assert from_json(answer.json()).target.text == expected.trace.target.text


def test_a_text_that_names_a_file_is_a_text(client, tmp_path, monkeypatch):
    """Or requests could ask which files exist."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cat.png").touch()
    for path in ("run", "stream", "check", "what-if"):
        asked = {"text": "cat.png", "model": "gpt2", "max_len": 9}
        asked |= {"prefix": "a"} if path == "what-if" else {}
        assert client.post(f"/api/{path}", json=asked).status_code == 200, path


def test_a_stream_gives_the_tokens_and_then_their_trace(client):
    asked = {"text": TEXT, "model": "marian"}
    first, *tokens, (last, content) = events(client.post("/api/stream", json=asked))
    trace = from_json(content["trace"])
    assert (first[0], last) == ("source", "done")
    assert [data["token"] for _, data in tokens] == [one.text for one in trace.target.tokens]


def test_limits_hold_as_for_runs(client):
    error(client.post("/api/run", json={"text": "cat " * 13, "model": "gpt2"}), 413, "too_long")


def test_models_that_are_not_imported_are_refused(tmp_path, folders):
    shutil.copytree(folders("gpt2")[0], tmp_path / "other")
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace('"gpt2"', '"opt"'))
    with pytest.raises(RegardError):
        Models.load([tmp_path / "other"], device="cpu")


@pytest.mark.sample(1)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_what_mattered_is_the_gradient_of_the_model_of_transformers(folders, family):
    """GPT-2 reads no token before a text, whose column is left out here."""
    path, theirs = folders(family)
    found = regard.load(path, device="cpu", engine="regard").check("the cat sat on", max_len=8)
    outputs = len(found.target.tokens)
    prompt = AutoTokenizer.from_pretrained(path)("the cat sat on", return_tensors="pt").input_ids
    ids = theirs.generate(prompt, max_new_tokens=outputs, do_sample=False)
    vectors = theirs.get_input_embeddings()(ids).detach().requires_grad_()
    log_probs = theirs(inputs_embeds=vectors).logits.log_softmax(-1)[0]
    for row, place in enumerate(range(prompt.shape[1], ids.shape[1])):
        value = log_probs[place - 1, ids[0, place]]
        (slopes,) = torch.autograd.grad(value, vectors, retain_graph=True)
        expected = slopes[0, : ids.shape[1] - 1].norm(dim=-1)
        actual = found.derived["gradient"][row][-len(expected) :]
        assert actual == pytest.approx(expected.numpy(), abs=1e-3, rel=1e-3)
