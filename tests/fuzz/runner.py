"""Run cases in worker processes, and judge what each of them did.

A case fails if it ends in a traceback or an internal error, hangs, needs too much memory, kills
its process, or touches a file outside of its own folder.
"""

import hashlib
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
from typer.testing import CliRunner

import regard
from fuzz.cases import Case, make_bases, make_case
from regard.ops import use_backend

#: seconds of CPU time, seconds by the clock and bytes of memory that one case may take: a case that
#: waits uses no CPU time, and a machine that is busy with other work gives little of it
MOST_CPU, MOST_SECONDS = 60.0, 300.0
MOST_MEMORY = 3 << 30
INTERNAL = "something inside regard went wrong"
SOURCES = str(Path(regard.__file__).parent)
#: audit events that change files, or leave this process
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
LEAVES = (
    "pickle.find_class",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
)


class Verdict(NamedTuple):
    """What became of a case; `problem` is empty if all is well."""

    number: int
    kind: str
    problem: str
    seconds: float


class Watch:
    """Notes every file that Python opens for writing, removes or renames outside of a folder."""

    def __init__(self) -> None:
        self.allowed: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, given: tuple[Any, ...]) -> None:
        if self.allowed is None:
            return
        if event == "open":
            path, _, flags = given
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and isinstance(path, str | bytes | os.PathLike):
                self._check(event, path)
        elif event in CHANGES:
            for path in given[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(event, path)
        elif event in LEAVES:
            self.seen.append(f"{event} {given[:1]}")

    def _check(self, event: str, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if name.startswith(SOURCES) and "/__pycache__" in name:  # where numba keeps its kernels
            return
        if not f"{name}/".startswith((f"{os.devnull}/", f"{self.allowed}/")):
            self.seen.append(f"{event} {name}")


class Sandbox:
    """Folders of a worker: its cases, and the canary beside them that nothing may touch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canary = root / "canary"
        self.canary.mkdir(parents=True)
        (self.canary / "notes.txt").write_text("mine")
        (self.canary / "folder").mkdir()
        (self.canary / "folder" / "more.txt").write_text("mine, too")
        self.before = digest(self.canary)

    @property
    def case(self) -> Path:
        """The folder of the case that is run."""
        return self.root / "case"

    def fresh(self) -> Path:
        """Empty the folder of the case."""
        shutil.rmtree(self.case, ignore_errors=True)
        self.case.mkdir()
        return self.case


def digest(folder: Path) -> str:
    """A text that changes with any file of a folder."""
    found = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found.update(f"{path.relative_to(folder)} {path.lstat().st_mode}\0".encode() + content)
    return found.hexdigest()


def judge(case: Case, sandbox: Sandbox, watch: Watch) -> str:
    """Run a case in this process, and say what is wrong with what it did; empty if nothing is."""
    from regard.cli import app, console

    lacking: list[str] = []
    describe = console.describe_memory_error

    def described(error: BaseException) -> str | None:
        found = describe(error)
        lacking.extend([] if found is None else [found])
        return found

    console.describe_memory_error = described
    watch.seen.clear()
    watch.allowed = str(sandbox.case)
    try:
        with use_backend("torch"):  # others compile kernels, which takes long and writes caches
            result = CliRunner().invoke(app, case.words, input=case.stdin)
    finally:
        watch.allowed = None
        console.describe_memory_error = describe
    if watch.seen:
        return f"touched {watch.seen[0][:200]}"
    if digest(sandbox.canary) != sandbox.before:
        return "changed the canary"
    last = (result.stderr.splitlines() or [""])[-1]
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"raised {result.exception!r:.300}"
    if INTERNAL in result.stderr or "Traceback" in result.output:
        return f"internal error: {last[:300]}"
    if result.exit_code not in (0, 1, 2):
        return f"exit code {result.exit_code}"
    if lacking:
        return f"out of memory: {lacking[0][:200]}"
    if result.exit_code and not (last.startswith("regard: ") and last.endswith(".")):
        return f"no sentence: {last[:200]!r}"
    return ""


def work(numbers: list[int], seed: int, bases: Path, root: Path, tell: Connection) -> None:
    """Run some cases in a process of their own; tell when each begins and how it ends."""
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "100"
    sandbox, watch = Sandbox(root), Watch()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    _limit_memory()
    for number in numbers:
        folder = sandbox.fresh()
        os.chdir(folder)
        tempfile.tempdir = str(folder)
        torch.manual_seed(number)
        began, kind = time.monotonic(), "the fuzzer itself"
        tell.send((number, kind))
        try:
            case = make_case(seed, number, bases, folder, sandbox.canary)
            kind = case.kind
            tell.send((number, kind))
            problem = judge(case, sandbox, watch)
        except Exception as error:
            problem = f"{type(error).__name__}: {error} {traceback.format_exc()[-600:]}"
        tell.send(Verdict(number, kind, problem, time.monotonic() - began))
    os.chdir("/")
    shutil.rmtree(root, ignore_errors=True)


def _limit_memory() -> None:
    """Let this process have so much more address space than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Worker:
    """A process that runs cases, and the case that it is at."""

    def __init__(self, numbers: list[int], seed: int, bases: Path, root: Path) -> None:
        context = multiprocessing.get_context("fork")
        self.told, tell = context.Pipe(duplex=False)
        self.numbers, self.root = numbers, root
        self.at: tuple[int, str] | None = None
        given = (numbers, seed, bases, root, tell)
        self.process = context.Process(target=work, args=given, daemon=True)
        self.process.start()
        tell.close()
        self.begin()

    def begin(self) -> None:
        """Count the seconds of the case at hand from now on."""
        self.since, self.cpu_since = time.monotonic(), self.cpu_seconds()

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far; 0 once it has ended."""
        try:
            stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def overdue(self) -> str:
        """The limit that the case at hand has passed, or an empty text."""
        if self.cpu_seconds() - self.cpu_since > MOST_CPU:
            return f"hang: more than {MOST_CPU:g} s of CPU time"
        if time.monotonic() - self.since > MOST_SECONDS:
            return f"hang: more than {MOST_SECONDS:g} s"
        return ""

    def ended(self, problem: str) -> Verdict:
        """What to say of the case that has ended the process."""
        self.process.kill()
        self.process.join()
        number, kind = self.at or (self.numbers[0], "before the first case")
        return Verdict(number, kind, problem, time.monotonic() - self.since)


def run_cases(numbers: list[int], seed: int, workers: int, folder: Path) -> Iterator[Verdict]:
    """Judge cases in several processes; one that dies or hangs is replaced by another.

    Args:
        numbers: of the cases.
        seed: chooses them.
        workers: processes.
        folder: where files are written.
    """
    bases = folder / "bases"
    bases.mkdir(parents=True)
    make_bases(bases)
    count = 0

    def started(own: list[int]) -> Worker:
        nonlocal count
        count += 1
        return Worker(own, seed, bases, folder / f"worker-{count}")

    at_work = [started(numbers[i::workers]) for i in range(workers) if numbers[i::workers]]
    while at_work:
        ready = wait([worker.told for worker in at_work], timeout=1.0)
        for worker in list(at_work):
            verdict = None
            if worker.told in ready:
                try:
                    heard = worker.told.recv()
                except EOFError:
                    worker.process.join()
                    if worker.process.exitcode:
                        verdict = worker.ended(f"killed: exit code {worker.process.exitcode}")
                    elif worker.at is None:
                        at_work.remove(worker)
                        continue
                else:
                    worker.begin()
                    if not isinstance(heard, Verdict):
                        worker.at = heard
                        continue
                    worker.at = None
                    yield heard
                    continue
            elif late := worker.overdue():
                verdict = worker.ended(late)
            if verdict is not None:
                yield verdict
                at_work.remove(worker)
                shutil.rmtree(worker.root, ignore_errors=True)
                rest = worker.numbers[worker.numbers.index(verdict.number) + 1 :]
                at_work += [started(rest)] if rest else []


def summary(verdicts: list[Verdict], seed: int) -> str:
    """Counts by kind, and how to reproduce each failure."""
    kinds = Counter(verdict.kind.partition(",")[0] for verdict in verdicts)
    bad = [verdict for verdict in verdicts if verdict.problem]
    lines = [f"{count:6,} {kind}" for kind, count in sorted(kinds.items())]
    lines.append(f"{len(verdicts):6,} cases, {len(bad)} failed")
    for verdict in sorted(bad):
        lines.append(f"{verdict.kind}: {verdict.problem}")
        lines.append(f"    make fuzz SEED={seed} CASE={verdict.number}")
    return "\n".join(lines)
