"""What all benchmarks share: provenance of results, timing by turns, and engines in processes.

A result is a dictionary with the command, the machine and the commit, without names of the
computer or its user, and its records. `--out FILE` writes it.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"

Record = dict[str, Any]


def machine() -> Record:
    """Return what times depend on, apart from threads and the version of torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    fields = [tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line]
    names = [value for name, value in fields if name == "model name"]
    flags = {flag for name, value in fields if name == "flags" for flag in value.split()}
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "cpu": names[0] if names else platform.processor(),
        "cores": len(names) or None,
        "units": sorted(flags & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8"}),
        "python": platform.python_version(),
    }


def source() -> Record:
    """Return the commit that was measured, and whether files differ from it.

    A copy that is no checkout of its own gets its commit by the environment: REGARD_COMMIT.
    """
    if "REGARD_COMMIT" in os.environ:
        return {"commit": os.environ["REGARD_COMMIT"], "changed_since": None}
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_since": bool(git("status", "--porcelain")),
    }


def git(*args: str, tree: Path = ROOT) -> str | None:
    """Return the output of git, or None outside of a checkout."""
    try:
        done = subprocess.run(["git", *args], cwd=tree, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def command(arguments: Sequence[str] | None = None) -> str:
    """Return the command line of this process, without the folders of this computer."""
    script = Path(sys.argv[0])
    with contextlib.suppress(ValueError):
        script = script.resolve().relative_to(ROOT)
    words = sys.argv[1:] if arguments is None else arguments
    plain = (Path(w).name if "/" in w and not w.startswith("-") else w for w in words)
    return " ".join(["python -m", ".".join(script.with_suffix("").parts), *plain])


def provenance(**versions: Any) -> Record:
    """Return the head of a result: the command, the machine with versions, and the commit."""
    return {"command": command(), "machine": machine() | versions, **source()}


def versions(device: str) -> Record:
    """Return the versions of torch and, on a GPU, of CUDA and triton, with the GPU's name."""
    import torch

    found: Record = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        import triton

        # the thread of the first backward pass finds no context, and makes one
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
        found["triton"] = triton.__version__
    return found


def write(file: Path | None, result: Record) -> None:
    """Write a result as JSON, if a file is given."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=2) + "\n")


def collect(
    result: Record,
    groups: Iterable[list[Record]],
    file: Path | None,
    *,
    budget: float = float("inf"),
    hidden: Iterable[str] = (),
) -> bool:
    """Print and write records when they are there, so that a run cut short loses nothing.

    Args:
        result: its head; the records go to its key `records`.
        groups: records that are measured together, made while they are asked for.
        file: where to write the result, if anywhere.
        budget: seconds after which nothing new is begun.
        hidden: fields that are written, and not printed.

    Returns:
        Whether no record has an error.
    """
    began = time.perf_counter()
    result |= {"records": [], "complete": False}
    try:
        for records in groups:
            for record in records:
                print(json.dumps({k: v for k, v in record.items() if k not in hidden}), flush=True)
            result["records"] += records
            write(file, result)
            if time.perf_counter() - began > budget:
                break
        else:
            result["complete"] = True
    except KeyboardInterrupt:
        print("told to stop: the records so far are kept.", file=sys.stderr)
    result["seconds"] = time.perf_counter() - began
    write(file, result)
    return not any("error" in record for record in result["records"])


def parser(description: str | None, *, data: bool = False) -> argparse.ArgumentParser:
    """Return a parser of a benchmark, with `--out`, and `--data` where it reads data sets."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE")
    if data:
        default = Path(os.environ.get("REGARD_DATA", ROOT.parent / "shared" / "data"))
        made.add_argument("--data", type=Path, default=default, help="folder of the data sets")
    return made


def names(text: str) -> list[str]:
    """Parse names with commas between them."""
    return [word for word in text.split(",") if word]


def numbers(text: str) -> list[int]:
    """Parse numbers with commas between them."""
    return [int(word) for word in names(text)]


def peak_rss_mb() -> float:
    """Return the peak memory of this process in MiB.

    `ru_maxrss` would count the parent's memory at the time of the fork, too.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def timed(function: Callable[[], Any]) -> Record:
    """Return the seconds of a call by the clock and of the process, and its `value`."""
    began, cpu_began = time.perf_counter(), time.process_time()
    value = function()
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "value": value}


def in_turn(
    engines: Mapping[Any, Callable[[], Any]], rounds: int, *, warm_up: int = 0
) -> dict[Any, list[Record]]:
    """Time engines round by round, each in its turn, so that a slow moment is nobody's alone."""
    for _ in range(warm_up):
        for engine in engines.values():
            engine()
    found: dict[Any, list[Record]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            found[name].append(timed(engine))
    return found


def median(records: Sequence[Record], name: str) -> float:
    """Return the median of a field."""
    return statistics.median(record[name] for record in records)


class EngineProcess:
    """A module of the benchmarks in a process of its own, which answers requests by `serve`.

    Args:
        module: what is run, `benchmarks.speed.engines` for example.
        arguments: of its command line.
        threads: of the CPU.
        path: where it imports regard from; this checkout if None.
    """

    def __init__(
        self, module: str, arguments: Iterable[str], threads: int, path: Path | None = None
    ) -> None:
        others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        paths = [str((path or ROOT / "src").resolve()), str(ROOT), *others]
        settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **settings},
        )

    def ask(self, request: str, *values: Any) -> Record:
        """Return the answer to a request; its key `error` says what went wrong."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps([request, *values]) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process ended with status {self.process.wait()}"}
        answer: Record = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def answers(worker: object, requests: Iterable[str]) -> Iterator[Record]:
    """Yield the answer to each request: what its method returns, or the error that it raised."""
    for line in requests:
        name, *values = json.loads(line)
        try:
            yield getattr(worker, name)(*values)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            yield {"error": f"{type(error).__name__}: {first}"}


def serve(worker: object) -> None:
    """Answer the requests of an `EngineProcess` until it ends."""
    own, sys.stdout = sys.stdout, sys.stderr  # libraries print, too
    for answer in answers(worker, sys.stdin):
        print(json.dumps(answer), file=own, flush=True)
