"""Measure the code base: files, lines, import circles, flow of values, duplicates, names.

python -m benchmarks.tools.house                          # figures of this checkout, as JSON
python -m benchmarks.tools.house --repo DIR --times       # of another, with seconds of imports
python -m benchmarks.tools.house --flow                   # the files on the way of two values
"""

import argparse
import ast
import gc
import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: first words that a reader would not search for
VAGUE = ("What", "Whether", "Where", "How", "Which")


class Package:
    """The modules of a package, parsed."""

    def __init__(self, root: Path) -> None:
        self.source = root / "src"
        self.files = sorted(self.source.rglob("*.py"))
        self.texts = {file: file.read_text(encoding="utf-8") for file in self.files}
        collecting = gc.isenabled()
        gc.disable()  # each pass of the collector would visit all nodes, and none is garbage
        self.trees = {file: ast.parse(text) for file, text in self.texts.items()}
        self.nodes = {file: list(ast.walk(tree)) for file, tree in self.trees.items()}
        if collecting:
            gc.enable()
        self.names = {self.module(file): file for file in self.files}

    def module(self, file: Path) -> str:
        """Return the dotted name of a file."""
        parts = file.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cache  # noqa: B019 (one short process)
    def imported(self, file: Path) -> set[str]:
        """Return the modules of the package that a file imports, also inside functions.

        Names that are imported for type checking alone count too: a reader follows them.
        """
        module, found = self.module(file), set()
        for node in self.nodes[file]:
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    up = node.level - (file.name == "__init__.py")
                    parents = module.split(".")[: len(module.split(".")) - up]
                    base = ".".join([*parents, *filter(None, [node.module])])
                targets = [f"{base}.{alias.name}" for alias in node.names]
            else:
                continue
            for target in targets:
                while target and target not in self.names:
                    target = target.rpartition(".")[0]
                if target and target != module:
                    found.add(target)
        return found

    def circles(self) -> list[list[str]]:
        """Return the strongly connected components of more than one module (Tarjan, 1972).

        A package's `__init__` that gathers names of its own modules is left out.
        """
        edges = {
            name: {
                other
                for other in self.imported(file)
                if not name.startswith(f"{other}.") and other != name
            }
            for name, file in self.names.items()
        }
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        components: list[list[str]] = []

        def visit(name: str) -> None:
            index[name] = low[name] = len(index)
            stack.append(name)
            for other in edges[name]:
                if other not in index:
                    visit(other)
                    low[name] = min(low[name], low[other])
                elif other in stack:
                    low[name] = min(low[name], index[other])
            if low[name] == index[name]:
                position = stack.index(name)
                components.append(sorted(stack[position:]))
                del stack[position:]

        sys.setrecursionlimit(10_000)
        for name in edges:
            if name not in index:
                visit(name)
        return [component for component in components if len(component) > 1]

    def definitions(self) -> Iterator[tuple[Path, Any]]:
        """Yield every class and function with its file."""
        for file, nodes in self.nodes.items():
            for node in nodes:
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield file, node

    def repeated_classes(self) -> dict[str, list[str]]:
        """Return public names of classes that several modules define."""
        places = defaultdict(list)
        for file, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(self.module(file))
        return {name: found for name, found in places.items() if len(found) > 1}

    def vague_docstrings(self) -> list[str]:
        """Return modules, classes and functions whose docstring begins with one of VAGUE."""
        places = [(self.module(file), tree) for file, tree in self.trees.items()]
        places += [(f"{self.module(f)}.{node.name}", node) for f, node in self.definitions()]
        firsts = ((place, (ast.get_docstring(node) or "").split(" ")[0]) for place, node in places)
        return [place for place, first in firsts if first in VAGUE]

    def flow(self, start: str, value: re.Pattern[str]) -> dict[str, Any]:
        """Follow calls that pass a value on, from one function, depth first.

        A call is followed if one of its arguments mentions the value and its name is defined once
        in the package, or in a module that the caller's module imports.

        Args:
            start: `module:function` or `module:Class.method`.
            value: matches the expressions that carry the value.
        """
        functions: dict[str, list[tuple[Path, Any]]] = defaultdict(list)
        for file, node in self.definitions():
            if isinstance(node, ast.ClassDef):
                for part in node.body:
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                        functions[node.name].append((file, part))
            else:
                functions[node.name].append((file, node))
        module, _, function = start.partition(":")
        first = self.names[module]
        nodes = [n for f, n in functions[function.rpartition(".")[2]] if f == first]
        walk: list[Path] = []
        seen: set[int] = set()

        def visit(file: Path, node: Any) -> None:
            if id(node) in seen:
                return
            seen.add(id(node))
            walk.append(file)
            near = {self.names[name] for name in self.imported(file)} | {file}
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if not any(value.search(ast.unparse(argument)) for argument in given):
                    continue
                name = call.func.attr if isinstance(call.func, ast.Attribute) else None
                name = call.func.id if isinstance(call.func, ast.Name) else name
                found = functions.get(name or "", [])
                found = [f for f in found if f[0] in near] or (found if len(found) == 1 else [])
                for target in found[:1]:
                    visit(*target)
                    walk.append(file)

        for node in nodes[:1]:
            visit(first, node)
        path = [file for i, file in enumerate(walk) if i == 0 or file != walk[i - 1]]
        files = list(dict.fromkeys(path))
        return {
            "from": start,
            "files": len(files),
            "comes_back": len(path) - len(files),
            "path": [str(file.relative_to(self.source)) for file in files],
        }


def measure(root: Path) -> dict[str, Any]:
    """Return the figures of a checkout that reading it gives."""
    package = Package(root)
    lines = {file: text.count("\n") for file, text in package.texts.items()}
    project = (root / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", project, re.S | re.M)
    circles = package.circles()
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "files_under_40_lines": sum(
            n < 40 for file, n in lines.items() if file.name != "__init__.py"
        ),
        "docstrings_that_begin_vaguely": len(package.vague_docstrings()),
        "circles": len(circles),
        "files_in_circles": sum(map(len, circles)),
        "public_class_names_repeated": len(package.repeated_classes()),
        "hard_dependencies": len(re.findall(r'"', dependencies.group(1))) // 2
        if dependencies
        else 0,
        "test_lines": sum(
            file.read_text(encoding="utf-8").count("\n") for file in (root / "tests").rglob("*.py")
        ),
    }


def commit(root: Path) -> str:
    """Return the commit that is checked out, marked if files differ from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def flows(root: Path) -> list[dict[str, Any]]:
    """Return the way of `config` from the start of a run."""
    package = Package(root)
    starts = [
        f"{package.module(file)}:{node.name}"
        for file, node in package.definitions()
        if node.name == "start_run" and "training" in str(file)
    ]
    return [package.flow(start, re.compile(r"\bconfig\b")) for start in starts[:1]]


#: prints the files of functions in the order in which prediction first calls them
WATCH_PREDICT = """
import sys
import regard
model = regard.load("g2p", device="cpu")
seen, files = set(), []
def watch(frame, event, argument):
    code = frame.f_code
    name = code.co_filename.rpartition("/src/regard/")[2]
    if event == "call" and "/src/regard/" in code.co_filename and code not in seen:
        seen.add(code)
        if name.split("/")[0] not in ("ops", "attention", "layers", "models"):
            files.append(name)
sys.setprofile(watch)
list(model.predict(["attention"]))
sys.setprofile(None)
print("\\n".join(files))
"""


def way_of_texts(root: Path) -> dict[str, Any]:
    """Run a prediction, and return the files that its texts pass above the model's own."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH_PREDICT],
        env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    walk = done.stdout.split()
    path = [file for i, file in enumerate(walk) if i == 0 or file != walk[i - 1]]
    files = list(dict.fromkeys(path))
    back = len(path) - len(files)
    return {"from": "Model:predict", "files": len(files), "comes_back": back, "path": files}


def seconds(root: Path, code: str) -> float:
    """Return the CPU seconds of a Python program, the least of three."""
    best = float("inf")
    for _ in range(3):
        program = (
            "import resource,subprocess,sys;"
            f"subprocess.run([sys.executable,'-c',{code!r}],stdout=subprocess.DEVNULL,check=False);"
            "u=resource.getrusage(resource.RUSAGE_CHILDREN);print(u.ru_utime+u.ru_stime)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        best = min(best, float(done.stdout))
    return round(best, 2)


def main() -> int:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repo", type=Path, default=ROOT)
    parser.add_argument("--out", type=Path, help="write the figures to this file, too")
    parser.add_argument("--times", action="store_true", help="measure imports and help, too")
    parser.add_argument("--flow", action="store_true", help="list the files on the way of values")
    arguments = parser.parse_args()
    figures = {"commit": commit(arguments.repo), **measure(arguments.repo)}
    for flow in [*flows(arguments.repo), way_of_texts(arguments.repo)]:
        name = flow["from"].rpartition(":")[2]
        figures[f"files_from_{name}"] = flow["files"]
        figures[f"returns_from_{name}"] = flow["comes_back"]
        if arguments.flow:
            figures[f"path_from_{name}"] = flow["path"]
    if arguments.times:
        call = "import sys; sys.argv=['regard','--help']; from regard.__main__ import main; main()"
        figures["cpu_seconds_of_help"] = seconds(arguments.repo, call)
        figures["cpu_seconds_of_import_attention"] = seconds(
            arguments.repo, "import regard.attention"
        )
        figures["cpu_seconds_of_import_torch"] = seconds(arguments.repo, "import torch")
    text = json.dumps(figures, indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
