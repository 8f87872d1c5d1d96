"""Measure one toolkit in its own environment: its training, or its prediction, of one case.

    PYTHONPATH=. /tmp/peers/eole/bin/python -m benchmarks.peers.drive eole --case a --mode train ...

A toolkit is a module beside this one. Its `train(job, clock)` runs the toolkit's own training and
counts batches with the clock; its `predict(job)` returns a function from the name of a part to the
number of tokens of every output, without eos.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import peak_rss_mb, timed
from benchmarks.peers.cases import CASES, CLIP, LENGTH, RATE, WARM_UP, Case, record

#: toolkits, and the packages whose versions are recorded
PACKAGES = {
    "joeynmt": "joeynmt",
    "eole": "eole",
    "yoyodyne": "yoyodyne",
    "ctranslate2": "ctranslate2",
}
NEVER = 1_000_000


class Job(NamedTuple):
    """Measurement that a driver has to make.

    Attributes:
        name: of the case.
        case: see cases.py.
        data: folder of its text, as run.py has written it.
        pairs: how many there are to train on.
        scratch: an empty folder for what the peer writes.
        steps: to time.
        warm_up: steps before those.
        threads: of torch.
        precision: of CTranslate2's weights; all others compute in 32 bits.
    """

    name: str
    case: Case
    data: Path
    pairs: int
    scratch: Path
    steps: int
    warm_up: int
    threads: int
    precision: str

    def lines(self, part: str) -> list[str]:
        """Return the sources of a part: train, dev or test."""
        return (self.data / f"{part}.src").read_text().splitlines()

    def eole_settings(self) -> dict[str, Any]:
        """Return the settings of the data of Eole."""
        paths = {f"path_{side}": str(self.data / f"train.{side}") for side in ("src", "tgt")}
        return {
            "data": {"train": {**paths, "transforms": [], "weight": 1}},
            "src_vocab": str(self.data / "vocab.src"),
            "tgt_vocab": str(self.data / "vocab.tgt"),
            "vocab_size_multiple": 1,
            "report_every": NEVER,
        }

    def eole_training(self) -> dict[str, Any]:
        """Return the settings of its training."""
        return {
            "save_checkpoint_steps": NEVER,
            "valid_steps": NEVER,
            "train_steps": NEVER,
            "batch_type": "sents",
            "batch_size": self.case.batch,
            "bucket_size": self.pairs,
            "num_workers": 0,
            "normalization": "tokens",
            "optim": "adam",
            "learning_rate": RATE,
            "max_grad_norm": CLIP,
            "dropout": [0.0],
            "attention_dropout": [0.0],
        }


class Finished(BaseException):
    """Enough steps are timed; not an `Exception`, since some toolkits catch those."""


class Clock:
    """Records the time after optimizer steps, and counts tokens."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.first, self.last = warm_up, warm_up + steps
        self.step, self.started, self.seconds, self.cpu_seconds = 0, 0.0, 0.0, 0.0
        self.sentences = self.src_tokens = self.tgt_tokens = self.weights = 0

    def count(self, sentences: int, src_tokens: int, tgt_tokens: int) -> None:
        """Count a batch, without padding, without eos of the source, with eos of the target."""
        self.sentences += int(sentences)
        self.src_tokens += int(src_tokens)
        self.tgt_tokens += int(tgt_tokens)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after every step of any optimiser."""
        self.step += 1
        if self.step == 1:
            groups = optimizer.param_groups
            self.weights = sum(p.numel() for group in groups for p in group["params"])
        if self.step == self.first:
            self.sentences = self.src_tokens = self.tgt_tokens = 0
            self.started, self.cpu_seconds = time.perf_counter(), -time.process_time()
        elif self.step == self.last:
            self.seconds = time.perf_counter() - self.started
            self.cpu_seconds += time.process_time()
            raise Finished


def time_training(job: Job, train: Callable[[Job, Clock], None]) -> dict[str, Any]:
    """Run a toolkit's own training until enough steps are timed."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = Clock(job.warm_up, job.steps)
    register_optimizer_step_post_hook(clock.after_step)
    with suppress(Finished):
        train(job, clock)
    names = ("seconds", "cpu_seconds", "sentences", "src_tokens", "tgt_tokens", "weights")
    return {name: getattr(clock, name) for name in names}


def time_prediction(job: Job, predict: Callable[[str], list[int]]) -> dict[str, Any]:
    """Run a toolkit's own prediction of `dev` to warm up, then of `test`."""
    predict("dev")
    found = timed(lambda: predict("test"))
    lengths = found["value"]
    # special symbols that random weights have chosen may be left out of the text
    if max(lengths) != LENGTH or sum(lengths) < 0.75 * LENGTH * len(lengths):
        raise RuntimeError(f"outputs must have {LENGTH} tokens, but they have {set(lengths)}")
    src = [line.split() for line in job.lines("test")]
    if len(src) != len(lengths):
        raise RuntimeError(f"there are {len(src)} sources, but {len(lengths)} outputs")
    return {
        "seconds": found["seconds"],
        "cpu_seconds": found["cpu_seconds"],
        "sentences": len(src),
        "src_tokens": sum(map(len, src)),
        "tgt_tokens": (LENGTH + 1) * len(lengths),
    }


def main() -> None:
    """Measure one case and write its record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("toolkit", choices=PACKAGES)
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", choices=["train", "predict"], required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder that run.py wrote")
    parser.add_argument("--scratch", type=Path, required=True, help="an empty folder")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["32", "int8"], default="32")
    parser.add_argument("--out", type=Path, required=True, help="file of the record")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    job = Job(
        name=args.case,
        case=CASES[args.case],
        data=args.work / args.case,
        pairs=len((args.work / args.case / "train.src").read_bytes().splitlines()),
        scratch=args.scratch,
        steps=args.steps,
        warm_up=args.warm_up,
        threads=args.threads,
        precision=args.precision,
    )
    toolkit = importlib.import_module(f"benchmarks.peers.{args.toolkit}")
    if args.mode == "train":
        counts = time_training(job, toolkit.train)
    else:
        counts = time_prediction(job, toolkit.predict(job))
    package = PACKAGES[args.toolkit]
    found = record(
        args.case,
        args.mode,
        system=package,
        version=importlib.metadata.version(package),
        precision=args.precision,
        threads=args.threads,
        **counts,
        steps=args.steps if args.mode == "train" else None,
        device="cpu",
        peak_rss_mb=peak_rss_mb(),
        torch=torch.__version__,
    )
    args.out.write_text(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some peers leave threads behind that never end


if __name__ == "__main__":
    main()
