"""Compare attention with gold alignments: letters and phonemes (NETtalk), words (English, French).

Trains models on one side of a split, aligns the other by attention, and writes the error rates
beside those of uniform and diagonal alignments. The words' gold is of another domain (Hansards)
than the sentences that the models learn from (Tatoeba): its figures say what that costs, too. All
models train side by side, a process each, since each alone leaves most of a GPU idle.
"""

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from provenance import ROOT, command, machine, source

PRESETS: Final = ("bahdanau", "self-attentive", "transformer")
WORD_PRESETS: Final = ("bahdanau", "transformer")
#: every so many words of NETtalk are kept for the test
HELD_OUT: Final = 10


def nettalk(data: Path, folder: Path) -> None:
    """Return pairs without silent letters; the gold alignment is the letter of each phoneme."""
    parts: dict[str, list[str]] = {"train.tsv": [], "test.tsv": [], "test.gold": []}
    with gzip.open(data / "nettalk/nettalk.aligned.tsv.gz", "rt", encoding="utf-8") as file:
        for number, line in enumerate(file):
            word, phonemes, *_ = line.rstrip("\n").split("\t")
            sounds = [(i, sound) for i, sound in enumerate(phonemes) if sound != "-"]
            pair = f"{word}\t{' '.join(sound for _, sound in sounds)}"
            if number % HELD_OUT or not sounds:
                parts["train.tsv"] += [pair] if sounds else []
            else:
                parts["test.tsv"].append(pair)
                links = (f"{letter}-{place}" for place, (letter, _) in enumerate(sounds))
                parts["test.gold"].append(" ".join(links))
    for name, lines in parts.items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def words(data: Path, folder: Path) -> None:
    """Tatoeba to learn from; the gold's sentences, and its links, which count from 1."""
    with gzip.open(data / "tatoeba_eng_fra/pairs.eng-fra.tsv.gz", "rt", encoding="utf-8") as file:
        pairs = ["\t".join(line.rstrip("\n").lower().split("\t")[:2]) for line in file]
    (folder / "train.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    turned = ("\t".join(reversed(pair.split("\t"))) for pair in pairs)
    (folder / "turned.tsv").write_text("\n".join(turned) + "\n", encoding="utf-8")
    with gzip.open(data / "wordalign_gold/awesome.enfr.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    texts = "".join(f"{english}\t{french}\n" for english, french, _ in rows)
    (folder / "test.tsv").write_text(texts, encoding="utf-8")
    (folder / "test.gold").write_text("".join(f"{row[2]}\n" for row in rows), encoding="utf-8")


def regard(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "regard", *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def trained(train: Path, preset: str, run: Path, minutes: float, args: argparse.Namespace) -> Path:
    settings = [f"minutes={minutes}", f"device={args.device}"]
    if args.steps:
        settings.append(f"steps={args.steps}")
    regard("train", str(train), "-p", preset, "-o", str(run), *settings)
    return run


def aligned(
    folder: Path, runs: list[Path], preset: str, first: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Align the test set with one run, or with two of opposite directions; return the output."""
    files = [str(folder / "test.tsv"), "--gold", str(folder / "test.gold")]
    options = ["--gold-first", str(first), "--device", args.device, "--json", "--batch", "64"]
    options += ["--reverse-run", str(runs[1])] if len(runs) > 1 else []
    found: dict[str, Any] = json.loads(regard("align", str(runs[0]), *files, *options))
    found = {name: part for name, part in found.items() if name not in ("alignments", "links")}
    last = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in runs]
    return {"preset": preset, "last_evaluations": last, "align": found}


def letters_by(preset: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    run = trained(folder / "train.tsv", preset, folder / preset, args.minutes, args)
    return aligned(folder, [run], preset, 0, args)


def words_by(preset: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Train both directions in parallel."""
    with ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                trained, folder / file, preset, folder / f"{preset}-{file}", args.word_minutes, args
            )
            for file in ("train.tsv", "turned.tsv")
        ]
        return aligned(folder, [run.result() for run in runs], preset, 1, args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training, for each model")
    parser.add_argument("--word-minutes", type=float, default=6.0, help="of training, for words")
    parser.add_argument("--steps", type=int, default=0, help="stop earlier")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:
        letters, text = Path(scratch) / "nettalk", Path(scratch) / "words"
        for folder, make in ((letters, nettalk), (text, words)):
            folder.mkdir()
            make(args.data, folder)
        waiting = {
            "nettalk": [pool.submit(letters_by, preset, letters, args) for preset in PRESETS],
            "words": [pool.submit(words_by, preset, text, args) for preset in WORD_PRESETS],
        }
        results = {name: [one.result() for one in found] for name, found in waiting.items()}
    about = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
    args.out.write_text(json.dumps({**about, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
