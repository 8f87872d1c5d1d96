"""Files and run folders that the pages call the reader's own, as small as they can be."""

import json
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import pictures
import sounds
from cli.tools import done, regard, tagged_pairs, words
from imported import zoo
from pretrained import families, media
from tasks.toys import TOYS

#: added to what `regard train` is told in a page
BRIEF = ("steps=1", "size=tiny", "device=cpu", "eval_pairs=4")


def _text(content: str):
    return lambda path: path.write_text(content, encoding="utf-8")


def _side(column: int, count: int = 60):
    return _text("".join(line.split("\t")[column] + "\n" for line in _pairs(count)))


def _pairs(count: int) -> list[str]:
    return [f"{word} {word[:3]}\t{word[::-1]}" for word in words(count)]


def _toy(name: str, count: int = 60):
    """Data of a kind, under the name of a page."""

    def write(path: Path) -> None:
        made = TOYS[name].write(path.parent, count, 1)
        made.rename(path)

    return write


def _vectors(dim: int):
    rows = [f"{word} {' '.join(['0.5'] * dim)}\n" for word in ("red", "green", "blue", "car")]

    def write(path: Path) -> None:
        if path.suffix == ".gz":
            import gzip

            head = f"{len(rows)} {dim}\n"
            path.write_bytes(gzip.compress((head + "".join(rows)).encode()))
        else:
            path.write_text("".join(rows))

    return write


def _reviews(path: Path) -> None:
    """A table with a header and an id."""
    rows = [f"{i},a {word} film,{'good' if i % 2 else 'bad'}" for i, word in enumerate(words(60))]
    path.write_text("\n".join(["id,text,label", *rows]) + "\n")


def _squad(path: Path) -> None:
    rows = []
    for i, word in enumerate(words(60)):
        text = f"The word of {word} is red and old."
        answer = {"text": ["red" if i % 2 else "old"], "answer_start": [text.index("red")]}
        answer["answer_start"] = [text.index(answer["text"][0])]
        rows.append({"context": text, "question": f"What is {word}?", "answers": answer})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _parquet(path: Path) -> None:
    path.mkdir()
    pq.write_table(pa.table({"text": ["attention", "regard"]}), path / "0.parquet")


def _table(path: Path) -> None:
    sources, targets = zip(*(line.split("\t") for line in _pairs(60)), strict=True)
    pq.write_table(pa.table({"src": sources, "tgt": targets}), path)


def _pretrained(family: str):
    def write(path: Path) -> None:
        import transformers

        kind = media if family == "vit" else families
        kind.save(transformers, path, family)

    return write


def _importable(family: str):
    def write(path: Path) -> None:
        zoo.save(family, path, dtype=torch.float32)

    return write


def _picture(path: Path) -> None:
    from PIL import Image

    Image.fromarray(media.picture()).save(path)


def _recording(path: Path) -> None:
    import soundfile

    soundfile.write(path, media.sweep(), media.RATE)


_TEXTS = _text("".join(f"{a} {b} the cat sat\n" for a in "abcdefgh" for b in "ijkl"))
_ROWS = _text("".join(line + "\n" for line in _pairs(60)))
#: what writes a file of this name
FILES = {
    **dict.fromkeys(("pairs.tsv", "test.tsv", "dev.tsv", "abstracts.tsv"), _ROWS),
    **dict.fromkeys(("test.en", "train.en"), _side(0)),
    "train.fr": _side(1),
    "words.tsv": _text("".join(f"{w}\t{' '.join(w)}\n" for w in words(60))),
    "forms.tsv": _text(tagged_pairs(60)),
    "gold.txt": _text("0-0 1-1\n" * 60),
    **dict.fromkeys(("texts.txt", "text.txt", "train.txt", "valid.txt", "test.txt"), _TEXTS),
    "words.txt": _text("attention\nregard\n"),
    "prompts.txt": _text("the cat\nthe dog\n"),
    "chapter.txt": _text("the cat sat on a mat and the dog ran to a tree"),
    "reviews.tsv": _toy("labels"),
    "reviews.csv": _reviews,
    "iris.csv": _text(
        "sepal,petal,species\n"
        + "".join(f"{i % 9}.{i % 7},{i % 5 + i % 2}.5,{'ab'[i % 2]}\n" for i in range(60))
    ),
    "questions.jsonl": _squad,
    "squad.jsonl": _squad,
    "babi.tsv": _toy("questions, answer chosen"),
    "chats.jsonl": _toy("dialogue"),
    "speech.tsv": _toy("sound"),
    "pictures": partial(pictures.write_classes, count=40),
    "animals": partial(pictures.write_classes, count=40),
    "somebody.jpg": _picture,
    "cat.jpg": _picture,
    "speech.wav": _recording,
    "series.csv": _toy("series", 1000),
    "frames.jsonl": lambda path: sounds.write_jsonl(path, sounds.spoken(60)),
    "glove.6B.100d.txt": _vectors(100),
    "glove.6B.300d.txt": _vectors(300),
    "cc.fr.300.vec.gz": _vectors(300),
    "in": _parquet,
    "experiments": Path.mkdir,
    "a": lambda path: (path.mkdir(), _ROWS(path / "0.tsv")),
    "b.parquet": _table,
    **{f"my-{name}": _pretrained(name) for name in ("marian", "bert", "vit")},
    **{f"my-{name}": _importable(name) for name in ("llama", "whisper")},
    "folders/gpt2": _pretrained("gpt2"),
    "my-translator": _importable("marian"),
    "folders/other": _pretrained("llama"),
}
#: the data of a run, and how it is trained
RUNS = {
    "runs/enfr": ("pairs.tsv", "-p", "transformer", "steps=2", "eval_every=1"),
    "runs/a": ("pairs.tsv", "steps=2", "eval_every=1"),
    "runs/b": ("pairs.tsv", "seed=2"),
    "runs/c": ("pairs.tsv", "seed=4"),
    "runs/text": ("text.txt", "-p", "lm-self-attentive"),
    "runs/demo": ("demo.tsv", "tgt_tokenizer=space"),
    "RUN": ("pairs.tsv", "seed=3"),
}
FILES["demo.tsv"] = _text(
    "".join(f"{w.upper()}\t{' '.join(w.upper())}\n" for w in words(60, letters="tionaecknhgb"))
)


def provide(name: str, folder: Path, kept: Path) -> None:
    """Make a file or a run folder that a page names, unless the page has made it before.

    Args:
        name: the word of a command.
        folder: where the commands run.
        kept: a folder of what other pages have needed.
    """
    name = name.removeprefix("./").rstrip("/").partition("@")[0].partition("/*")[0]
    if (name not in FILES and name not in RUNS) or (folder / name).exists():
        return
    made = kept / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        if name in FILES:
            FILES[name](made)
        else:
            data, *settings = RUNS[name]
            provide(data, kept, kept)
            done(regard("train", kept / data, "-o", made, "-q", *BRIEF, *settings))
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    # files that a data file names lie beside it, or below its own folder
    for path in (made, *made.parent.glob("sound-1"), *made.parent.glob("vectors-1")):
        copy = shutil.copytree if path.is_dir() else shutil.copy
        target = folder / path.relative_to(kept)
        if not target.exists():
            copy(path, target)
