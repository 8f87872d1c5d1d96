"""Models that read recordings: files in base64, within limits of bytes and seconds."""

import base64
import io

import numpy as np
import pytest
import soundfile

from regard.data import FrameScaler, LogMel, SoundEncoder, Tokenizer
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import SIZES, client_of
from serve.test_app import events
from serve.test_http_errors import error
from sounds import RATE, tones
from untrained import write_run


def sound_run(path):
    """A run that reads recordings of up to 2 seconds."""
    options = {"ctc": 0.3, "ctc_search": 0.3, "rate": RATE, "bands": 9, "max_seconds": 2}
    mel = LogMel(RATE, 9)
    tables = [mel(samples) for samples, _ in tones(3)]
    src = SoundEncoder.of(FrameScaler.measure(tables, stack=4), mel, 2.0)
    tgt = Tokenizer.train("space", [" ".join("abcdefgh")])
    return write_run(path, src, tgt, "location", scale=1, beam=2, stack=4, **options, **SIZES)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory):
    path = sound_run(tmp_path_factory.mktemp("sounds") / "speech")
    return Models.load([path], device="cpu")


def sent(samples, rate=RATE, format="WAV"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format)
    return {"file": base64.b64encode(file.getvalue()).decode()}


def test_a_model_that_reads_recordings_answers_files(sounds):
    ((samples, _),) = tones(1, seed=6)
    with client_of(sounds) as client:
        info = client.get("/api/info").json()["models"][0]
        assert info["source"]["tokenizer"] == "sound"
        assert info["source"]["max_seconds"] == 2
        assert {".wav", ".flac"} <= set(info["source"]["files"])
        assert info["reads"] == "recordings of up to 2 seconds (.wav, .flac)"
        found = from_json(client.post("/api/run", json=sent(samples)).json())
        assert found.source.labels[:2] == ["0.00 s", "0.04 s"]
        assert found.source.backdrop.kind == "spectrogram"
        model = sounds.by_name["speech"]
        content = base64.b64decode(sent(samples)["file"])
        assert found.target.text == model(content).text
        (first, *_, (last, _)) = events(client.post("/api/stream", json=sent(samples)))
        assert first == ("source", {"tokens": found.source.labels})
        assert last == "done"
        asked = {**sent(samples, format="FLAC"), "target": "a b"}
        assert "ablation" in client.post("/api/check", json=asked).json()["derived"]


def test_what_is_no_recording_is_refused_and_no_file_is_opened(sounds, tmp_path):
    ((samples, _),) = tones(1, seed=6)
    soundfile.write(tmp_path / "secret.wav", samples, RATE)
    whole = base64.b64decode(sent(samples)["file"])
    wrong = {
        "too long": (sent(np.tile(samples, 9)), "must have from 0.02 to 2 seconds"),
        "cut": ({"file": base64.b64encode(whole[:900]).decode()}, "must be whole"),
        "empty": ({"file": ""}, "is empty"),
        "text": ({"file": base64.b64encode(b"hello " * 9).decode()}, "no format that it knows"),
        "silent": (sent(np.zeros(900)), "are silent"),
        "name": ({"file": str(tmp_path / "secret.wav")}, "base64"),
        "path": ({"text": str(tmp_path / "secret.wav")}, "must have file"),
    }
    with client_of(sounds) as client:
        for name, (body, reason) in wrong.items():
            told = error(client.post("/api/run", json=body), 422, "invalid")
            assert reason in told["message"], name
            assert "secret" not in str(told)
