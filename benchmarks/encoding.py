"""Measure memory and time from a large file of pairs to the first batch.

The pairs are made of random words, so that no data is needed. One JSON object goes to stdout.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import command, machine, peak_rss_mb, source


def write_pairs(path: Path, count: int, words: int = 50_000) -> None:
    """Write lines of 3 to 20 words per side with the word frequencies of text."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(words)]
    weights = [1 / (rank + 10) for rank in range(words)]
    pool = rng.choices(vocabulary, weights, k=1_000_000)  # drawing from it is fast
    with path.open("w") as file:
        for _ in range(count):
            sides = []
            for _ in range(2):
                start = rng.randrange(len(pool) - 20)
                sides.append(" ".join(pool[start : start + rng.randint(3, 20)]))
            file.write("\t".join(sides) + "\n")


def measured(pairs: Path, folder: Path, tokenizer: str) -> dict[str, Any]:
    """Prepare a run as the trainer does, and collate its first batch."""
    from rich.console import Console

    from regard.data import collate
    from regard.training import RunFolder, make_config
    from regard.training.setup import prepare

    before, started = peak_rss_mb(), time.perf_counter()
    run = RunFolder(folder)
    run.create()
    sides = {f"{side}_tokenizer": tokenizer for side in ("src", "tgt")}
    config = make_config({"data": str(pairs), "size": "tiny", **sides})
    run.write_config(config)
    task = prepare(config, run, Console(stderr=True))
    corpus = task.batches.epochs.corpus
    collate(corpus, task.batches.take(0, 0)[0][0].rows)
    return {
        "pairs": len(corpus) + len(task.evaluator.dev.corpus),
        "tokenizer": tokenizer,
        "file_mb": pairs.stat().st_size / 2**20,
        "seconds": time.perf_counter() - started,
        "rss_after_imports_mb": before,
        "peak_rss_mb": peak_rss_mb(),
    }


def main() -> None:
    import sys

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--tokenizer", default="bpe", help="char, space, word, bpe or unigram")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = Path(folder) / "pairs.tsv"
        write_pairs(pairs, args.pairs)
        found = {
            "command": command(["python", *sys.argv]),
            "machine": machine(),
            **source(),
            **measured(pairs, Path(folder) / "run", args.tokenizer),
        }
    print(json.dumps(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
