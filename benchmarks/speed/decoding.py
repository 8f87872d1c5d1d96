"""Time beam search from ids to ids: regard, and another version of it, in turn.

    python -m benchmarks.speed.decoding --device cuda --before OTHER/src --out FILE

All models have random weights, and all outputs exactly 20 tokens. Each engine has a process of its
own; in a round each has its turn, so that a slower moment of the machine is nobody's alone. What
matters most comes first, and each record is written when it is there.
"""

import argparse
import functools
import gc
import importlib.util
import itertools
import random
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import harness
from benchmarks.harness import EngineProcess, Record

VOCAB: Final = 8000
#: tokens of every source and every output, the end not counted
LENGTH: Final = 20
#: ids below are pad, bos, eos and unk, in all engines
FIRST_WORD: Final = 4
#: sources that are searched one after the other, at batch 1
SINGLES: Final = 3
#: Searches of a round go on until so many seconds have passed: after a pause, in which others had
#: their turn, the host's caches are cold.
ROUND_SECONDS: Final = 0.25
#: passes that are not timed: kernels are compiled in the first, and graphs recorded in the second
WARM_UP: Final = 2
Ids = list[list[int]]


class Cell(NamedTuple):
    """One model in one setting, which all engines run."""

    preset: str
    size: str
    precision: str
    beam: int
    batch: int


def sources(cell: Cell) -> list[Ids]:
    """Return the batches that are searched in turn, the same for all engines."""
    draw = random.Random(1)
    return [
        [[draw.randrange(FIRST_WORD, VOCAB) for _ in range(LENGTH)] for _ in range(cell.batch)]
        for _ in range(SINGLES if cell.batch == 1 else 1)
    ]


def decoding_graphs(model: Any) -> Any | None:
    """Return the recorder of a model's searches, or None if this checkout of regard has none.

    On the CPU it runs the same functions without recording them.
    """
    if importlib.util.find_spec("regard.decoding.graphs") is None:
        return None
    from regard.decoding.graphs import DecodingGraphs

    return DecodingGraphs(model, records=next(model.parameters()).is_cuda)


def prepared(model: Any, device: str) -> Any:
    """Return the model that `Predictor` searches large requests with."""
    if device != "cpu" or importlib.util.find_spec("regard.models.cpu") is None:
        return model
    from regard.models.cpu import CpuModel, refuse_cpu_model

    return model if refuse_cpu_model(model) else CpuModel(model)


class Regard:
    """`decode` of regard as predictions call it, or plain.

    On a GPU searches are replayed from CUDA graphs, on the CPU steps run by compiled kernels, if
    this checkout can.
    """

    def __init__(self, cell: Cell, device: str, threads: int, *, plain: bool = False) -> None:
        import torch

        from regard.decoding import DecodingOptions, decode
        from regard.models import PRESETS

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = PRESETS[cell.preset](VOCAB, VOCAB, cell.size)
        self.model = model.to(device, dtype_of(cell.precision)).eval()
        self.searched = self.model if plain else prepared(self.model, device)
        self.graphs = None if plain or device == "cpu" else decoding_graphs(self.model)
        given = {} if self.graphs is None else {"graphs": self.graphs}
        self.decode = functools.partial(decode, **given)
        self.batches = [torch.tensor(ids, device=device) for ids in sources(cell)]
        self.lengths = torch.full((cell.batch,), LENGTH, device=device)
        self.options = functools.partial(DecodingOptions, beam=cell.beam)

    @property
    def path(self) -> str:
        """How many graphs are recorded by now, or how else steps run."""
        compiled = "plain" if self.searched is self.model else "compiled steps"
        return compiled if self.graphs is None else repr(self.graphs)

    def search(self, batch: int, length: int) -> list[Any]:
        """Return the best hypothesis of each source."""
        options = self.options(min_len=length, max_len=length)
        found = self.decode(self.searched, self.batches[batch], self.lengths, options)
        return [hypotheses[0].tokens for hypotheses in found]


def dtype_of(precision: str) -> Any:
    """Return the type of weights and computation."""
    import torch

    return {"32": torch.float32, "bf16": torch.bfloat16}[precision]


class Worker:
    """The methods that a request may name, and the model between two of them."""

    def __init__(self, engine: str, device: str, threads: int) -> None:
        self.build = functools.partial(Regard, plain=engine == "regard plain")
        self.device, self.threads = device, threads
        self.engine: Regard | None = None
        self.batches = 0

    def open(self, cell: list[Any]) -> dict[str, Any]:
        """Build the model of a cell, search some times, and check the length of the outputs."""
        self._free()
        left = {}
        if self.device == "cuda":
            import torch

            left["start_mib"] = torch.cuda.memory_allocated() / 2**20
        began, wanted = time.perf_counter(), Cell(*cell)
        self.engine = self.build(wanted, self.device, self.threads)
        self.batches = len(sources(wanted))
        for _ in range(WARM_UP):
            for batch in range(self.batches):
                _check_lengths(self.engine.search(batch, LENGTH), wanted)
        model = self.engine.model
        weights = None if model is None else sum(part.numel() for part in model.parameters())
        return {
            "path": self.engine.path,
            "weights": weights,
            "warm_up_s": time.perf_counter() - began,
            **left,
        }

    def round(self) -> dict[str, Any]:
        """Time one round: searches in a row, until their outputs are lists on the host."""
        assert self.engine is not None
        began, cpu_began = time.perf_counter(), time.process_time()
        for searches in itertools.count(1):
            self.engine.search(searches % self.batches, LENGTH)
            seconds = time.perf_counter() - began
            if seconds > ROUND_SECONDS:
                break
        cpu_seconds = time.process_time() - cpu_began
        return {"searches": searches, "seconds": seconds, "cpu_seconds": cpu_seconds}

    def close(self) -> dict[str, Any]:
        """Free the model and return the peak of memory since it was opened."""
        if self.device == "cuda":
            import torch

            peak = torch.cuda.max_memory_allocated() / 2**20
        else:
            peak = harness.peak_rss_mb()
        self._free()
        return {"peak_mib": peak}

    def _free(self) -> None:
        self.engine = None
        if self.device == "cuda":
            import torch

            gc.collect()
            torch.cuda.init()
            # those of cuBLAS stay for each stream that was used, and are no part of the next model
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def _check_lengths(outputs: list[Any], cell: Cell) -> None:
    lengths = sorted({len(output) for output in outputs})
    if lengths != [LENGTH] or len(outputs) != cell.batch:
        raise ValueError(
            f"{len(outputs)} outputs of {lengths} tokens, not {cell.batch} of {LENGTH}"
        )


MODELS: Final = ("transformer:small", "transformer:base", "bahdanau:small", "self-attentive:small")
PACKAGES: Final = ("torch", "triton")


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells, wide beams first."""
    every = itertools.product(args.beams, args.precisions, args.models, args.batches)
    found = []
    for beam, precision, model, batch in every:
        preset, _, size = model.partition(":")
        found.append(Cell(preset, size or "small", precision, beam, batch))
    return found


class Processes:
    """The processes of the engines, started when they are needed.

    On the CPU each cell gets new ones, since the peak of memory is that of the whole process.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.running: dict[str, EngineProcess] = {}

    def __getitem__(self, name: str) -> EngineProcess:
        if name not in self.running:
            path = self.args.before if name == "before" else None
            words = ["--worker", name, self.args.device, str(self.args.threads)]
            module = "benchmarks.speed.decoding"
            self.running[name] = EngineProcess(module, words, self.args.threads, path)
        return self.running[name]

    def end_cell(self) -> None:
        """End the processes that must not serve another cell."""
        if self.args.device == "cpu":
            self.end()

    def end(self) -> None:
        """End all processes."""
        for process in self.running.values():
            process.end()
        self.running.clear()


def measured(
    cell: Cell, names: list[str], processes: Processes, rounds: int, clock: str = "wall"
) -> list[Record]:
    """Return the record of each engine, from rounds in which they take turns."""
    # all start to import their libraries at once
    opened = {name: processes[name] for name in names}
    found: dict[str, Record] = {name: each.ask("open", cell) for name, each in opened.items()}
    timed: dict[str, list[Record]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in [name for name in names if "error" not in found[name]]:
            answer = processes[name].ask("round")
            if "error" in answer:
                found[name] = answer
            else:
                timed[name].append(answer)
    records = []
    for name in names:
        record = {**cell._asdict(), "engine": name, **found[name], **processes[name].ask("close")}
        if "error" not in found[name]:
            record |= rates(cell, timed[name], clock)
        records.append(record)
    return records


def rates(cell: Cell, rounds: list[Record], clock: str = "wall") -> Record:
    """Return the median of the rounds' speed, and what was measured in each."""
    seconds = {"wall": "seconds", "cpu": "cpu_seconds"}[clock]
    per_second = [{"rate": cell.batch * each["searches"] / each[seconds]} for each in rounds]
    found: Record = {"sentences_per_s": harness.median(per_second, "rate"), "rounds": rounds}
    if cell.batch == 1:
        found["ms_per_token"] = 1e3 / (found["sentences_per_s"] * LENGTH)
    return found


def speed(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Yield the records of each cell."""
    processes, names = Processes(args), ["regard", *(["before"] if args.before else [])]
    try:
        for cell in cells(args):
            yield measured(cell, names, processes, args.rounds, args.clock)
            processes.end_cell()
    finally:
        processes.end()


def versions(args: argparse.Namespace) -> Record:
    """Return the versions of what runs, and where."""
    found: Record = {"device": args.device, "threads": args.threads}
    for name in PACKAGES:
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    if args.device == "cuda":
        import torch

        # the packages' metadata lack the CUDA version
        found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return found


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--threads", type=int, default=2, help="of the CPU, for each engine")
    add(
        "--models",
        type=harness.names,
        default=list(MODELS),
        help="preset:size, with commas between them",
    )
    add("--precisions", type=harness.names, default=["bf16", "32"])
    add("--beams", type=harness.numbers, default=[5, 1])
    add("--batches", type=harness.numbers, default=[1, 32, 256])
    add("--before", type=Path, metavar="SRC", help="folder of another checkout that holds regard")
    add("--before-commit", help="its commit, where git does not know it")
    add("--rounds", type=int, default=7, help="in which each engine has its turn")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: of the process, all threads")
    add("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    if args.clock == "cpu" and (args.device, args.threads) != ("cpu", 1):
        parser.error("--clock cpu adds up the time of all threads: use --device cpu --threads 1.")
    if args.before and not (args.before / "regard").is_dir():
        parser.error(f"--before must hold the package regard, but {args.before} does not.")
    if args.before and not args.before_commit:
        args.before_commit = harness.git("rev-parse", "HEAD", tree=args.before)
    return args


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        name, device, threads = sys.argv[2:]
        return harness.serve(Worker(name, device, int(threads)))
    args = parse()
    result = harness.provenance(**versions(args))
    settings = {"vocab": VOCAB, "length": LENGTH, "rounds": args.rounds, "clock": args.clock}
    result |= {"kind": "speed", "settings": settings}
    result["before"] = args.before_commit if args.before else None
    sys.exit(
        not harness.collect(result, speed(args), args.out, budget=args.budget, hidden=["rounds"])
    )


if __name__ == "__main__":
    main()
