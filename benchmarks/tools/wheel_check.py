"""Install the wheel into empty environments, and use it: the core alone, then each extra.

    python benchmarks/wheel_check.py --extras serve,plot --output benchmarks/results/wheel.json

Each extra gets an environment of its own, into which pip installs torch and the rest by
constraints.txt: minutes for each. `--extras all-of-them` tries every extra.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import ROOT
from benchmarks.tools.release_check import build

EVERY = "all-of-them"
PAIRS = "".join(f"{text}\t{' '.join(text[::-1])}\n" for text in ("ab", "abc", "bca", "cab")) * 10
#: a program as a user would write it; mypy must accept the first, and find the error of the second
TYPED = """
import regard

model = regard.load("g2p")
assert isinstance(model, regard.Model)
out: regard.Output = model("attention")
text: str = out.text
shape: tuple[int, ...] = tuple(out.maps["cross"][0].shape)
"""
WRONG = TYPED + "length: str = out.score\n"
#: what the core must do, and what each extra adds: lines of sh, with `regard` and `python`
CORE = (
    "regard --version",
    "regard show g2p attention --plain | grep -q AH",
    "regard models | grep -q g2p",
    "regard train pairs.tsv -o run size=tiny epochs=1 --quiet",
    "echo ab | regard predict run",
    "python -c 'import regard, sys; dir(regard); assert \"torch\" not in sys.modules'",
)
#: what the core refuses in one sentence that names the extra
REFUSED = {
    "regard show g2p cat -o map.png": "pip install 'regard[plot]'",
    "regard serve g2p --port 0": "pip install 'regard[serve]'",
    "regard export run": "pip install 'regard[onnx]'",
    "regard lab --list": "pip install 'regard[lab]'",
}
EXTRAS = {
    "cjk": ("python -c 'import jieba, budoux, pythainlp'",),
    "cpu": ("python -c 'from regard.ops.backend import HAS_NUMBA; assert HAS_NUMBA'",),
    "docs": ("python -c 'import mkdocs, mkdocstrings, latex2mathml, nbformat'",),
    "excel": ("echo cat > words.txt && regard predict g2p words.txt -o answers.xlsx",),
    "hf": ("python -c 'import regard, transformers; regard.generate'",),
    "lab": ("regard lab worked-example -o report && test -s report/report.md",),
    "media": ("python -c 'import PIL, soundfile, scipy'",),
    "onnx": ("regard export g2p -o exported && echo cat | python exported/decode.py",),
    "plot": ("regard show g2p cat -o map.png && test -s map.png",),
    "ray": ("echo cat > words.txt && regard predict g2p words.txt -o out --ray",),
    "recipes": ("python -c 'import sacremoses, rouge_score'",),
    "serve": (),  # the page is opened
    "sklearn": ("python -c 'import regard.sklearn'",),
    "tensorboard": ("regard train pairs.tsv -o logged size=tiny epochs=1 tensorboard=true -q",),
    "all": (),
}


class Environment:
    """An empty environment with the wheel installed; commands run in its folder.

    Args:
        folder: a new one; or one that has been used, whose dependencies are kept.
        wheel: the file.
        extra: of the package, or "" for none.
    """

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        self.fresh = not self.bin.exists()
        if self.fresh:
            venv.create(folder / "venv", with_pip=True)
        # nothing of the caller's own installation may be found
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.variables = {**kept, "PATH": f"{self.bin}:/usr/bin:/bin"}
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        limits = str(ROOT / "constraints.txt")
        start = time.perf_counter()
        if not self.fresh:  # pip would keep a wheel of the same version
            self.run(f"python -m pip install --quiet --force-reinstall --no-deps '{wheel}'")
            shutil.rmtree(folder / "run", ignore_errors=True)
        self.run(f"python -m pip install --quiet -c '{limits}' '{what}'")
        self.install_seconds = time.perf_counter() - start
        (folder / "pairs.tsv").write_text(PAIRS)

    def run(self, line: str, *, fails: bool = False) -> str:
        """Run a line of sh and return what it prints; exits if it fails, or does not if it must."""
        done = subprocess.run(
            ["sh", "-c", line], cwd=self.folder, env=self.variables, capture_output=True, text=True
        )
        if bool(done.returncode) != fails:
            sys.exit(f"{line}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    @contextmanager
    def served(self, line: str) -> Iterator[str]:
        """Start a server, wait until its page can be read, and yield the page."""
        words = [str(self.bin / "regard"), *line.split()[1:]]
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.variables, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            address = next((word for word in said.split() if word.startswith("http://")), None)
            if address is None:
                sys.exit(f"{line}: {said}{process.stderr.read()}")
            with urllib.request.urlopen(address, timeout=60) as page:
                yield page.read().decode()
        finally:
            process.terminate()
            process.wait(30)


def check_types(environment: Environment) -> None:
    """Check a user's program against the installed wheel by the mypy of this environment."""
    python = str(environment.bin / "python")
    for name, program, accepted in (("typed.py", TYPED, True), ("wrong.py", WRONG, False)):
        (environment.folder / name).write_text(program)
        words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, name]
        kept = {name: value for name, value in environment.variables.items() if name != "MYPYPATH"}
        done = subprocess.run(
            words, cwd=environment.folder, env=kept, capture_output=True, text=True
        )
        if (done.returncode == 0) != accepted:
            sys.exit(f"mypy of {name}: {done.stdout}{done.stderr}")


def check(folder: Path, wheel: Path, extra: str) -> dict[str, Any]:
    """Install the wheel with an extra, use it, and return how long both took."""
    environment = Environment(folder, wheel, extra)
    start = time.perf_counter()
    for line in EXTRAS[extra] if extra else CORE:
        environment.run(line)
    if not extra:
        check_types(environment)
        for line, command_ in REFUSED.items():
            said = environment.run(line, fails=True).strip()
            if command_ not in said or "\n" in said:
                sys.exit(f"{line} must name {command_} in one line, but says: {said}")
    if extra in ("serve", "all"):
        with environment.served("regard serve --port 0") as page:
            assert "<title>" in page
    return {
        "extra": extra or "none: the core",
        "fresh_environment": environment.fresh,
        "install_seconds": round(environment.install_seconds, 1),
        "use_seconds": round(time.perf_counter() - start, 1),
        "packages": len(environment.run("python -m pip list --format=freeze").splitlines()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help=f"comma-separated; {EVERY} for each")
    parser.add_argument(
        "--folder", type=Path, help="keep the environments here, and use those that are there"
    )
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    load = {"before": os.getloadavg()[0]}  # processes of others that want the same cores
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = set(declared["optional-dependencies"]) - {"dev"}
    assert known == EXTRAS.keys(), f"EXTRAS must have a check for each extra: {known ^ set(EXTRAS)}"
    tried = list(EXTRAS) if args.extras == EVERY else [e for e in args.extras.split(",") if e]
    results = []
    with tempfile.TemporaryDirectory(prefix="regard-wheel-") as folder:
        wheel = build(Path(folder) / "build").wheel
        home = Path(folder) if args.folder is None else args.folder.resolve()
        for extra in ("", *tried):
            results.append(check(home / (extra or "core"), wheel, extra))
            print(results[-1], flush=True)
    harness.write(
        args.output,
        {
            **harness.provenance(),
            "load_average": load | {"after": os.getloadavg()[0]},
            "tried": results,
            "not_tried": sorted(known - set(tried)),
        },
    )


if __name__ == "__main__":
    main()
