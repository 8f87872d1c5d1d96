"""A toy dataset and a model of a few hundred weights for each input and output."""

import base64
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

import pictures
import sounds
from regard.data import LogMel

RECURRENT = ("embed=8", "hidden=8", "layers=1", "dropout=0.3")
TRANSFORMER = ("dim=8", "heads=2", "feed_forward=8", "layers=1", "dropout=0.3")
WORDS = ("red", "green", "blue", "old", "new", "car", "tree", "house")
TAGS = {word: "ADJ" if i < 5 else "NOUN" for i, word in enumerate(WORDS)}
PLACES = ("kitchen", "garden", "office", "hall")


@dataclass(frozen=True)
class Toy:
    """Toy data of one kind, and what to do with it.

    Attributes:
        task: its input and its output.
        write: writes a dataset of so many examples to a path; returns its file.
        settings: words of the command line after `regard train DATA`.
        source: what `show` and `check` are given; a name of a file lies in the folder of the data.
        field: the field of a request to a server.
    """

    task: str
    write: Callable[[Path, int, int], Path]
    settings: tuple[str, ...]
    source: str
    field: str = "text"

    def given(self, folder: Path) -> str:
        """Return the source as the command line has it."""
        return self.source if self.field == "text" else str(folder / self.source)

    def body(self, folder: Path) -> dict[str, Any]:
        """Return the request of a server for the source."""
        if self.field == "text":
            return {"text": self.source}
        if self.field == "frames":
            return {"frames": np.load(folder / self.source).tolist()}
        content = (folder / self.source).read_bytes()
        return {"file": base64.b64encode(content).decode()}


def _tsv(name: str, row: Callable[[random.Random], tuple[str, ...]], header: str = ""):
    def write(folder: Path, count: int, seed: int) -> Path:
        draw = random.Random(seed)
        lines = ["\t".join(row(draw)) for _ in range(count)]
        path = folder / f"{name}-{seed}.tsv"
        path.write_text("\n".join([header, *lines] if header else lines) + "\n", encoding="utf-8")
        return path

    return write


def _phrase(draw: random.Random) -> list[str]:
    return draw.choices(WORDS, k=draw.randint(2, 5))


def _reversed(draw: random.Random) -> tuple[str, str]:
    words = _phrase(draw)
    return " ".join(words), " ".join(reversed(words))


def _labelled(draw: random.Random) -> tuple[str, str]:
    words = _phrase(draw)
    return " ".join(words), TAGS[words[0]]


def _described(draw: random.Random) -> tuple[str, str]:
    words = _phrase(draw)
    return " ".join(words), "|".join(sorted({*words} & {"red", "old", "car"}) or ["none"])


def _tagged(draw: random.Random) -> tuple[str, str]:
    words = _phrase(draw)
    return " ".join(words), " ".join(map(TAGS.get, words))


def _rated(draw: random.Random) -> tuple[str, str]:
    words = _phrase(draw)
    return " ".join(words), str(50 + 10 * words.count("new") - 7 * words.count("old"))


def _story(draw: random.Random) -> tuple[str, str, str]:
    moves = [(draw.choice(("Mary", "John")), draw.choice(PLACES)) for _ in range(3)]
    text = " ".join(f"{who} went to the {where}." for who, where in moves)
    return text, f"Where is {moves[-1][0]}?", moves[-1][1]


def _plain(folder: Path, count: int, seed: int) -> Path:
    draw, path = random.Random(seed), folder / f"plain-{seed}.txt"
    path.write_text("".join(" ".join(_phrase(draw)) + "\n" for _ in range(count)))
    return path


def _chat(folder: Path, count: int, seed: int) -> Path:
    draw, path = random.Random(seed), folder / f"chat-{seed}.jsonl"
    lines = []
    for _ in range(count):
        words = _phrase(draw)
        turns = [("user", "hello"), ("assistant", "hi"), ("user", " ".join(words))]
        turns.append(("assistant", words[-1]))
        lines.append(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def _vectors(folder: Path, count: int, seed: int) -> Path:
    return sounds.write_npy(folder / f"vectors-{seed}.tsv", sounds.spoken(count, seed, longest=2))


def _measured(folder: Path, count: int, seed: int) -> Path:
    rows = [(table, f"{table[:, 0].sum():.3f}") for table, _ in sounds.spoken(count, seed, 2)]
    return sounds.write_npy(folder / f"measured-{seed}.tsv", rows)


def _recordings(folder: Path, count: int, seed: int) -> Path:
    return sounds.write_wavs(folder / f"sound-{seed}.tsv", sounds.tones(count, seed, longest=2))


def _pictures(folder: Path, count: int, seed: int) -> Path:
    return pictures.write_set(folder, count, f"pictures-{seed}.tsv")


def _heard(folder: Path, count: int, seed: int) -> Path:
    rows = [(samples, text.split()[0]) for samples, text in sounds.tones(count, seed, longest=2)]
    return sounds.write_wavs(folder / f"heard-{seed}.tsv", rows)


def _loud(folder: Path, count: int, seed: int) -> Path:
    rows = [(samples, f"{len(samples)}") for samples, _ in sounds.tones(count, seed, longest=2)]
    return sounds.write_wavs(folder / f"loud-{seed}.tsv", rows)


def _moments(folder: Path, count: int, seed: int) -> Path:
    mel, rows = LogMel(sounds.RATE, 8), []
    for samples, _ in sounds.tones(count, seed, longest=2):
        joined = -(-len(mel(samples)) // 4)  # frames that become one position
        rows.append((samples, " ".join(["tone", "rest"][i % 2] for i in range(joined))))
    return sounds.write_wavs(folder / f"moments-{seed}.tsv", rows)


def _events(folder: Path, count: int, seed: int) -> Path:
    rows = [
        (table, " ".join("high" if row[0] > 40 else "low" for row in table))
        for table, _ in sounds.spoken(count, seed, longest=2)
    ]
    return sounds.write_npy(folder / f"events-{seed}.tsv", rows)


def _named(folder: Path, count: int, seed: int) -> Path:
    rows = [(table, text.split()[0]) for table, text in sounds.spoken(count, seed, longest=2)]
    return sounds.write_npy(folder / f"named-{seed}.tsv", rows)


def _shown(answer: Callable[[str], str]) -> Callable[[Path, int, int], Path]:
    def write(folder: Path, count: int, seed: int) -> Path:
        path = pictures.write_set(folder, count, f"shown-{seed}.tsv", "L")
        rows = (line.split("\t") for line in path.read_text().splitlines())
        path.write_text("".join(f"{name}\t{answer(caption)}\n" for name, caption in rows))
        return path

    return write


def _colour(caption: str) -> str:
    return caption.split()[0]


def _colour_and_form(caption: str) -> str:
    return json.dumps(caption.split()[:2])


def _rating(caption: str) -> str:
    return str(len(caption))


def _cells(caption: str) -> str:
    return " ".join([_colour(caption)] * 15)


def _counted(draw: random.Random) -> tuple[str, str, str]:
    text, question, _ = _story(draw)
    return text, question, str(text.count("Mary"))


def _visited(draw: random.Random) -> tuple[str, str, str]:
    text, question, _ = _story(draw)
    return text, question, ", ".join(place for place in PLACES if place in text)


def _sets(
    write: Callable[[Path, list[Any]], Path], name: str, read: Callable[..., list[Any]]
) -> Callable[[Path, int, int], Path]:
    def save(folder: Path, count: int, seed: int) -> Path:
        rows = [(array, ";".join(sorted({*text.split()}))) for array, text in read(count, seed, 2)]
        return write(folder / f"{name}-{seed}.tsv", rows)

    return save


def _series(folder: Path, count: int, seed: int) -> Path:
    path, draw = folder / f"series-{seed}.csv", np.random.default_rng(seed)
    first, lines = datetime(2020, 1, 1), ["date,load,heat"]
    for i in range(count):
        load = 5 + math.sin(math.pi * i / 3) + 0.1 * draw.normal()
        lines.append(f"{first + timedelta(hours=i)},{load:.4f},{20 - 2 * load:.4f}")
    path.write_text("\n".join(lines) + "\n")
    return path


_HEADER = "story\tquestion\tanswer"
_STORIES = _tsv("stories", _story, _HEADER)
_ASKED = "Mary went to the hall. John went to the garden.\tWhere is John?"
_SOUND = ("rate=8000", "bands=8", "stack=4")
_FORECAST = ("horizon=4", "look_back=12", "patch_len=4", "stride=2")

#: by what a user would call them
TOYS = {
    "text to text": Toy(
        "text to tokens",
        _tsv("pairs", _reversed),
        ("tgt_tokenizer=space", *RECURRENT),
        "old tree",
    ),
    "plain text": Toy(
        "nothing to tokens", _plain, ("preset=lm-transformer", *TRANSFORMER), "old tree"
    ),
    "labels": Toy(
        "text to label",
        _tsv("labels", _labelled),
        ("preset=classifier-rnn", "ngrams=2", *RECURRENT),
        "old tree",
    ),
    "tags": Toy("text to tags", _tsv("tags", _tagged), ("preset=rnn", *RECURRENT), "old tree"),
    "questions, answer chosen": Toy(
        "story to label", _STORIES, ("preset=memory-network", "dim=8"), _ASKED
    ),
    "questions, answer pointed at": Toy(
        "story to span",
        _STORIES,
        ("preset=span", "src_tokenizer=word", "embed=8", "hidden=8"),
        _ASKED,
    ),
    "questions, answer written": Toy(
        "story to tokens", _STORIES, ("tgt_tokenizer=space", *RECURRENT), _ASKED
    ),
    "summaries": Toy(
        "text to tokens",
        _tsv("summaries", lambda draw: (" ".join(words := _phrase(draw)), words[0])),
        ("preset=pointer", "src_tokenizer=word", "tgt_tokenizer=word", *RECURRENT),
        "old tree",
    ),
    "dialogue": Toy(
        "text to tokens",
        _chat,
        ("tgt_tokenizer=space", *RECURRENT),
        "user: hello | user: old tree",
    ),
    "vectors": Toy("frames to tokens", _vectors, RECURRENT, "vectors-1/0.npy", "frames"),
    "sound": Toy(
        "sound to tokens",
        _recordings,
        ("rate=8000", "bands=8", "stack=4", *RECURRENT),
        "sound-1/0.wav",
        "file",
    ),
    "pictures": Toy(
        "picture to tokens",
        _pictures,
        ("preset=show-attend-tell", "patch=2", "tgt_tokenizer=space", *RECURRENT),
        "images/0.png",
        "file",
    ),
    "numbers of texts": Toy(
        "text to number",
        _tsv("rated", _rated),
        ("numbers=true", "preset=classifier-rnn", "src_tokenizer=space", "ngrams=2", *RECURRENT),
        "old tree",
    ),
    "numbers of vectors": Toy(
        "frames to number",
        _measured,
        ("numbers=true", "preset=classifier-transformer", *TRANSFORMER),
        "measured-1/0.npy",
        "frames",
    ),
    "series": Toy(
        "series to forecast", _series, (*_FORECAST, *TRANSFORMER), "series-1.csv", "file"
    ),
    "keywords in sound": Toy(
        "sound to label",
        _heard,
        (*_SOUND, "preset=classifier-rnn", *RECURRENT),
        "heard-1/0.wav",
        "file",
    ),
    "numbers of sound": Toy(
        "sound to number",
        _loud,
        (*_SOUND, "numbers=true", "preset=classifier-rnn", *RECURRENT),
        "loud-1/0.wav",
        "file",
    ),
    "moments of sound": Toy(
        "sound to tags",
        _moments,
        (*_SOUND, "preset=rnn", "tgt_tokenizer=space", "max_tgt_len=40", *RECURRENT),
        "moments-1/0.wav",
        "file",
    ),
    "labels of vectors": Toy(
        "frames to label", _named, ("preset=classifier-rnn", *RECURRENT), "named-1/0.npy", "frames"
    ),
    "events in vectors": Toy(
        "frames to tags",
        _events,
        ("preset=rnn", "tgt_tokenizer=space", *RECURRENT),
        "events-1/0.npy",
        "frames",
    ),
    "labels of pictures": Toy(
        "picture to label",
        _shown(_colour),
        ("preset=classifier-transformer", "patch=2", *TRANSFORMER),
        "images/0.png",
        "file",
    ),
    "numbers of pictures": Toy(
        "picture to number",
        _shown(_rating),
        ("numbers=true", "preset=classifier-rnn", "patch=2", *RECURRENT),
        "images/0.png",
        "file",
    ),
    "cells of pictures": Toy(
        "picture to tags",
        _shown(_cells),
        ("preset=rnn", "patch=2", "tgt_tokenizer=space", "max_tgt_len=20", *RECURRENT),
        "images/0.png",
        "file",
    ),
    "numbers of stories": Toy(
        "story to number",
        _tsv("counted", _counted, _HEADER),
        ("numbers=true", "preset=classifier-rnn", "src_tokenizer=word", *RECURRENT),
        _ASKED,
    ),
    "several labels": Toy(
        "text to labels",
        _tsv("described", _described),
        ("separator=|", "preset=classifier-rnn", "ngrams=2", *RECURRENT),
        "old tree",
    ),
    "several labels of stories": Toy(
        "story to labels",
        _tsv("visited", _visited, _HEADER),
        ("separator=,", "preset=classifier-self-attentive", "src_tokenizer=word", *RECURRENT),
        _ASKED,
    ),
    "several labels of vectors": Toy(
        "frames to labels",
        _sets(sounds.write_npy, "marked", sounds.spoken),
        ("separator=;", "preset=classifier-transformer", *TRANSFORMER),
        "marked-1/0.npy",
        "frames",
    ),
    "several labels of sound": Toy(
        "sound to labels",
        _sets(sounds.write_wavs, "rung", sounds.tones),
        (*_SOUND, "separator=;", "preset=classifier-rnn", *RECURRENT),
        "rung-1/0.wav",
        "file",
    ),
    "several labels of pictures": Toy(
        "picture to labels",
        _shown(_colour_and_form),
        ("separator=json", "preset=classifier-rnn", "patch=2", *RECURRENT),
        "images/0.png",
        "file",
    ),
}
