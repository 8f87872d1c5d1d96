"""Train on files as people have them, two minutes and without a setting, beside the simple way.

    python -m benchmarks.quality.two_minutes make ../shared/data FILES     # the files
    python -m benchmarks.quality.two_minutes simple FILES                  # needs scikit-learn
    python -m benchmarks.quality.two_minutes train FILES --seeds 3 --at-once 7 --out RESULT

Each run is `regard train FILE --minutes 2` on two cores, then `regard evaluate` on test data that
neither has seen. Of a series, the test rows are its last ones, and the simple way is the best of
the last value, the last season and a linear map, which `regard evaluate` prints beside the model.
"""

import argparse
import csv
import gzip
import io
import json
import lzma
import math
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks import harness

#: pictures of a class that are trained on, and tested
PICTURES, TEST_PICTURES = 500, 200
CORES: Final = 2
#: of runs
ENVIRONMENT: Final = {**os.environ, "OMP_NUM_THREADS": str(CORES), "CUDA_VISIBLE_DEVICES": ""}
DIGITS: Final = tuple("zero one two three four five six seven eight nine".split())  # noqa: SIM905


class Case(NamedTuple):
    """A data set: its training file, its test file, and the metric that `regard evaluate` gives."""

    train: str
    test: str
    metric: str
    higher: bool = True


CASES: Final = {
    "reviews": Case("train.csv", "test.csv", "accuracy"),
    "stars": Case("train.csv", "test.csv", "mse", higher=False),
    "digits": Case("train", "test", "accuracy"),
    "spoken": Case("train.csv", "test.csv", "accuracy"),
    "etth1": Case("ETTh1.csv", "ETTh1.csv", "mse", higher=False),
    "exchange": Case("exchange.csv", "exchange.csv", "mse", higher=False),
    "illness": Case("illness.csv", "illness.csv", "mse", higher=False),
    "squad": Case("train.json", "test.json", "f1"),
    "shakespeare": Case("train.txt", "test.txt", "nats per character", higher=False),
    "ptb": Case("train.txt", "test.txt", "nats per character", higher=False),
    "chinese": Case("train.tsv", "test.tsv", "chrf"),
    "cmudict": Case("train.csv", "test.csv", "exact"),
    "babi": Case("train.jsonl", "test.jsonl", "em"),
}


def _open(file: Path) -> io.TextIOBase:
    opened = lzma.open if file.suffix == ".xz" else gzip.open
    return opened(file, "rt", encoding="utf-8", newline="")  # type: ignore[return-value]


def _table(
    file: Path, names: Sequence[str], rows: Iterable[Sequence[Any]], mark: str = ","
) -> None:
    with open(file, "w", encoding="utf-8", newline="") as out:
        csv.writer(out, delimiter=mark, lineterminator="\n").writerows([names, *rows])


def _sst(data: Path, folder: Path, *, stars: bool) -> None:
    for part in ("train", "test"):
        rows = []
        for i, tree in enumerate(_open(data / "sst" / f"trees.{part}.txt.gz")):
            degree, words = int(tree[1]), " ".join(re.findall(r" ([^()\s]+)\)", tree))
            if stars or degree != 2:
                rows.append(
                    (i, words, f"{degree + 1:.1f}" if stars else ["neg", "pos"][degree > 2])
                )
        _table(folder / f"{part}.csv", ("id", "sentence", "stars" if stars else "label"), rows)


def _digits(data: Path, folder: Path) -> None:
    from PIL import Image

    for part, most in (("train", PICTURES), ("t10k", TEST_PICTURES)):
        images, labels = (
            lzma.decompress((data / "mnist" / f"{part}-{kind}-ubyte.xz").read_bytes())
            for kind in ("images-idx3", "labels-idx1")
        )
        pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 28, 28)
        done: Counter[int] = Counter()
        for i, digit in enumerate(labels[8:]):
            done[digit] += 1
            if done[digit] <= most:
                own = folder / ("test" if part == "t10k" else part) / str(digit)
                own.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[i]).save(own / f"{i}.jpg", quality=95)


def _spoken(data: Path, folder: Path) -> None:
    with lzma.open(data / "fsdd" / "logmel32_uint8.npz.xz") as file:
        found = np.load(io.BytesIO(file.read()))
    ends = np.cumsum(found["lengths"])
    rows: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for i, end in enumerate(ends.tolist()):
        part = "test" if found["index"][i] < 5 else "train"
        (folder / part).mkdir(exist_ok=True)
        frames = found["features"][end - found["lengths"][i] : end].astype(np.float32) / 255
        np.save(folder / part / f"{i}.npy", frames)
        rows[part].append(
            (
                f"{part}/{i}.npy",
                DIGITS[found["digit"][i]],
            )
        )
    for part, own in rows.items():
        _table(folder / f"{part}.csv", ("file", "label"), own)


def _squad(data: Path, folder: Path) -> None:
    for part in ("train", "test"):
        pages: dict[str, list[Any]] = defaultdict(list)
        for line in _open(data / "squad11_part" / f"{part}.jsonl.xz"):
            row = json.loads(line)
            asked = [
                {
                    "id": one["id"],
                    "question": one["q"],
                    "answers": [{"text": text, "answer_start": at} for text, at in one["a"]],
                }
                for one in row["qas"]
            ]
            pages[row["title"]].append({"context": row["context"], "qas": asked})
        content = [{"title": title, "paragraphs": own} for title, own in pages.items()]
        (folder / f"{part}.json").write_text(json.dumps({"version": "1.1", "data": content}))


def make(data: Path, folder: Path) -> None:
    """Write the files of all cases."""
    for name in CASES:
        (folder / name).mkdir(parents=True, exist_ok=True)
    _sst(data, folder / "reviews", stars=False)
    _sst(data, folder / "stars", stars=True)
    _digits(data, folder / "digits")
    _spoken(data, folder / "spoken")
    _squad(data, folder / "squad")
    (folder / "etth1" / "ETTh1.csv").write_text(_open(data / "ett" / "ETTh1.csv.gz").read())
    illness = _open(data / "illness" / "national_illness.csv.xz").read()
    (folder / "illness" / "illness.csv").write_text(illness)
    days = np.datetime64("1990-01-01") + np.arange(7588)
    rates = [line.split(",") for line in _open(data / "exchange_rate" / "exchange_rate.txt.gz")]
    _table(
        folder / "exchange" / "exchange.csv",
        ("date", *(f"rate{i}" for i in range(8))),
        ((day, *map(float, row)) for day, row in zip(days, rates, strict=True)),
    )
    play = _open(data / "tinyshakespeare" / "input.txt.gz").read()
    cut = len(play) * 9 // 10
    (folder / "shakespeare" / "train.txt").write_text(play[:cut])
    (folder / "shakespeare" / "test.txt").write_text(play[cut:])
    for part in ("train", "test"):
        text = _open(data / "ptb" / f"ptb.{part}.txt.gz").read()
        (folder / "ptb" / f"{part}.txt").write_text(text)
        rows = [
            line.rstrip("\n").split("\t")
            for line in _open(data / "tatoeba_eng_cmn" / f"{part}.tsv.xz")
        ][1:]
        _table(folder / "chinese" / f"{part}.tsv", ("en", "zh"), [row[:2] for row in rows], "\t")
        source = {"train": "train", "test": "test.multiref"}[part]
        words = [
            line.rstrip("\n").split("\t")[:2]
            for line in _open(data / "cmudict_g014b2b" / f"{source}.tsv.gz")
        ]
        _table(folder / "cmudict" / f"{part}.csv", ("word", "pronunciation"), words)
        asked = csv.DictReader(
            _open(data / "babi" / {"train": "train_1k.tsv.xz", "test": "test.tsv.xz"}[part]),
            delimiter="\t",
            quoting=csv.QUOTE_NONE,
        )
        lines = [
            json.dumps(
                {key: row[key].replace(" | ", " ") for key in ("story", "question", "answer")}
            )
            for row in asked
        ]
        (folder / "babi" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def _columns(file: Path) -> list[list[str]]:
    with open(file, encoding="utf-8", newline="") as lines:
        mark = "\t" if file.suffix == ".tsv" else ","
        return [
            list(column) for column in zip(*[*csv.reader(lines, delimiter=mark)][1:], strict=True)
        ]


def _answers(file: Path) -> list[list[str]]:
    """Return stories, questions and answers."""
    if file.suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        return [[row[key] for row in rows] for key in ("story", "question", "answer")]
    pages = json.loads(file.read_text())["data"]
    asked = [
        (part["context"], one)
        for page in pages
        for part in page["paragraphs"]
        for one in part["qas"]
    ]
    answers = [one["answers"][0] for _, one in asked]
    return [
        [c for c, _ in asked],
        [one["question"] for _, one in asked],
        [a["text"] if isinstance(a, dict) else a for a in answers],
    ]


def _simple_labels(train: Any, right: Any, test: Any, gold: Any) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=1000)
    )
    return float(model.fit(train, right).score(test, gold))


def _simple_stars(train: Any, right: Any, test: Any, gold: Any) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), RidgeCV([0.3, 1, 3, 10]))
    found = model.fit(train, np.array(right, float)).predict(test)
    return float(((found - np.array(gold, float)) ** 2).mean())


def _linear(train: Any, right: Any, test: Any, gold: Any) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    return float(model.fit(train, right).score(test, gold))


def _nearest(train: Any, right: Any, test: Any) -> list[str]:
    """Return the answer of the training source that has most letter n-grams in common."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    features = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4))
    known, asked = features.fit_transform(train), features.transform(test)
    found = []
    for first in range(0, asked.shape[0], 200):
        found += [
            right[i] for i in np.asarray((asked[first : first + 200] @ known.T).argmax(1)).ravel()
        ]
    return found


def _ngram_nats(train: str, test: str, order: int) -> float:
    """Return the nats per character of an n-gram model of characters by Witten and Bell."""
    counts: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
    for i, char in enumerate(train):
        for n in range(min(i + 1, order)):
            counts[n][train[i - n : i]][char] += 1
    size, total = len(set(train) | set(test)), 0.0
    for i, char in enumerate(test):
        p = 1 / size
        for n in range(min(i + 1, order)):
            if seen := counts[n].get(test[i - n : i]):
                whole, kinds = seen.total(), len(seen)
                p = (seen[char] + kinds * p) / (whole + kinds)
        total -= math.log(p)
    return total / len(test)


def _pixels(folder: Path) -> tuple[np.ndarray, list[str]]:
    from PIL import Image

    files = sorted(folder.glob("*/*.jpg"))
    return np.stack([np.asarray(Image.open(f)).ravel() for f in files]), [
        f.parent.name for f in files
    ]


def _bands(file: Path) -> tuple[np.ndarray, list[str]]:
    names, labels = _columns(file)
    loaded = [np.load(file.parent / name) for name in names]
    return np.stack([np.concatenate([x.mean(0), x.std(0)]) for x in loaded]), labels


def simple(folder: Path) -> dict[str, float]:
    """Return the score of the simple way for each case, but for series."""
    from sacrebleu import corpus_chrf

    from regard.evaluation import METRICS

    def both(name: str, read: Any = _columns) -> Any:
        case = CASES[name]
        return [*read(folder / name / case.train), *read(folder / name / case.test)]

    found = {}
    _, train, right, _, test, gold = both("reviews")
    found["reviews"] = _simple_labels(train, right, test, gold)
    _, train, right, _, test, gold = both("stars")
    found["stars"] = _simple_stars(train, right, test, gold)
    found["digits"] = _linear(*both("digits", _pixels))
    found["spoken"] = _linear(*both("spoken", _bands))
    for name, order in (("shakespeare", 6), ("ptb", 6)):
        texts = [(folder / name / f"{part}.txt").read_text() for part in ("train", "test")]
        found[name] = _ngram_nats(*texts, order)
    train, right, test, gold = both("chinese")
    found["chinese"] = corpus_chrf(_nearest(train, right, test), [gold]).score
    train, right, test, gold = both("cmudict")
    found["cmudict"] = float(np.mean(np.array(_nearest(train, right, test)) == np.array(gold)))
    story, asked, right, other, test, gold = both("babi", _answers)
    join = lambda stories, questions: [f"{s} {q}" for s, q in zip(stories, questions, strict=True)]  # noqa: E731
    found["babi"] = _simple_labels(join(story, asked), right, join(other, test), gold)
    _, _, _, passages, asked, gold = both("squad", _answers)
    best = []
    for passage, question in zip(passages, asked, strict=True):
        words = set(re.findall(r"\w+", question.lower()))
        parts = re.split(r"(?<=[.!?])\s+", passage)
        best.append(max(parts, key=lambda one: len(words & set(re.findall(r"\w+", one.lower())))))
    metric = METRICS["f1"]
    rows = metric.measure(best, [[g] for g in gold])
    found["squad"] = float(metric.values(rows.sum(axis=0, keepdims=True))[0])
    return found


def _score(case: Case, said: Any, test: Path) -> tuple[float, dict[str, float]]:
    """Return the score of a model from what `regard evaluate --json` prints, and of baselines."""
    if "nats" in said:
        return said["nats"] / len(test.read_text()), {}
    if "scores" in said:
        first, *others = said["scores"]
        return first[case.metric], {row["model"]: row[case.metric] for row in others}
    values = {row["name"]: row["value"] for row in said["metrics"]}
    return values.get(case.metric, values.get("accuracy", math.nan)), {}


def _pinned(cores: str) -> list[str]:
    return ["taskset", "-c", cores, sys.executable, "-m"]


def run(folder: Path, name: str, seed: int, minutes: float, cores: str) -> harness.Record:
    """Train and evaluate a model, in processes that have these cores alone."""
    case, place = CASES[name], folder / name
    kept = place / f"run-{seed}"
    subprocess.run(["rm", "-rf", str(kept)], check=True)
    pinned = [*_pinned(cores), "regard"]
    settings = ["-o", str(kept), f"seed={seed}"]
    asked = [*pinned, "train", str(place / case.train), "--minutes", f"{minutes:g}", *settings]
    began = time.monotonic()
    done = subprocess.run(asked, capture_output=True, text=True, env=ENVIRONMENT)
    seconds = time.monotonic() - began
    record = {"case": name, "seed": seed, "seconds": round(seconds, 1)}
    if done.returncode:
        return record | {"error": done.stderr[-500:]}
    asked = [*pinned, "evaluate", str(kept), str(place / case.test), "--json"]
    done = subprocess.run(asked, capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        return record | {"error": done.stderr[-500:]}
    score, others = _score(case, json.loads(done.stdout), place / case.test)
    return record | {
        "metric": case.metric,
        "score": score,
        **({"beside": others} if others else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("make", "simple", "train"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--cases", help="with commas between; all by default")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--at-once", type=int, default=1, help="runs, of two cores each")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folders[-1].resolve()
    if args.do == "make":
        return make(args.folders[0], folder)
    if args.do == "simple":
        found = simple(folder)
        (folder / "simple.json").write_text(json.dumps(found, indent=1))
        return print(json.dumps(found, indent=1))
    cases = tuple(args.cases.split(",")) if args.cases else tuple(CASES)
    beside = json.loads((folder / "simple.json").read_text())
    free: SimpleQueue[str] = SimpleQueue()
    for i in range(args.at_once):
        free.put(f"{CORES * i}-{CORES * i + CORES - 1}")
    result = harness.provenance() | {"minutes": args.minutes, "records": []}

    def one(asked: tuple[int, str]) -> None:
        cores = free.get()
        seed, name = asked
        record = run(folder, name, seed, args.minutes, cores)
        free.put(cores)
        scores = [*record.get("beside", {}).values(), *([beside[name]] if name in beside else [])]
        best = (max if CASES[name].higher else min)(scores, default=None)
        result["records"].append(record | {"simple": best})
        print(json.dumps(result["records"][-1]), flush=True)
        harness.write(args.out, result)

    jobs = [(seed, name) for seed in range(args.seeds) for name in cases]
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(one, jobs))
    return None


if __name__ == "__main__":
    main()
