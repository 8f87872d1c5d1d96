"""Time the toolkit as its users run it: training steps, and beam search over text.

Every case has a process of its own, so that its peak of memory is its own. One JSON line for each
goes to stdout. See benchmarks/cases.py for what is trained on what.
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
from pathlib import Path
from typing import Any

from cases import (
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
from provenance import ROOT, command, machine, peak_rss_mb, source

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
    from regard.training.progress import Progress

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
        started, cpu_started = time.perf_counter(), time.process_time()
        outputs = list(model.predict(texts, attention=False, batch=PREDICT_BATCH, **options))
        seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
        assert all(len(output.tokens) == LENGTH for output in outputs)
        return measured(
            args,
            name,
            "predict",
            seconds=seconds,
            cpu_seconds=cpu_seconds,
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
        peak_rss_mb=peak_rss_mb(),
        peak_gpu_mb=torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None,
        torch=torch.__version__,
    )


def in_child(args: argparse.Namespace, name: str, mode: str) -> dict[str, Any]:
    """Measure one case in a new process."""
    words = [sys.executable, __file__, "--child", f"{name}:{mode}"]
    for option in ("data", "threads", "device", "precision", "steps", "warm_up", "sentences"):
        words += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        sys.exit(f"case {name} ({mode}) failed with exit code {done.returncode}: see above.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(os.environ.get("REGARD_DATA", ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=default, help="folder of the data sets")
    parser.add_argument("--cases", default=",".join(CASES), help="with commas between them")
    parser.add_argument("--train", action="store_true", help="only steps of training")
    parser.add_argument("--predict", action="store_true", help="only beam search")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["32", "bf16"], default="32")
    parser.add_argument("--steps", type=int, default=100, help="steps that are timed")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="steps before those")
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="how many to predict")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all records to FILE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train == args.predict:
        args.train = args.predict = True
    wrong = [name for name in args.cases.split(",") if name not in CASES]
    if wrong:
        parser.error(f"--cases must be of {', '.join(CASES)}, not {wrong[0]!r}: choose again.")
    problem = missing(args.data, args.cases.split(","))
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
    records = []
    for mode in MODES:
        for name in args.cases.split(",") if getattr(args, mode) else []:
            records.append(in_child(args, name, mode))
            print(json.dumps(records[-1]), flush=True)
    if args.out:
        found = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
        args.out.write_text(json.dumps({**found, "records": records}, indent=2) + "\n")


if __name__ == "__main__":
    main()
