"""Measure the strength of the tests: mutate random places, and count what the tests notice.

A mutant changes one operator, constant, condition or statement. The tests that reach its line run
until the first one fails; a mutant that none of them notices has survived. Two versions of the code
are compared by the share of mutants that are caught.

    python -m benchmarks.tools.mutation --repo DIR --out mutants.json --mutants 200 --workers 16

First the tests of the mutated packages run once under `coverage`, which records the lines that
each one reaches. Each mutant is then judged in a fork of a process that has the heavy libraries
loaded, so that it costs seconds. Files of GPU kernels are left out, which no CPU reaches, and
functions that numba compiles, whose lines `coverage` does not see: the operators' rule holds them.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

PACKAGES = ("ops", "attention", "decoding", "training")
#: marks of the tests that may judge: those of `make test` that no compiler slows down
MARKS = "not plain and not compile and not system and not browser and not long and not gpu"
#: tests of one mutant, the quickest of those that reach its line
MOST_TESTS = 40
#: CPU seconds, and seconds by the clock, after which a mutant that hangs counts as caught
CPU_LIMIT, LIMIT = 60, 300
#: decorators of functions that numba compiles
COMPILERS = {"kernel", "part", "part_in_order", "inlined", "njit"}
#: what tests import that no mutant changes, plugins of pytest apart: loaded before the forks
LOADED = ("torch", "numpy")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "@": "*", "&": "|"}

#: pytest plugin that writes the seconds of each test and the tests that reach each line
PLUGIN = """
import json, os, time

import coverage
import pytest

ROOT, OUT = os.environ["MUTATION_SOURCE"], os.environ["MUTATION_OUT"]
measured = coverage.Coverage(
    data_file=os.path.join(OUT, f"{os.getpid()}.coverage"), source=[ROOT], config_file=False,
    messages=False,
)
measured.start()
seconds, failed = {}, []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    measured.switch_context(item.nodeid)
    began = time.perf_counter()
    result = yield
    seconds[item.nodeid] = time.perf_counter() - began
    return result


def pytest_runtest_logreport(report):
    if report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish(session):
    measured.stop()
    if seconds:
        data = measured.get_data()
        reached = {
            os.path.relpath(file, ROOT): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        with open(os.path.join(OUT, f"{os.getpid()}.json"), "w") as file:
            json.dump({"seconds": seconds, "failed": failed, "reached": reached}, file)
"""


class Mutant(NamedTuple):
    """One change of the source: a span of a line and what replaces it."""

    file: str
    line: int
    start: int
    end: int
    new: str
    kind: str


def mutants_of(file: str, source: str) -> Iterator[Mutant]:
    """Yield all mutants of a file. Annotations, docstrings and error messages are left alone."""
    lines = source.encode().splitlines()
    tree = ast.parse(source)
    skipped: set[int] = set()
    for node in ast.walk(tree):
        parts: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        parts += node.decorator_list if hasattr(node, "decorator_list") else []
        if isinstance(node, ast.Raise | ast.Assert):
            parts.append(node)
        for part in filter(None, parts):
            skipped |= {id(inner) for inner in ast.walk(part)}

    def text_between(left: ast.expr, right: ast.expr) -> tuple[int, int, str] | None:
        if left.end_lineno != right.lineno:
            return None
        assert left.end_col_offset is not None
        between = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
        operator = between.strip(" ()")
        start = left.end_col_offset + between.find(operator)
        return start, start + len(operator), operator

    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if found := text_between(node.left, node.comparators[0]):
                start, end, operator = found
                if operator in COMPARISONS:
                    row = node.comparators[0].lineno
                    yield Mutant(file, row, start, end, COMPARISONS[operator], "comparison")
        elif isinstance(node, ast.BinOp):
            if found := text_between(node.left, node.right):
                start, end, operator = found
                if operator in ARITHMETIC:
                    row = node.right.lineno
                    yield Mutant(file, row, start, end, ARITHMETIC[operator], "arithmetic")
        elif isinstance(node, ast.BoolOp):
            if found := text_between(node.values[0], node.values[1]):
                start, end, operator = found
                other = "or" if isinstance(node.op, ast.And) else "and"
                if operator in ("and", "or"):
                    yield Mutant(file, node.values[1].lineno, start, end, other, "boolean")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield Mutant(file, line, node.col_offset, node.col_offset + 4, "", "negation")
        elif isinstance(node, ast.Constant) and node.lineno == node.end_lineno:
            assert node.end_col_offset is not None
            new = None
            if isinstance(node.value, bool):
                new = str(not node.value)
            elif isinstance(node.value, int | float):
                new = repr(node.value + 1)
            if new is not None:
                yield Mutant(file, line, node.col_offset, node.end_col_offset, new, "constant")
        elif isinstance(node, ast.If | ast.IfExp) and node.test.lineno == node.test.end_lineno:
            test = node.test
            assert test.end_col_offset is not None
            old = lines[test.lineno - 1][test.col_offset : test.end_col_offset].decode()
            new = f"not ({old})"
            yield Mutant(file, test.lineno, test.col_offset, test.end_col_offset, new, "condition")
        elif (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and node.lineno == node.end_lineno
        ):
            assert node.end_col_offset is not None
            yield Mutant(file, line, node.col_offset, node.end_col_offset, "pass", "statement")


def mutate(source: str, mutant: Mutant) -> str | None:
    """Return the source with the change, or None if it is then no Python."""
    lines = source.encode().splitlines(keepends=True)
    row = lines[mutant.line - 1]
    lines[mutant.line - 1] = row[: mutant.start] + mutant.new.encode() + row[mutant.end :]
    text = b"".join(lines).decode()
    try:
        compile(text, mutant.file, "exec")
    except SyntaxError:
        return None
    return text if text != source else None


def lines_at_import(source: str) -> set[int]:
    """Return the lines outside of functions, which run before any test."""
    inside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            inside |= set(range(body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return set(range(1, source.count("\n") + 2)) - inside


def compiled_lines(source: str) -> set[int]:
    """Return the lines of the functions of a file that numba compiles."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            inner = (part for decorator in node.decorator_list for part in ast.walk(decorator))
            if COMPILERS & {name.id for name in inner if isinstance(name, ast.Name)}:
                found |= set(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return found


def is_measured(path: Path) -> bool:
    """Return whether a file can be reached without a GPU."""
    return "triton" not in path.name


class Checkout:
    """A copy of the package that a worker may change, beside the tests."""

    def __init__(self, repo: Path, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(repo / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for path in repo.iterdir():
            if path.name != "src" and not path.name.startswith("."):
                (folder / path.name).symlink_to(path)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a test run of this copy."""
        paths = [str(self.folder / "src"), str(self.folder), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            **more,
        }

    def compile_kernels(self) -> None:
        """Fill the cache of numba, so that no mutant is judged by the time that compiling takes."""
        source = self.folder / "src"
        modules = [
            ".".join(path.relative_to(source).with_suffix("").parts)
            for path in sorted(source.rglob("*kernels.py"))
            if "@kernel(" in path.read_text(encoding="utf-8")
        ]
        imports = "\n".join(f"import {module}" for module in modules)
        subprocess.run([sys.executable, "-c", imports], env=self.environment(), check=True)

    def pytest(self, *args: str, timeout: float, **more: str) -> subprocess.CompletedProcess[str]:
        """Run pytest on this copy."""
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
            cwd=self.folder,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


class Reached(NamedTuple):
    """Tests by the line, and by the file, that they reach, each with its seconds."""

    by_line: dict[tuple[str, int], list[tuple[float, str]]]
    by_file: dict[str, list[tuple[float, str]]]


def reach(checkout: Checkout, arguments: argparse.Namespace) -> Reached:
    """Run the tests once without mutants, and return what each one reaches."""
    out = checkout.folder / "reached"
    out.mkdir()
    (checkout.folder / "mutation_plugin.py").write_text(PLUGIN)
    done = checkout.pytest(
        *(arguments.tests or [f"tests/{package}" for package in arguments.packages]),
        *("-m", arguments.marks, "-n", str(arguments.workers), "-p", "mutation_plugin"),
        *arguments.pytest,
        timeout=arguments.seconds,
        MUTATION_SOURCE=str(checkout.folder / "src"),
        MUTATION_OUT=str(out),
    )
    print(done.stdout[-600:], flush=True)
    by_line: dict[tuple[str, int], list[tuple[float, str]]] = defaultdict(list)
    by_file: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for path in out.glob("*.json"):
        found = json.loads(path.read_text())
        failed, seconds = set(found["failed"]), found["seconds"]
        for file, lines in found["reached"].items():
            names = {line: {*tests} & seconds.keys() - failed for line, tests in lines.items()}
            by_file[file] += [(seconds[name], name) for name in set().union(*names.values())]
            for line, tests in names.items():
                by_line[file, int(line)] += [(seconds[name], name) for name in tests]
        print(f"{len(seconds)} tests, {len(failed)} of them fail without any mutant", flush=True)
    return Reached(by_line, by_file)


class Judge:
    """A process that has loaded what no mutant changes, and forks itself for each mutant."""

    def __init__(self, checkout: Checkout, options: list[str]) -> None:
        self.checkout = checkout
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--judge", *options],
            cwd=checkout.folder,
            env=checkout.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def verdict(self, source: str, mutant: Mutant, tests: list[str]) -> str:
        """Return `caught` or `survived` for one mutant."""
        path = self.checkout.folder / "src" / mutant.file
        changed = mutate(source, mutant)
        assert changed is not None
        _write(path, changed)
        try:
            return self.run(tests)
        finally:
            _write(path, source)

    def run(self, tests: list[str]) -> str:
        """Return `survived` if the tests pass on the copy as it is, else `caught`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(tests), file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


def judge_forever(options: list[str]) -> None:
    """Read lists of tests, and write whether a fork of this process passes them."""
    for name in LOADED:
        importlib.import_module(name)
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT))
            code = 1
            with contextlib.suppress(BaseException):
                args = ["-x", "-q", "-p", "no:cacheprovider", *options, *json.loads(line)]
                code = int(importlib.import_module("pytest").main(args))
            os._exit(code)
        end, status = time.monotonic() + LIMIT, (0, 1)
        while (status := os.waitpid(child, os.WNOHANG))[0] == 0:
            time.sleep(0.02)
            if time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
        os.write(answers, b"survived\n" if status[1] == 0 else b"caught\n")


def _write(path: Path, source: str) -> None:
    """Write a module. Its bytecode may look up to date within the same second, so it is removed."""
    path.write_text(source, encoding="utf-8")
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Mutate, test and count."""
    began, repo = time.time(), arguments.repo.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / str(i) for i in range(arguments.workers)]
        copies = [Checkout(repo, folder) for folder in folders]
        with ThreadPoolExecutor(arguments.workers) as pool:
            list(pool.map(Checkout.compile_kernels, copies))
        by_line, by_file = reach(copies[0], arguments)
        sources, candidates, at_import = {}, [], {}
        for package in arguments.packages:
            for path in sorted((repo / "src" / "regard" / package).rglob("*.py")):
                if is_measured(path):
                    file = str(path.relative_to(repo / "src"))
                    sources[file] = path.read_text(encoding="utf-8")
                    compiled = compiled_lines(sources[file])
                    found = mutants_of(file, sources[file])
                    candidates += [mutant for mutant in found if mutant.line not in compiled]
                    at_import[file] = lines_at_import(sources[file])
        random.Random(arguments.seed).shuffle(candidates)
        chosen: list[Mutant] = []
        for mutant in candidates:
            if len(chosen) < arguments.mutants and mutate(sources[mutant.file], mutant):
                chosen.append(mutant)
        free: Queue[Judge] = Queue()
        for copy in copies:
            free.put(Judge(copy, arguments.pytest))

        def work(mutant: Mutant) -> str:
            reaching = by_line.get((mutant.file, mutant.line), [])
            if mutant.line in at_import[mutant.file]:
                reaching = by_file[mutant.file]
            names = [name for _, name in sorted(reaching)[:MOST_TESTS]]
            if not names:
                return "not reached"
            judge = free.get()
            try:
                if time.time() - began > arguments.seconds:
                    return "no time"
                return judge.verdict(sources[mutant.file], mutant, names)
            finally:
                free.put(judge)

        control = random.Random(0).sample(sorted({n for f in by_file.values() for _, n in f}), 40)
        judge = free.get()
        if judge.run(control) != "survived":
            raise SystemExit("tests fail without any mutant: their verdicts would mean nothing")
        free.put(judge)
        with ThreadPoolExecutor(arguments.workers) as pool:
            verdicts = list(pool.map(work, chosen))
        while not free.empty():
            free.get().process.kill()
    counts = Counter(verdicts)
    judged = counts["caught"] + counts["survived"]
    reached = 1 - counts["not reached"] / max(1, len(chosen))  # known of all, also of those not run
    return {
        "mutants": len(chosen),
        "judged": judged,
        "caught": counts["caught"],
        "survived": counts["survived"],
        "not_reached": counts["not reached"],
        "no_time": counts["no time"],
        "share_caught": round(reached * counts["caught"] / max(1, judged), 4),
        "candidates": len(candidates),
        "seconds": round(time.time() - began),
        "left": [
            {**mutant._asdict(), "verdict": verdict}
            for mutant, verdict in zip(chosen, verdicts, strict=True)
            if verdict != "caught"
        ],
    }


def main() -> int:
    """Read the command line and write the counts."""
    if sys.argv[1:2] == ["--judge"]:
        judge_forever(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repo", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--packages", nargs="*", default=PACKAGES)
    parser.add_argument("--tests", nargs="*", help="their folders, if not those of the packages")
    parser.add_argument("--marks", default=MARKS, help="expression of pytest's marks")
    parser.add_argument("--mutants", type=int, default=200)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600, help="time for all of it")
    parser.add_argument("--pytest", type=shlex.split, default=[], help="more options of pytest")
    result = run(arguments := parser.parse_args())
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print({name: value for name, value in result.items() if name != "left"})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
