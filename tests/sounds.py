"""Made-up sounds: each symbol is a pattern over three frames, and lies in noise."""

import json
from pathlib import Path

import numpy as np

NAMES = "abcdef"
FEATURES = 5
#: far from 0, and on scales of their own
PATTERNS = 40 + np.array([1, 30, 0.1, 5, 2]) * np.random.default_rng(7).normal(
    size=(len(NAMES), 3, FEATURES)
)
NOISE = 0.3 * PATTERNS.std(axis=(0, 1))


def spoken(count, seed=1, longest=4):
    """Tables and what they say, `a b c`."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        symbols = draw.integers(len(NAMES), size=draw.integers(1, longest + 1))
        frames = PATTERNS[symbols].reshape(-1, FEATURES)
        heard = frames + NOISE * draw.normal(size=frames.shape)
        rows.append((heard.astype(np.float32), " ".join(NAMES[s] for s in symbols)))
    return rows


def write_jsonl(path: Path, rows) -> Path:
    lines = (json.dumps({"src": table.tolist(), "tgt": text}) + "\n" for table, text in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def write_npy(path: Path, rows) -> Path:
    """A TSV file of names, and the files beside it."""
    folder = path.with_suffix("")
    folder.mkdir()
    lines = []
    for i, (table, text) in enumerate(rows):
        np.save(folder / f"{i}.npy", table)
        lines.append(f"{folder.name}/{i}.npy\t{text}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path


#: samples per second, and seconds of a symbol, of recordings
RATE = 8000
TONE_SECONDS = 0.12


def tones(count, seed=1, longest=4, rate=RATE):
    """Samples and what they say, `a b c`: each symbol is a tone, with silence after it."""
    draw = np.random.default_rng(seed)
    size = round(rate * TONE_SECONDS)
    time = np.arange(size) / rate
    rows = []
    for _ in range(count):
        symbols = draw.integers(len(NAMES), size=draw.integers(1, longest + 1))
        parts = []
        for symbol in symbols:
            tone = 0.4 * np.sin(2 * np.pi * 300 * 1.5**symbol * time)
            parts += [tone, np.zeros(size // 3)]
        samples = np.concatenate(parts)
        heard = samples + 0.01 * draw.normal(size=samples.shape)
        rows.append((heard.astype(np.float32), " ".join(NAMES[s] for s in symbols)))
    return rows


def write_wavs(path: Path, rows, rate=RATE, suffix=".wav") -> Path:
    """A TSV file of names, and the recordings beside it."""
    import soundfile

    folder = path.with_suffix("")
    folder.mkdir()
    lines = []
    for i, (samples, text) in enumerate(rows):
        soundfile.write(folder / f"{i}{suffix}", samples, rate)
        lines.append(f"{folder.name}/{i}{suffix}\t{text}\n")
    path.write_text("".join(lines), encoding="utf-8")
    return path
