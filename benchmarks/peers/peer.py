"""Options, timing and records, shared by the drivers of all toolkits."""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cases import CASES, LENGTH, WARM_UP, Case, record
from provenance import peak_rss_mb


class Job(NamedTuple):
    """Measurement that a driver has to make.

    Attributes:
        name: of the case.
        case: see cases.py.
        data: folder of its text, as data.py has written it.
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


def time_training(job: Job, train: Callable[[Clock], None]) -> dict[str, Any]:
    """Run a toolkit's own training until enough steps are timed."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    clock = Clock(job.warm_up, job.steps)
    register_optimizer_step_post_hook(clock.after_step)
    with suppress(Finished):
        train(clock)
    names = ("seconds", "cpu_seconds", "sentences", "src_tokens", "tgt_tokens", "weights")
    return {name: getattr(clock, name) for name in names}


def time_prediction(job: Job, predict: Callable[[str], list[int]]) -> dict[str, Any]:
    """Run a toolkit's own prediction of `dev` to warm up, then of `test`.

    Args:
        job: what is measured.
        predict: from the name of a part to the number of tokens of every output, without eos.
    """
    predict("dev")
    started, cpu_started = time.perf_counter(), time.process_time()
    lengths = predict("test")
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    # special symbols that random weights have chosen may be left out of the text
    if max(lengths) != LENGTH or sum(lengths) < 0.75 * LENGTH * len(lengths):
        raise RuntimeError(f"outputs must have {LENGTH} tokens, but they have {set(lengths)}")
    src = [line.split() for line in (job.data / "test.src").read_text().splitlines()]
    if len(src) != len(lengths):
        raise RuntimeError(f"there are {len(src)} sources, but {len(lengths)} outputs")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "sentences": len(src),
        "src_tokens": sum(map(len, src)),
        "tgt_tokens": (LENGTH + 1) * len(lengths),
    }


def main(
    package: str,
    modes: dict[str, Callable[[Job], dict[str, Any]]],
) -> None:
    """Measure one case and write its record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--mode", choices=modes, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder that data.py wrote")
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
    counts = modes[args.mode](job)
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
