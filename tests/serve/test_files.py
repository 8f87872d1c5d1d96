"""Models that read files: pictures are sent as base64."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from pictures import bomb, drawn, png_bytes
from regard.data import PictureEncoder, Tokenizer
from regard.data.media_files import read_picture
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import SIZES, Live, client_of, until
from serve.test_app import events
from serve.test_http_errors import error
from serve.test_live import post
from untrained import write_run


def picture_run(path):
    """A run that reads pictures of 10 x 6 pixels."""
    src = PictureEncoder(6, 10, 3, 2, (90.0, 90.0, 90.0), (50.0, 50.0, 50.0))
    tgt = Tokenizer.train("space", [" ".join("abcdefgh")])
    return write_run(path, src, tgt, "show-attend-tell", scale=1, beam=2, **SIZES)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    path = picture_run(tmp_path_factory.mktemp("pictures") / "viewer")
    return Models.load([path], device="cpu")


def sent(content):
    return {"file": base64.b64encode(content).decode()}


ARRAY = drawn("red", "left")
FILE = sent(png_bytes(ARRAY))


def test_a_picture_is_answered(pictures):
    with client_of(pictures) as client:
        info = client.get("/api/info").json()
        (model,) = info["models"]
        assert model["source"]["tokenizer"] == "pictures"
        assert ".png" in model["source"]["files"]
        assert model["reads"] == "pictures, resized to 10 x 6 pixels"
        assert info["limits"]["file_bytes"] == 8 << 20
        found = from_json(client.post("/api/run", json=FILE).json())
        assert found.source.labels[:2] == ["r1c1", "r1c2"]
        assert np.array_equal(found.source.backdrop.array, ARRAY)
        assert found.target.text == pictures.by_name["viewer"](ARRAY, max_len=40).text
        (first, *_, (last, _)) = events(client.post("/api/stream", json=FILE))
        assert first[1]["tokens"][0] == "r1c1"
        assert last == "done"
        asked = {**FILE, "target": "a b"}
        assert "ablation" in client.post("/api/check", json=asked).json()["derived"]


def test_what_is_no_picture_is_refused_and_no_file_is_opened(pictures, tmp_path):
    Image.fromarray(ARRAY).save(tmp_path / "secret.png")
    with client_of(pictures) as client:
        for wrong in (
            {"text": str(tmp_path / "secret.png")},
            {"file": str(tmp_path / "secret.png")},
            {"file": 7},
            {"frames": [[1.0]]},
            {**FILE, "text": "a"},
            {},
            sent(b""),
            sent(b"no picture"),
            sent(bomb(5000, 5000)),
            sent(bomb()),
        ):
            told = error(client.post("/api/run", json=wrong), 422, "invalid")
            assert "secret" not in str(told)


@pytest.fixture
def decoding(monkeypatch):
    """Lets pictures of many pixels be decoded once `go` is set."""

    class Decoding:
        begun, go = threading.Event(), threading.Event()

    def read(content, **options):
        if content == LARGE:
            Decoding.begun.set()
            Decoding.go.wait(30)
        return read_picture(content, **options)

    monkeypatch.setattr("regard.data.pictures.read_picture", read)
    yield Decoding
    Decoding.go.set()


LARGE = png_bytes(np.zeros((1000, 1100), np.uint8))


@pytest.mark.slow
def test_others_are_answered_while_a_large_picture_is_decoded(pictures, decoding):
    with Live(pictures, tokens=15) as server, ThreadPoolExecutor(2) as pool:
        attacks = [pool.submit(post, server, sent(LARGE)) for _ in range(2)]
        assert decoding.begun.wait(30)
        assert post(server, FILE).status_code == 200
        with server.client() as client:
            assert client.get("/healthz").status_code == 200
            until(lambda: client.get("/api/info").json()["load"]["inside"] == 2)
        assert not any(attack.done() for attack in attacks)
        decoding.go.set()
        assert [attack.result().status_code for attack in attacks] == [200, 200]
