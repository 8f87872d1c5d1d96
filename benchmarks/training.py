"""Time training with and without the kernels, and compare the losses.

*Curves*: one preset is trained a hundred steps on the same batches from the same weights, by each
backend of the operators. How far their losses part is set beside how far they part when
nothing is changed, and when the weights are drawn by another seed. *Speed*: tokens a second of
presets and sizes, on batches of Multi30k's lengths. What is timed is the trainer's own loop.

    python benchmarks/training.py --data DATA --json benchmarks/results/training-h200.json
    python benchmarks/training.py --render benchmarks/results/training-h200.json

Each record is written when it is there, what matters most first, so that a run that is cut short
or told to stop (Ctrl-C, SIGTERM) loses nothing.
"""

import argparse
import gc
import itertools
import json
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import provenance  # noqa: E402
from cases import MULTI30K  # noqa: E402
from regard import ops  # noqa: E402
from training_page import render  # noqa: E402

NEVER: Final = 10**9
#: the preset of the curves, and steps until its rate is at its highest
CURVE: Final[dict[str, Any]] = {"preset": "bahdanau", "warmup": 50}
#: backend and seed of each curve; the first is compared with all others
RUNS: Final = (("auto", 1), ("auto", 1), ("auto", 2), ("torch", 1), ("reference", 1))
#: the same for the other precisions: what the first has shown need not be shown again
FEWER_RUNS: Final = (("auto", 1), ("torch", 1))
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

Settings = dict[str, Any]


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
        self.losses.append(loss)
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

    def found(self) -> Settings:
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

    def task(self, changes: Settings) -> Any:
        """Prepare a model and its data as `regard train` does."""
        from rich.console import Console

        from regard.training import make_config
        from regard.training.setup import prepare

        args = self.args
        settings: Settings = {
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
        from regard.training.progress import Progress

        watch = Stopwatch(task.learner.processes.device, warm_up + steps, seconds, warm_up)
        if watch.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with ops.use_backend("auto" if backend == GRAPHS else backend), suppress(Finished):
            task.train(Progress(), watch)
        return watch


def curves(bench: Bench, precisions: list[str]) -> Iterator[Settings]:
    """Yield a record for each precision and run, with the loss of every step."""
    args = bench.args
    shared = CURVE | {"size": args.sizes[0], "batch_tokens": args.batch_tokens[0]}
    shared["graphs"] = False
    # all read the same batches, so that seeds differ in weights and dropout alone
    epochs = bench.task(shared | {"seed": RUNS[0][1]}).batches.epochs if precisions else None
    for precision in precisions:
        for backend, seed in RUNS if precision == args.precisions[0] else FEWER_RUNS:
            settings = shared | {"precision": precision, "seed": seed}

            def measured(settings: Settings = settings, backend: str = backend) -> Settings:
                task = bench.task(settings | {"steps": args.curve_steps})
                task.batches.epochs = epochs
                steps = args.curve_steps - WARM_UP
                watch = bench.timed(task, backend, steps, args.curve_seconds)
                losses = torch.stack(watch.losses).tolist()
                return watch.found() | {"losses": [round(loss, 7) for loss in losses]}

            yield settings | {"backend": backend} | tried(measured)


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


def speeds(bench: Bench, chosen: list[Cell]) -> Iterator[Settings]:
    """Yield a record for each cell."""
    args = bench.args
    for batch_tokens, size, backend, preset in chosen:
        settings: Settings = {"preset": preset, "size": size, "batch_tokens": batch_tokens}
        settings["precision"] = args.precisions[-1]

        def measured(settings: Settings = settings, backend: str = backend) -> Settings:
            settings = settings | {"graphs": backend == GRAPHS}
            warm_up = RECORDING if backend == GRAPHS else WARM_UP
            if backend != GRAPHS:
                # The same batches twice: in the first pass kernels are compiled, and libraries load
                # what they choose by shape, which costs most steps of it more than their work.
                bench.timed(bench.task(settings), backend, args.steps, args.warm_up)
            watch = bench.timed(bench.task(settings), backend, args.steps, args.seconds, warm_up)
            on_gpu = watch.device.type == "cuda"
            peak = torch.cuda.max_memory_allocated() / 2**20 if on_gpu else None
            return watch.found() | {"peak_mib": peak, "warm_up_s": args.warm_up}

        yield settings | {"backend": backend} | tried(measured)


def records(bench: Bench) -> Iterator[tuple[str, Settings]]:
    """Yield all records with the name of their list, most important first."""
    args = bench.args
    precisions = args.precisions if args.curve_steps else []
    every = cells(args)
    first = [cell for cell in every if cell[:2] == (args.batch_tokens[0], args.sizes[0])]
    parts = (
        ("curves", curves(bench, precisions[:1])),
        ("speed", speeds(bench, first)),
        ("curves", curves(bench, precisions[1:])),
        ("speed", speeds(bench, every[len(first) :])),
    )
    return ((name, record) for name, part in parts for record in part)


def tried(measured: Callable[[], Settings]) -> Settings:
    """Return a measurement, or its error, so that one failure does not stop the rest."""
    try:
        return measured()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


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


def versions(device: str) -> Settings:
    found: Settings = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        import triton

        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        found["triton"] = triton.__version__
    return found


def parse() -> argparse.Namespace:
    def some(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    add("--render", type=Path, metavar="FILE", help="print FILE as a section of a page instead")
    add("--data", type=Path, help="folder of the data sets; without it, sentences are made up")
    add("--pairs", type=int, default=29_000, help="how many are made up")
    add("--vocab", type=int, default=8000, help="entries of a vocabulary")
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--precisions", type=some, default=["32", "bf16"], help="speed is measured in the last")
    add("--curve-steps", type=int, default=100, help="steps of each curve; 0 for none")
    add("--curve-seconds", type=float, default=12.0, help="after which a curve ends before that")
    add("--presets", type=some, default=list(PRESETS), help="with commas between them")
    add("--sizes", type=some, default=["small", "base"], help="curves are of the first")
    add("--batch-tokens", type=numbers, default=[4096, 16384], help="as above")
    add("--backends", type=some, default=["auto", GRAPHS, "reference", "torch"])
    add("--steps", type=int, default=40, help="steps that are timed at most")
    add("--seconds", type=float, default=2.0, help="of timing at most, for each record of speed")
    add("--warm-up", type=float, default=6.0, help="seconds at most of a first pass, untimed")
    add("--budget", type=float, default=95.0, help="seconds after which nothing new is begun")
    add("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    if args.data and not (args.data / MULTI30K["train"]).is_file():
        parser.error(f"--data must hold {MULTI30K['train']}, but {args.data} does not: correct it.")
    if 0 < args.curve_steps <= WARM_UP or args.steps < 1:
        parser.error(f"--curve-steps must be more than {WARM_UP}, and --steps at least 1.")
    return args


def measure(args: argparse.Namespace) -> bool:
    """Write all records; return whether all could be measured."""
    source, began = provenance.source(), time.perf_counter()
    result: Settings = {
        "command": provenance.command(["python", "benchmarks/training.py", *sys.argv[1:]]),
        "machine": provenance.machine() | versions(args.device),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "data": "Multi30k en-de" if args.data else "made-up sentences",
        "vocab": args.vocab,
        "curves": [],
        "speed": [],
        "complete": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, record in records(Bench(args, folder)):
                result[name].append(record | {"at_s": round(time.perf_counter() - began, 1)})
                provenance.write(args.json, result)
                told = {key: value for key, value in result[name][-1].items() if key != "losses"}
                print(name, json.dumps(told), flush=True)
                if time.perf_counter() - began > args.budget:
                    break
            else:
                result["complete"] = True
        except KeyboardInterrupt:
            print("told to stop: the records so far are kept.", file=sys.stderr)
    result["seconds"] = time.perf_counter() - began
    provenance.write(args.json, result)
    return not any("error" in record for record in [*result["curves"], *result["speed"]])


def stop(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, stop)
    if args.render:
        print(render(json.loads(args.render.read_text())), end="")
        return
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    sys.exit(not measure(args))


if __name__ == "__main__":
    main()
