"""Measure regard and its peers in one go on one machine, in turn: regard, peer, regard, peer, ...

The peers stand in environments that benchmarks/peers/install.py has made; see the README beside it.
Writes toolkit.json. About 25 minutes on two quiet cores.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import harness
from benchmarks.harness import ROOT
from benchmarks.pages.tables import toolkits
from benchmarks.peers.cases import CASES, PREDICT_BATCH, WARM_UP, WORDS, Case, missing
from regard.data import Tokenizer, read_pairs
from regard.symbols import SYMBOLS


class Turn(NamedTuple):
    """One process of one system.

    Attributes:
        system: regard, or the environment of a peer.
        case: see cases.py.
        mode: train or predict.
        precision: 32, bf16 or int8.
        share: of the steps; less for systems that are slow, and for those that come often.
    """

    system: str
    case: str
    mode: str
    precision: str = "32"
    share: float = 1.0


#: who can do what; the slowest one takes fewer steps
TRAINERS: Final = {"joeynmt": 0.3, "eole": 1.0, "yoyodyne": 0.2}
PREDICTORS: Final = {
    "a": [("joeynmt", "32"), ("eole", "32")],
    "b": [
        ("ctranslate2", "32"),
        ("eole", "32"),
        ("ctranslate2", "int8"),
        ("joeynmt", "32"),
    ],
    "c": [],
}


def turns(names: list[str], modes: list[str]) -> Iterator[Turn]:
    """Regard before every peer and after the last; then regard in the precision of its choice."""
    for mode in modes:
        for name in names:
            if mode == "train":
                peers = [Turn(peer, name, mode, share=share) for peer, share in TRAINERS.items()]
            else:
                peers = [Turn(peer, name, mode, precision) for peer, precision in PREDICTORS[name]]
            ours = Turn("regard", name, mode, share=0.3)
            for peer in peers:
                yield ours
                yield peer
            yield ours
            yield Turn("regard", name, mode, "bf16")


def write_text(case: Case, data: Path, folder: Path, sentences: int) -> None:
    """Write the text of a case for other toolkits: token ids of regard, separated by spaces.

    So every system has the same words, and none spends time on cutting them. The vocabularies have
    the most frequent words first.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pairs = list(read_pairs(data / case.train, columns=case.columns))
    parts = {
        "train": pairs,
        "dev": list(islice(read_pairs(data / case.dev, columns=case.columns), PREDICT_BATCH)),
        "test": list(islice(read_pairs(data / case.test, columns=case.columns), sentences)),
    }
    for side, kind in zip(("src", "tgt"), case.tokenizers, strict=True):
        tokenizer = Tokenizer.train(
            kind, [getattr(pair, side) for pair in pairs], vocab_size=WORDS + len(SYMBOLS)
        )
        words = [word(i) for i in range(len(SYMBOLS), tokenizer.vocab_size)]
        (folder / f"vocab.{side}").write_text("".join(f"{w}\n" for w in words))
        for part, rows in parts.items():
            encoded = tokenizer.encode_batch([getattr(pair, side) for pair in rows])
            text = [" ".join(map(word, ids)) for ids in encoded]
            (folder / f"{part}.{side}").write_text("".join(f"{line}\n" for line in text))


def word(number: int) -> str:
    """Return a token that no toolkit treats specially; unk is in no vocabulary."""
    return f"w{number}"


def run(turn: Turn, args: argparse.Namespace, work: Path) -> dict[str, Any] | str:
    """The record of one turn, or why there is none."""
    steps = max(3, round(args.steps * turn.share))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "record.json"
        words = ["--steps", str(steps), "--warm-up", str(args.warm_up)]
        words += ["--threads", str(args.threads), "--precision", turn.precision, "--out", str(out)]
        if turn.system == "regard":
            python, module = sys.executable, ["benchmarks.speed.toolkit"]
            words += ["--data", str(args.data.resolve()), "--cases", turn.case, f"--{turn.mode}"]
            words += ["--sentences", str(args.sentences)]
        else:
            python = str(args.envs.resolve() / turn.system / "bin" / "python")
            module = ["benchmarks.peers.drive", turn.system]
            words += ["--case", turn.case, "--mode", turn.mode]
            words += ["--work", str(work), "--scratch", scratch]
        done = subprocess.run(
            [python, "-m", *module, *words],
            cwd=scratch,
            env=environment(args.threads),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode or not out.exists():
            return f"{turn.system}, case {turn.case}, {turn.mode}: {_last(done.stdout)}"
        found: dict[str, Any] = json.loads(out.read_text())
        return found["records"][0] if turn.system == "regard" else found


def environment(threads: int) -> dict[str, str]:
    """Threads that wait do so without turning the core: two systems' habits differ here."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it has printed nothing"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--envs", type=Path, required=True, help="folder of the environments")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--cases", default=",".join(CASES), help="with commas between them")
    parser.add_argument("--modes", default="train,predict", help="with a comma between them")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--quick", action="store_true", help="a few steps, to see that all works")
    args = parser.parse_args()
    args.warm_up, args.sentences = (1, 64) if args.quick else (WARM_UP, 500)
    args.steps = 3 if args.quick else args.steps
    problem = missing(args.data, list(CASES))
    if problem:
        parser.error(problem)
    absent = [peer for peer in TRAINERS if not (args.envs / peer / "bin" / "python").exists()]
    if absent:
        parser.error(
            f"{args.envs} must hold the environment {absent[0]}, but it does not: make it with "
            f"`python -m benchmarks.peers.install --envs {args.envs} --peers {absent[0]}`."
        )
    return args


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    records, failures, started = [], [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in CASES:
            write_text(CASES[name], args.data, work / name, args.sentences)
        for turn in turns(args.cases.split(","), args.modes.split(",")):
            found = run(turn, args, work)
            if isinstance(found, str):
                failures.append(found)
                print(found, file=sys.stderr, flush=True)
            else:
                records.append(found)
                print(json.dumps(found), flush=True)
    report = {
        **harness.provenance(),
        "minutes": (time.monotonic() - started) / 60,
        "failures": failures,
        "records": records,
    }
    harness.write(args.out / "toolkit.json", report)
    print(toolkits([report]))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
