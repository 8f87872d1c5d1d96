"""Log-mel frames against a computation by hand, recordings of every form, and what is refused."""

import io
import json
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from regard.data import FrameScaler, LogMel, SoundEncoder
from regard.data.error_hints import BadLine
from regard.data.sounds import SoundReader
from regard.errors import DataError
from sounds import tones

MEL = LogMel(8000, 13, 25.0, 10.0)


def by_hand(samples, rate, bands, window, step, fft):
    """Frames by sums over single samples and triangles over single frequencies."""
    heard = np.concatenate([samples[:1], samples[1:] - 0.97 * samples[:-1]])
    shape = 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(window) / (window - 1))

    def to_mel(hz):
        return 2595 * np.log10(1 + hz / 700)

    def to_hz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    corners = to_hz(np.linspace(to_mel(60), to_mel(rate / 2), bands + 2))
    rows = []
    for start in range(0, len(heard) - window + 1, step):
        part = heard[start : start + window] * shape
        angles = 2 * np.pi * np.outer(np.arange(fft // 2 + 1), np.arange(window)) / fft
        power = (part @ np.cos(angles).T) ** 2 + (part @ np.sin(angles).T) ** 2
        row = []
        for left, middle, right in zip(corners, corners[1:], corners[2:], strict=False):
            total = 0.0
            for k, energy in enumerate(power):
                hz = k * rate / fft
                if left < hz <= middle:
                    total += energy * (hz - left) / (middle - left)
                elif middle < hz < right:
                    total += energy * (right - hz) / (right - middle)
            row.append(np.log10(total + 1e-8))
        rows.append(row)
    return np.array(rows)


def test_frames_are_those_of_the_definition():
    samples = np.random.default_rng(0).normal(size=777).astype(np.float32) * 0.1
    expected = by_hand(samples.astype(np.float64), 8000, 13, 200, 80, 256)
    found = MEL(samples)
    assert found.dtype == np.float32
    assert found.shape == expected.shape == (8, 13)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    ((samples, _),) = tones(1, seed=3)
    soundfile.write(tmp_path / "a.wav", samples, 8000)
    soundfile.write(tmp_path / "a.flac", samples, 8000)
    soundfile.write(tmp_path / "stereo.wav", np.stack([samples, samples], axis=1), 8000)
    soundfile.write(tmp_path / "fast.wav", np.repeat(samples, 2), 16000)
    return tmp_path


def reader(folder, most=30.0):
    return SoundReader(folder, MEL, most)


def test_files_content_and_samples_have_the_same_frames(folder):
    read = reader(folder)
    plain = read.table("a.wav")
    samples, rate = soundfile.read(folder / "a.wav", dtype="float32")
    for same in (
        read.table("a.flac"),
        read.table("stereo.wav"),
        read.parse((folder / "a.wav").read_bytes()),
        read.parse((samples, rate)),
        read.parse((torch.from_numpy(samples), rate)),
        read.parse({"array": samples, "sampling_rate": rate}),
        read.parse(plain),
    ):
        np.testing.assert_allclose(same, plain, atol=1e-2)  # flac rounds samples otherwise


@pytest.mark.long
def test_another_rate_is_resampled(folder):
    plain, resampled = (reader(folder).table(name) for name in ("a.wav", "fast.wav"))
    assert abs(len(resampled) - len(plain)) <= 1
    assert np.abs(resampled[1:-2, :9] - plain[1 : len(resampled) - 2, :9]).mean() < 0.2


def write_float(path: Path, samples) -> None:
    soundfile.write(path, np.asarray(samples, np.float32), 8000, subtype="FLOAT")


def bad_files(folder: Path) -> dict[str, str]:
    """Files that are no recordings, and a part of what is said of each."""
    whole = (folder / "a.wav").read_bytes()
    (folder / "cut.wav").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.wav").write_bytes(b"")
    (folder / "text.wav").write_text("not a sound\n" * 9)
    soundfile.write(folder / "silent.wav", np.zeros(4000), 8000)
    soundfile.write(folder / "short.wav", np.ones(40) / 2, 8000)
    sound = np.sin(np.arange(8000)) / 2
    sound[4000] = np.nan
    write_float(folder / "nan.wav", sound)
    header = bytearray(whole[:44])
    hour = 8000 * 3600 * 2
    header[4:8], header[40:44] = struct.pack("<I", hour + 36), struct.pack("<I", hour)
    with open(folder / "hour.wav", "wb") as file:
        file.write(header)
        file.truncate(hour + 44)  # a file with a hole takes no room
    (folder / "folder.wav").mkdir()
    return {
        "cut.wav": "a recording must be whole, but this file has",
        "empty.wav": "but this one is empty",
        "text.wav": "but this one is of no format that it knows",
        "silent.wav": "all 0.50 seconds are silent",
        "short.wav": "must have from 0.02 to 30 seconds",
        "nan.wav": "samples must be finite numbers, but one at 0.50 seconds is not",
        "hour.wav": "which the model reads at once, but this one has 3600.00",
        "none.wav": "there is no file",
        "folder.wav": "it",
    }


def test_each_thing_that_is_wrong_with_a_file_is_said(folder):
    for name, reason in bad_files(folder).items():
        with pytest.raises(BadLine) as caught:
            reader(folder).table(name)
        assert caught.value.reason.startswith(f"{folder / name}: ")
        assert reason in caught.value.reason, name


def content(rate, samples=400, **options):
    file = io.BytesIO()
    soundfile.write(file, np.ones(samples) / 2, rate, **{"format": "WAV", **options})
    return file.getvalue()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (content(10_000_019, 210_000), "at most 768,000 samples per second"),
        (content(65_539, 2_000), "65,539 Hz is to 8,000 Hz as 65,539 to 8,000"),
        (content(8000, format="AU"), "is of no format that it knows"),
        (content(8000, format="SVX", subtype="PCM_16"), "is of no format that it knows"),
    ],
)
def test_no_memory_is_taken_for_odd_rates_and_formats(folder, monkeypatch, sent, reason):
    monkeypatch.setattr("scipy.signal.resample_poly", lambda *_: pytest.fail("it resamples"))
    with pytest.raises(BadLine) as caught:
        reader(folder).parse(sent)
    assert reason in caught.value.reason


def test_a_header_that_points_before_the_file_prints_no_traceback(folder, capfd):
    whole = content(8000, format="AIFF", subtype="PCM_16")
    for place in range(12, 60, 3):
        with suppress(BadLine):
            reader(folder).parse(whole[:place] + whole[place + 1 :])
    assert "Traceback" not in capfd.readouterr().err


def test_an_array_alone_is_refused(folder):
    samples = np.ones(400, np.float32)
    with pytest.raises(BadLine, match="samples must come with their rate"):
        reader(folder).parse(samples)
    with pytest.raises(BadLine, match="log-mel frames of 13 bands, but it has 2"):
        reader(folder).parse(np.ones((400, 2), np.float32))
    with pytest.raises(BadLine, match="must be finite numbers"):
        reader(folder).parse((np.full(400, np.nan), 8000))


@pytest.fixture
def encoder():
    tables = [MEL(samples) for samples, _ in tones(5)]
    return SoundEncoder.of(FrameScaler.measure(tables, stack=4), MEL, 7.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rate": 0}, "rate"),
        ({"window_ms": -1}, "window_ms"),
        ({"max_seconds": 1e9}, "max_seconds"),
        ({"mean": [0.0]}, "13 numbers"),
        ({"features": 2**40}, "features"),
    ],
)
def test_a_file_with_other_values_is_refused(encoder, tmp_path, change, reason):
    encoder.save(tmp_path / "source.json")
    content = {**json.loads((tmp_path / "source.json").read_text()), **change}
    content.pop("checksum", None)
    with pytest.raises(DataError, match=reason):
        SoundEncoder.from_json("x", content)


def test_labels_are_times(encoder):
    assert encoder.labels(9) == ["0.00 s", "0.04 s", "0.08 s"]
    assert encoder.seconds(9) == pytest.approx(0.09)
    assert encoder.positions(9) == 3


@pytest.mark.parametrize("bands", [80, 128])
def test_frames_of_whisper_are_those_of_its_extractor(bands):
    transformers = pytest.importorskip("transformers")
    samples = np.concatenate([heard for heard, _ in tones(5, rate=16_000)])
    extract = transformers.WhisperFeatureExtractor(feature_size=bands, chunk_length=5)
    expected = extract(samples, sampling_rate=16_000).input_features[0].T
    found = LogMel(16_000, bands, whisper_seconds=5.0)(samples)
    assert found.shape == (500, bands)
    assert np.abs(found - expected).max() < 1e-5
