"""Models that read vectors: frames as lists of numbers."""

import numpy as np
import pytest

from regard.data import FrameScaler, Tokenizer
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import SIZES, client_of
from serve.test_app import events
from serve.test_http_errors import error
from untrained import write_run


@pytest.fixture(scope="session")
def vectors(tmp_path_factory):
    """A model that reads frames of three numbers."""
    path = tmp_path_factory.mktemp("vectors") / "speech"
    src = FrameScaler(3, 2, (0.0, 1.0, 0.0), (1.0, 2.0, 1.0))
    tgt = Tokenizer.train("space", [" ".join("abcdefgh")])
    write_run(path, src, tgt, "luong", scale=1, beam=2, stack=2, **SIZES)
    return Models.load([path], device="cpu")


FRAMES = [[0.1, 2, -3], [4, 5, 6.5], [7, 8, 9]]


def test_a_model_that_reads_vectors_answers_frames(vectors):
    with client_of(vectors) as client:
        info = client.get("/api/info").json()["models"][0]
        assert info["source"] == {"tokenizer": "vectors", "numbers": 3, "stack": 2}
        assert "frames of 3 numbers" in info["reads"]
        model = vectors.by_name["speech"]
        found = from_json(client.post("/api/run", json={"frames": FRAMES}).json())
        assert found.source.labels == ["0-1", "2"]
        assert found.target.text == model(FRAMES).text
        (first, *_, (last, _)) = events(client.post("/api/stream", json={"frames": FRAMES}))
        assert first == ("source", {"tokens": ["0-1", "2"]})
        assert last == "done"
        asked = {"frames": FRAMES, "target": "a b"}
        assert "ablation" in client.post("/api/check", json=asked).json()["derived"]


def test_frames_that_cannot_be_read_are_refused_and_no_file_is_opened(vectors, tmp_path):
    with client_of(vectors) as client:
        np.save(tmp_path / "secret.npy", np.ones((4, 3)))
        for wrong in (
            {"text": str(tmp_path / "secret.npy")},
            {"frames": FRAMES, "text": "a"},
            {},
            {"frames": []},
            {"frames": [[1, 2]]},
            {"frames": [[1, 2, 3], [1, 2]]},
            {"frames": [[1, 2, "3"]]},
        ):
            error(client.post("/api/run", json=wrong), 422, "invalid")
        many = {"frames": [[1, 2, 3]] * 41}
        error(client.post("/api/run", json=many), 413, "too_long")
        most = {"frames": [[-1.2345678901234567e-38] * 3] * 40}
        assert client.post("/api/run", json=most).status_code == 200
