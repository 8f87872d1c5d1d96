"""Time beam search from ids to ids: regard, Hugging Face `generate` and CTranslate2, in turn.

    python benchmarks/decoding.py --device cuda --before OTHER/src --json FILE
    python benchmarks/decoding.py --profile --before OTHER/src --json FILE
    python benchmarks/decoding.py --check 1000 --json FILE
    python benchmarks/decoding.py --render

All models have random weights, and all outputs exactly 20 tokens. Each engine has a process of its
own; in a round each has its turn, so that a slower moment of the machine is nobody's alone. What
matters most comes first, and each record is written when it is there. `--profile` counts the
kernels of one decoding step on a GPU; `--check` compares search replayed from CUDA graphs with the
plain one (on the CPU their functions run unrecorded); `--render` writes docs/decoding-speed.md from
benchmarks/results/decoding.
"""

import argparse
import importlib.util
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import decoding_page  # noqa: E402
import provenance  # noqa: E402
from decoding_engines import (  # noqa: E402
    COMPUTE_TYPES,
    LENGTH,
    VOCAB,
    Cell,
    EngineProcess,
)

RESULTS: Final = ROOT / "benchmarks" / "results" / "decoding"
PAGE: Final = ROOT / "docs" / "decoding-speed.md"
MODELS: Final = ("transformer:small", "transformer:base", "bahdanau:small", "self-attentive:small")
#: engines beside regard that run the preset `transformer` alone
PEERS: Final = {"hf": "transformers", "ctranslate2": "ctranslate2"}
PACKAGES: Final = ("torch", "triton", "transformers", "ctranslate2")
#: of `--profile`: what is read as one decoding step
PROFILED: Final = tuple(Cell("transformer", "small", "bf16", 5, batch) for batch in (1, 32))

Record = dict[str, Any]


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
            self.running[name] = EngineProcess(name, self.args.device, self.args.threads, path)
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
    return with_ratios(records)


def rates(cell: Cell, rounds: list[Record], clock: str = "wall") -> Record:
    """Return the median of the rounds' speed, and what was measured in each."""
    seconds = {"wall": "seconds", "cpu": "cpu_seconds"}[clock]
    per_second = [cell.batch * each["searches"] / each[seconds] for each in rounds]
    found: Record = {"sentences_per_s": statistics.median(per_second), "rounds": rounds}
    if cell.batch == 1:
        found["ms_per_token"] = 1e3 / (found["sentences_per_s"] * LENGTH)
    return found


def with_ratios(records: list[Record]) -> list[Record]:
    """Add to each record its speed as a multiple of that of Hugging Face in the same rounds."""
    speed = {r["engine"]: r["sentences_per_s"] for r in records if "sentences_per_s" in r}
    for record in records:
        if "hf" in speed and "sentences_per_s" in record:
            record["against_hf"] = record["sentences_per_s"] / speed["hf"]
    return records


def speed(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Yield the records of each cell."""
    processes = Processes(args)
    try:
        for cell in cells(args):
            yield measured(cell, engines(cell, args), processes, args.rounds, args.clock)
            processes.end_cell()
    finally:
        processes.end()


def profile(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Yield the work of one decoding step of regard, before and now, and of the peers."""
    processes = Processes(args)
    try:
        for cell in PROFILED:
            records = []
            for name in [*engines(cell, args), "regard plain"]:
                found = processes[name].ask("open", cell)
                if "error" not in found:
                    found |= processes[name].ask("profile")
                processes[name].ask("close")
                records.append({**cell._asdict(), "engine": name, **found})
            yield records
    finally:
        processes.end()


def check(args: argparse.Namespace) -> Iterator[list[Record]]:
    """Yield the comparison of replayed and plain search of each preset."""
    import decoding_check

    for record in decoding_check.compare_presets(args.check, args.device, args.presets):
        yield [record]


def versions(args: argparse.Namespace) -> Record:
    """Return the machine and the versions of what runs on it."""
    found: Record = {**provenance.machine(), "device": args.device, "threads": args.threads}
    for name in PACKAGES:
        if importlib.util.find_spec(name) is not None:
            found[name] = metadata.version(name)
    if args.device == "cuda":
        import torch

        # the packages' metadata lack the CUDA version
        found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return found


def run(args: argparse.Namespace) -> bool:
    """Write all records; return whether all could be measured."""
    kind = "profile" if args.profile else "check" if args.check else "speed"
    began = time.perf_counter()
    result: Record = {
        "kind": kind,
        "command": provenance.command(["python", "benchmarks/decoding.py", *sys.argv[1:]]),
        "machine": versions(args),
        **provenance.source(),
        "before": args.before_commit if args.before else None,
        "settings": {
            "vocab": VOCAB,
            "length": LENGTH,
            "rounds": args.rounds,
            "clock": args.clock,
        },
        "records": [],
        "complete": False,
    }
    if kind == "check":
        import decoding_check

        result["settings"] = {"sources": args.check, **decoding_check.SETTINGS}
    for records in {"speed": speed, "profile": profile, "check": check}[kind](args):
        result["records"] += records
        for record in records:
            hidden = ("rounds", "top")
            print(json.dumps({k: v for k, v in record.items() if k not in hidden}), flush=True)
        provenance.write(args.json, result)
        if time.perf_counter() - began > args.budget:
            break
    else:
        result["complete"] = True
    result["seconds"] = time.perf_counter() - began
    provenance.write(args.json, result)
    return not any("error" in record for record in result["records"])


def parse() -> argparse.Namespace:
    def some(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in some(text)]

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--json", type=Path, metavar="FILE", help="write the records to FILE")
    add("--render", action="store_true", help=f"write {PAGE.name} from the results instead")
    add("--profile", action="store_true", help="count the kernels of one decoding step instead")
    add("--check", type=int, metavar="N", help="compare both paths on N sources instead")
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--threads", type=int, default=2, help="of the CPU, for each engine")
    add("--models", type=some, default=list(MODELS), help="preset:size, with commas between them")
    add("--presets", type=some, help="of --check; all if not given")
    add("--precisions", type=some, default=["bf16", "32"])
    add("--beams", type=numbers, default=[5, 1])
    add("--batches", type=numbers, default=[1, 32, 256])
    add("--peers", type=some, help="other engines: hf, ctranslate2; those installed by default")
    add("--before", type=Path, metavar="SRC", help="folder of another checkout that holds regard")
    add("--before-commit", help="its commit, where git does not know it")
    add("--rounds", type=int, default=7, help="in which each engine has its turn")
    add("--clock", choices=["wall", "cpu"], default="wall", help="cpu: of the process, all threads")
    add("--budget", type=float, default=1e9, help="seconds after which nothing new is begun")
    args = parser.parse_args()
    if args.render:
        return args
    if args.peers is None:
        args.peers = [n for n, package in PEERS.items() if importlib.util.find_spec(package)]
        if args.device == "cuda":
            args.peers = [name for name in args.peers if name != "ctranslate2"]
    missing = [name for name in args.peers if not importlib.util.find_spec(PEERS.get(name, name))]
    if missing:
        parser.error(f"--peers must name installed engines, but {missing[0]} is not: leave it out.")
    if args.clock == "cpu" and (args.device, args.threads) != ("cpu", 1):
        parser.error("--clock cpu adds up the time of all threads: use --device cpu --threads 1.")
    if args.profile and args.device != "cuda":
        parser.error("--profile counts kernels of a GPU, but --device is cpu: leave one out.")
    if args.before and not (args.before / "regard").is_dir():
        parser.error(f"--before must hold the package regard, but {args.before} does not.")
    if args.before and not args.before_commit:
        args.before_commit = provenance.git("-C", str(args.before.resolve()), "rev-parse", "HEAD")
    return args


def main() -> None:
    args = parse()
    if args.render:
        PAGE.write_text(decoding_page.page(RESULTS), encoding="utf-8")
        return
    sys.exit(not run(args))


if __name__ == "__main__":
    main()
