"""Time training steps with each backend of the operators, with CUDA graphs and without.

    python -m benchmarks.speed.training --data DATA --out benchmarks/results/training-h200.json

Tokens a second of presets and sizes, on batches of Multi30k's lengths; what is timed is the
trainer's own loop. Each record is written when it is there, what matters most first, so that a run
that is cut short or told to stop (Ctrl-C, SIGTERM) loses nothing.
"""

import argparse
import gc
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Final, NoReturn

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import Record
from benchmarks.peers.cases import MULTI30K
from regard import ops

NEVER: Final = 10**9
PRESETS: Final = ("gnmt", "bahdanau", "self-attentive", "transformer")
#: presets whose steps the definition takes one by one
RECURRENT: Final = ("gnmt", "bahdanau", "self-attentive")
#: steps that are not timed: kernels are compiled in them
WARM_UP: Final = 3
#: the same where steps are replayed from CUDA graphs: most shapes of batches are recorded in them
RECORDING: Final = 400
#: what stands in place of a backend for the usual one with CUDA graphs; all others have none
GRAPHS: Final = "graphs"
#: steps that are timed at least, however long they take
FEWEST: Final = 3
#: steps that the loss of a record is the mean of
LAST: Final = 20


class Finished(Exception):  # noqa: N818
    """Enough steps are timed."""


class Stopwatch:
    """A replacement of the trainer's display that marks the end of each step.

    A GPU is not waited for: its own clock is read when all is over.

    Args:
        steps: after how many to stop,
        seconds: or after so many seconds of timed steps.
        warm_up: steps that are not timed.
    """

    def __init__(
        self, device: torch.device, steps: int, seconds: float, warm_up: int = WARM_UP
    ) -> None:
        self.device, self.steps, self.seconds = device, steps, seconds
        self.warm_up = warm_up
        self.started = 0.0
        self.marks: list[Any] = []
        self.tokens: list[int] = []
        self.losses: list[torch.Tensor] = []

    def on_step(self, progress: Any, loss: torch.Tensor) -> None:
        """Record a step; raise after the last one."""
        self.marks.append(self._mark())
        self.tokens.append(progress.tokens)
        self.losses.append(loss.detach())
        if progress.step == self.warm_up:
            self.started = time.perf_counter()
        slow = progress.step >= self.warm_up + FEWEST
        if progress.step == self.steps or (
            slow and time.perf_counter() - self.started > self.seconds
        ):
            raise Finished

    def stopping(self) -> NoReturn:
        """Ignore a request to stop, since nothing of this run is worth saving."""
        raise KeyboardInterrupt

    def found(self) -> Record:
        """Return medians over the steps after the warmup."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        spans = [self._seconds(a, b) for a, b in itertools.pairwise(self.marks)]
        spans, tokens = spans[self.warm_up - 1 :], np.diff(self.tokens)[self.warm_up - 1 :].tolist()
        rates = [count / span for count, span in zip(tokens, spans, strict=True)]
        return {
            "timed_steps": len(spans),
            "step_ms": 1e3 * statistics.median(spans),
            "tokens_per_step": statistics.median(tokens),
            "tokens_per_s": statistics.median(rates),
            "loss": float(torch.stack(self.losses[-LAST:]).mean()),
        }

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, a: Any, b: Any) -> float:
        if self.device.type == "cuda":
            return float(a.elapsed_time(b)) / 1e3
        return float(b - a)


class Bench:
    """Prepare the data once for all runs.

    Args:
        args: of the command line.
        folder: where tokenisers and encoded pairs are kept from one run to the next.
    """

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        from regard.training import RunFolder

        self.args = args
        self.run = RunFolder(folder)
        self.run.create()
        self.pairs = None if args.data else invented(args.pairs)

    def task(self, changes: Record) -> Any:
        """Prepare a model and its data as `regard train` does."""
        from rich.console import Console

        from regard.training import make_config
        from regard.training.setup import prepare

        args = self.args
        settings: Record = {
            "src_tokenizer": "bpe",
            "tgt_tokenizer": "bpe",
            "vocab_size": args.vocab,
            "features": False,
            "device": args.device,
            "warmup": 200,
            "steps": NEVER,
            "eval_every": NEVER,
            "save_every": NEVER,
        }
        if args.data:
            settings |= {
                "data": str(args.data / MULTI30K["train"]),
                "dev": str(args.data / MULTI30K["dev"]),
                "columns": [str(column) for column in MULTI30K["columns"]],
            }
        config = make_config(settings | changes)
        self.run.write_config(config)
        return prepare(config, self.run, Console(quiet=True), self.pairs)

    def timed(
        self, task: Any, backend: str, steps: int, seconds: float, warm_up: int = WARM_UP
    ) -> Stopwatch:
        """Run the trainer's own loop from its first step, up to a number of timed steps."""
        from regard.training.schedule import Progress

        watch = Stopwatch(task.learner.processes.device, warm_up + steps, seconds, warm_up)
        if watch.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with ops.use_backend("auto" if backend == GRAPHS else backend), suppress(Finished):
            task.train(Progress(), watch)
        return watch


Cell = tuple[int, str, str, str]


def cells(args: argparse.Namespace) -> list[Cell]:
    """Yield batch, size, backend and preset of each speed record, the definition last."""
    backends = [b for b in args.backends if b != GRAPHS or args.device == "cuda"]
    every = itertools.product(args.batch_tokens, args.sizes, backends, args.presets)

    def wanted(cell: Cell) -> bool:
        batch, size, backend, preset = cell
        if backend != "reference":
            return True
        slow = preset in RECURRENT or size == args.sizes[0]
        return slow and batch == args.batch_tokens[0]

    return [cell for cell in every if wanted(cell)]


def speeds(bench: Bench) -> Iterator[list[Record]]:
    """Yield a record for each cell; one that fails has its error, and does not stop the rest."""
    for batch_tokens, size, backend, preset in cells(bench.args):
        settings: Record = {"preset": preset, "size": size, "batch_tokens": batch_tokens}
        settings |= {"precision": bench.args.precision, "graphs": backend == GRAPHS}
        try:
            found = measured(bench, settings, backend)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        yield [settings | {"backend": backend} | found]
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def measured(bench: Bench, settings: Record, backend: str) -> Record:
    """Return the speed of one cell."""
    args = bench.args
    warm_up = RECORDING if backend == GRAPHS else WARM_UP
    if backend != GRAPHS:
        # The same batches twice: in the first pass kernels are compiled, and libraries load what
        # they choose by shape, which costs most steps of it more than their work.
        bench.timed(bench.task(settings), backend, args.steps, args.warm_up)
    watch = bench.timed(bench.task(settings), backend, args.steps, args.seconds, warm_up)
    on_gpu = watch.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
    return watch.found() | {"peak_mib": peak, "warm_up_s": args.warm_up}


def invented(count: int) -> list[tuple[str, str]]:
    """Write pairs of made-up words, as long as the sentences of Multi30k."""
    draw = np.random.Generator(np.random.Philox(1))
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(draw.choice(letters, 3 + i % 6)) for i in range(9000)]

    def sentence(length: int) -> str:
        # frequent words are frequent, as in a language
        ranks = np.minimum(draw.zipf(1.3, length), len(words)) - 1
        return " ".join(words[rank] for rank in ranks)

    lengths = np.clip(draw.normal(12.0, 4.0, count), 3, 40).astype(int)
    return [(sentence(n), sentence(max(3, n + int(draw.integers(-3, 3))))) for n in lengths]


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__, data=True)
    parser.set_defaults(data=None)
    add = parser.add_argument
    add("--pairs", type=int, default=29_000, help="made up, where --data names no data sets")
    add("--vocab", type=int, default=8000, help="entries of a vocabulary")
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--precision", choices=["32", "bf16"], default="bf16")
    add("--presets", type=harness.names, default=list(PRESETS), help="with commas between them")
    add("--sizes", type=harness.names, default=["small", "base"])
    add("--batch-tokens", type=harness.numbers, default=[4096, 16384])
    add("--backends", type=harness.names, default=["auto", GRAPHS, "reference", "torch"])
    add("--steps", type=int, default=40, help="steps that are timed at most")
    add("--seconds", type=float, default=2.0, help="of timing at most, for each record")
    add("--warm-up", type=float, default=6.0, help="seconds at most of a first pass, untimed")
    add("--budget", type=float, default=95.0, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    if args.data and not (args.data / MULTI30K["train"]).is_file():
        parser.error(f"--data must hold {MULTI30K['train']}, but {args.data} does not: correct it.")
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, but it is {args.steps}.")
    return args


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, stop)
    result = harness.provenance(**harness.versions(args.device))
    result |= {"data": "Multi30k en-de" if args.data else "made-up sentences", "vocab": args.vocab}
    with tempfile.TemporaryDirectory() as folder:
        found = speeds(Bench(args, folder))
        sys.exit(not harness.collect(result, found, args.out, budget=args.budget))


if __name__ == "__main__":
    main()
