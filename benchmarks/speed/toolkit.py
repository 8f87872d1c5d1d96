"""Time the toolkit as its users run it: training steps, and beam search over text.

Every case has a process of its own, so that its peak of memory is its own. One JSON line for each
goes to stdout. See benchmarks/peers/cases.py for what is trained on what.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import islice
from typing import Any

from benchmarks import harness
from benchmarks.peers.cases import (
    BEAM,
    CASES,
    CLIP,
    LENGTH,
    PREDICT_BATCH,
    RATE,
    SENTENCES,
    WARM_UP,
    WORDS,
    Attentive,
    Case,
    missing,
    record,
)

MODES = ("train", "predict")
NEVER = 10**9


def settings(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Return a case as a config of the trainer."""
    n = case.sizes
    if isinstance(n, Attentive):
        model = {"dim": n.dim, "heads": n.heads, "layers": n.layers, "feed_forward": n.feed_forward}
    else:
        model = {"embed": n.embed, "hidden": n.hidden, "layers": 1, "cell": n.cell}
    return {
        "preset": "transformer" if isinstance(n, Attentive) else "bahdanau",
        "model": {**model, "dropout": 0.0},
        "data": str(args.data / case.train),
        "dev": str(args.data / case.dev),
        "columns": [str(column) for column in case.columns],
        "features": False,
        "src_tokenizer": case.tokenizers[0],
        "tgt_tokenizer": case.tokenizers[1],
        "vocab_size": WORDS + 4,
        "batch_sentences": case.batch,
        "lr": RATE,
        "schedule": "constant",
        "weight_decay": 0.0,
        "clip": CLIP,
        "label_smoothing": 0.0,
        "steps": NEVER,
        "eval_every": NEVER,
        "save_every": NEVER,
        "device": args.device,
        "precision": args.precision,
        "threads": args.threads,
    }


class Finished(Exception):  # noqa: N818
    """Enough steps are timed."""


class Stopwatch:
    """A replacement of the trainer's display that records times of steps."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self.warm_up, self.last = warm_up, warm_up + steps
        self.started, self.seconds, self.cpu_seconds = 0.0, 0.0, 0.0

    def on_step(self, progress: Any, loss: Any) -> None:
        """Record a step; reading the loss synchronises the device."""
        if progress.step == self.warm_up:
            loss.item()
            self.started, self.cpu_seconds = time.perf_counter(), -time.process_time()
        elif progress.step == self.last:
            loss.item()
            self.seconds = time.perf_counter() - self.started
            self.cpu_seconds += time.process_time()
            raise Finished


def train_case(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Run the trainer's own loop from its first step."""
    from regard.training.schedule import Progress

    with tempfile.TemporaryDirectory() as folder:
        task = prepared(args, name, folder)
        watch = Stopwatch(args.warm_up, args.steps)
        with suppress(Finished):
            task.train(Progress(), watch)
        rows = timed_rows(task, args.warm_up, args.steps)
        sentences, corpus = len(rows), task.batches.epochs.corpus
        return measured(
            args,
            name,
            "train",
            seconds=watch.seconds,
            cpu_seconds=watch.cpu_seconds,
            sentences=sentences,
            # the corpus has an eos at the end of sources, and none at that of targets
            src_tokens=int(corpus.src_lengths[rows].sum()) - sentences,
            tgt_tokens=int(corpus.tgt_lengths[rows].sum()) + sentences,
            steps=args.steps,
            weights=task.summary.weights,
        )


def timed_rows(task: Any, warm_up: int, steps: int) -> Any:
    """Return the pairs of the timed steps; the order of batches does not depend on the run."""
    import numpy as np

    epoch, batch, rows = 0, 0, []
    for _ in range(warm_up + steps):
        shares, epoch, batch = task.batches.take(epoch, batch)
        rows += [share.rows for share in shares]
    return np.concatenate(rows[warm_up:])


def prepared(args: argparse.Namespace, name: str, folder: str) -> Any:
    """Prepare a case as the trainer does."""
    from rich.console import Console

    from regard.training import RunFolder, make_config
    from regard.training.setup import prepare

    run = RunFolder(folder)
    run.create()
    config = make_config(settings(CASES[name], args))
    run.write_config(config)
    return prepare(config, run, Console(quiet=True))


def predict_case(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """Time prediction from text to text with random weights and outputs of equal length."""
    from regard import api
    from regard.data import read_pairs

    case = CASES[name]
    pairs = read_pairs(args.data / case.test, columns=case.columns)
    texts = [pair.src for pair in islice(pairs, args.sentences)]
    with tempfile.TemporaryDirectory() as folder:
        task = prepared(args, name, folder)
        task.best.write_model()
        model = api.load(folder, device=args.device, precision=args.precision)
        options: dict[str, Any] = {"beam": BEAM, "min_len": LENGTH, "max_len": LENGTH}
        list(model.predict(texts[:PREDICT_BATCH], attention=False, **options))
        found = harness.timed(
            lambda: list(model.predict(texts, attention=False, batch=PREDICT_BATCH, **options))
        )
        outputs = found["value"]
        assert all(len(output.tokens) == LENGTH for output in outputs)
        return measured(
            args,
            name,
            "predict",
            seconds=found["seconds"],
            cpu_seconds=found["cpu_seconds"],
            sentences=len(outputs),
            src_tokens=sum(len(output.src_tokens) - 1 for output in outputs),
            tgt_tokens=sum(len(output.tokens) + 1 for output in outputs),
        )


def measured(args: argparse.Namespace, name: str, mode: str, **counts: Any) -> dict[str, Any]:
    """Return a record of regard."""
    import torch

    from regard.version import __version__

    on_gpu = args.device == "cuda"
    return record(
        name,
        mode,
        system="regard",
        version=__version__,
        precision=args.precision,
        threads=torch.get_num_threads(),
        **counts,
        device=torch.cuda.get_device_name() if on_gpu else "cpu",
        peak_rss_mb=harness.peak_rss_mb(),
        peak_gpu_mb=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        torch=torch.__version__,
    )


def in_child(args: argparse.Namespace, name: str, mode: str) -> dict[str, Any]:
    """Measure one case in a new process."""
    words = [sys.executable, "-m", "benchmarks.speed.toolkit", "--child", f"{name}:{mode}"]
    for option in ("data", "threads", "device", "precision", "steps", "warm_up", "sentences"):
        words += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    others = filter(None, [os.environ.get("PYTHONPATH")])
    places = os.pathsep.join([str(harness.ROOT / "src"), str(harness.ROOT), *others])
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "PYTHONPATH": places}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        sys.exit(f"case {name} ({mode}) failed with exit code {done.returncode}: see above.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__, data=True)
    add = parser.add_argument
    add("--cases", type=harness.names, default=list(CASES), help="with commas between them")
    add("--train", action="store_true", help="only steps of training")
    add("--predict", action="store_true", help="only beam search")
    add("--threads", type=int, default=os.cpu_count())
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--precision", choices=["32", "bf16"], default="32")
    add("--steps", type=int, default=100, help="steps that are timed")
    add("--warm-up", type=int, default=WARM_UP, help="steps before those")
    add("--sentences", type=int, default=SENTENCES, help="how many to predict")
    add("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train == args.predict:
        args.train = args.predict = True
    wrong = [name for name in args.cases if name not in CASES]
    if wrong:
        parser.error(f"--cases must be of {', '.join(CASES)}, not {wrong[0]!r}: choose again.")
    problem = missing(args.data, args.cases)
    if problem:
        parser.error(problem)
    return args


def main() -> None:
    args = parse()
    if args.child:
        name, mode = args.child.split(":")
        run = train_case if mode == "train" else predict_case
        print(json.dumps(run(args, name)))
        return
    modes = [mode for mode in MODES if getattr(args, mode)]
    records = ([in_child(args, name, mode)] for mode in modes for name in args.cases)
    harness.collect(harness.provenance(), records, args.out)


if __name__ == "__main__":
    main()
