"""Time beam search from ids to ids: regard, Hugging Face `generate` and CTranslate2, in turn.

    python -m benchmarks.speed.decoding --device cuda --before OTHER/src --out FILE

All models have random weights, and all outputs exactly 20 tokens. Each engine has a process of its
own; in a round each has its turn, so that a slower moment of the machine is nobody's alone. What
matters most comes first, and each record is written when it is there.
"""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from benchmarks import harness
from benchmarks.harness import EngineProcess, Record
from benchmarks.speed.engines import COMPUTE_TYPES, LENGTH, VOCAB, Cell

MODELS: Final = ("transformer:small", "transformer:base", "bahdanau:small", "self-attentive:small")
#: engines beside regard that run the preset `transformer` alone
PEERS: Final = {"hf": "transformers", "ctranslate2": "ctranslate2"}
PACKAGES: Final = ("torch", "triton", "transformers", "ctranslate2")


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return the cells, wide beams first."""
    every = itertools.product(args.beams, args.precisions, args.models, args.batches)
    found = []
    for beam, precision, model, batch in every:
        preset, _, size = model.partition(":")
        found.append(Cell(preset, size or "small", precision, beam, batch))
    return found


def engines(cell: Cell, args: argparse.Namespace) -> list[str]:
    """Return the engines that run a cell, in the order in which they take turns."""
    peers = args.peers if cell.preset == "transformer" else []
    peers = [name for name in peers if supports(name, cell.precision, args.device)]
    return ["regard", *(["before"] if args.before else []), *peers]


def supports(engine: str, precision: str, device: str) -> bool:
    """Return whether an engine computes in this precision; CTranslate2 may lack bf16."""
    if engine != "ctranslate2":
        return True
    import ctranslate2

    return COMPUTE_TYPES[precision] in ctranslate2.get_supported_compute_types(device)


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
            words = [name, self.args.device, str(self.args.threads)]
            module = "benchmarks.speed.engines"
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
    processes = Processes(args)
    try:
        for cell in cells(args):
            yield measured(cell, engines(cell, args), processes, args.rounds, args.clock)
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
    add(
        "--peers",
        type=harness.names,
        help="other engines: hf, ctranslate2; those installed by default",
    )
    add("--before", type=Path, metavar="SRC", help="folder of another checkout that holds regard")
    add("--before-commit", help="its commit, where git does not know it")
    add("--rounds", type=int, default=7, help="in which each engine has its turn")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: of the process, all threads")
    add("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    if args.peers is None:
        args.peers = [n for n, package in PEERS.items() if importlib.util.find_spec(package)]
        if args.device == "cuda":
            args.peers = [name for name in args.peers if name != "ctranslate2"]
    missing = [name for name in args.peers if not importlib.util.find_spec(PEERS.get(name, name))]
    if missing:
        parser.error(f"--peers must name installed engines, but {missing[0]} is not: leave it out.")
    if args.clock == "cpu" and (args.device, args.threads) != ("cpu", 1):
        parser.error("--clock cpu adds up the time of all threads: use --device cpu --threads 1.")
    if args.before and not (args.before / "regard").is_dir():
        parser.error(f"--before must hold the package regard, but {args.before} does not.")
    if args.before and not args.before_commit:
        args.before_commit = harness.git("rev-parse", "HEAD", tree=args.before)
    return args


def main() -> None:
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
