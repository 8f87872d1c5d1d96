"""Run trials of recipes, several at once on one device, and log their scores.

A trial is a line of a text file: the name of a recipe, and settings in place of its own.

    cmudict-bahdanau lr=2e-3
    cmudict-bahdanau lr=1e-3 dropout=0.4 seed=2   # a comment

The log, OUT/sweep.json, is whole at any time: a sweep that is killed keeps what it has found. One
that is started again with the same list and the same --work goes on where it was.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from provenance import ROOT, command, machine, source

#: seconds between two looks at the trials
PAUSE: Final = 2.0
#: seconds that a trial has to save itself when time is up
GRACE: Final = 10.0
#: what is copied of a run: enough to use it, in an ensemble too, and to make tables
KEPT: Final = (
    *("config.json", "model.safetensors", "tokenizer.src.json", "tokenizer.tgt.json"),
    *("metrics.jsonl", "README.md", "result.json", "recipe/recipe.json"),
)


@dataclass
class Trial:
    """One run of a recipe.

    Attributes:
        recipe: its name.
        changes: settings in place of its own.
        folder: where it runs.
        state: waiting, running, done, failed or stopped.
        seconds: since its start, with loading and scoring.
        error: the last thing that it has said, if it has failed.
    """

    recipe: str
    changes: list[str]
    folder: Path
    state: str = "waiting"
    seconds: float = 0.0
    error: str = ""
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    began: float = 0.0

    def as_record(self) -> dict[str, Any]:
        """Return its log entry: its best evaluation so far, and its result."""
        return {
            "recipe": self.recipe,
            "changes": self.changes,
            "run": self.folder.name,
            "state": self.state,
            "seconds": round(self.seconds, 1),
            "best": best(self.folder / "metrics.jsonl"),
            "error": self.error,
            "result": _json(self.folder / "result.json"),
        }


def read_trials(text: str, work: Path) -> list[Trial]:
    """Return the trials of a list, each with its own folder, NAME-SEED if that is free."""
    trials: list[Trial] = []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        recipe, *changes = words
        seeds = [word.partition("=")[2] for word in changes if word.startswith("seed=")]
        name = f"{recipe}-{(seeds or ['1'])[-1]}"
        taken = sum(trial.folder.name.startswith(f"{name}.") for trial in trials)
        taken += any(trial.folder.name == name for trial in trials)
        trials.append(Trial(recipe, changes, work / (f"{name}.{taken + 1}" if taken else name)))
    return trials


def best(path: Path) -> dict[str, Any] | None:
    """Return the evaluation with the best dev metric so far; not the loss, if there is another."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:  # the last line, half written
            break
    if not rows:
        return None
    names = [name for name in rows[-1] if name.startswith("dev_")]
    name = next((n for n in names if n != "dev_loss"), "dev_loss")
    higher = name in ("dev_bleu", "dev_chrf", "dev_exact", "dev_accuracy")
    row = (max if higher else min)(rows, key=lambda r: r[name])
    return {"metric": name, "value": row[name], **{k: row[k] for k in ("step", "epoch", "seconds")}}


def start(trial: Trial, args: argparse.Namespace) -> None:
    """Start a process with one thread, or resume the run of an earlier sweep."""
    if is_scored(trial.folder, test=args.test):
        trial.state = "done"
        return
    words = [sys.executable, "-m", "regard", "train", *_words(trial, args), "-q"]
    if not args.test:
        words += ["--no-test"]
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "RAYON_NUM_THREADS": "1"}
    log = _log(trial)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as file:
        trial.process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **threads}
        )
    trial.state, trial.began = "running", time.monotonic()


def is_scored(folder: Path, *, test: bool) -> bool:
    """Return whether a run has all requested scores."""
    names = (_json(folder / "result.json") or {"scores": {}})["scores"]
    return "dev" in names and ("test" in names or not test)


def _words(trial: Trial, args: argparse.Namespace) -> list[str]:
    if any((trial.folder / "checkpoints").glob("*")):
        return ["--resume", str(trial.folder)]
    shutil.rmtree(trial.folder, ignore_errors=True)  # it was ended before anything was learned
    words = [str(args.recipes / trial.recipe), "--data-dir", str(args.data)]
    words += ["-o", str(trial.folder), *trial.changes, "report=false"]
    return words + (["--minutes", str(args.minutes)] if args.minutes is not None else [])


def look(trial: Trial) -> None:
    """Update the state of a trial."""
    if trial.process is None or trial.state != "running":
        return
    trial.seconds = time.monotonic() - trial.began
    code = trial.process.poll()
    if code is None:
        return
    trial.state = "done" if code == 0 else "failed"
    if code:
        lines = [line for line in _log(trial).read_text(errors="replace").splitlines() if line]
        trial.error = lines[-1] if lines else f"it has ended with {code} and said nothing"


def stop(trials: list[Trial]) -> None:
    """Stop running trials so that they save themselves; kill those that do not."""
    running = [t for t in trials if t.process is not None and t.process.poll() is None]
    for trial in running:
        assert trial.process is not None
        trial.process.send_signal(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for trial in running:
        assert trial.process is not None
        try:
            trial.process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            trial.process.kill()
        trial.state = "stopped"


def keep(trial: Trial, out: Path) -> None:
    """Copy the files of a run that are worth keeping."""
    for name in KEPT:
        path = trial.folder / name
        if path.exists():
            target = out / "runs" / trial.folder.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)


def write_log(
    trials: list[Trial], args: argparse.Namespace, head: dict[str, Any], began: float
) -> None:
    """Write the log atomically."""
    record = {
        **head,
        "seconds": round(time.monotonic() - began, 1),
        "minutes_each": args.minutes,
        "at_once": args.jobs,
        "trials": [trial.as_record() for trial in trials],
    }
    path = args.out / "sweep.json"
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    os.replace(aside, path)


def run(trials: list[Trial], args: argparse.Namespace) -> None:
    """Run the trials in order, up to the limit at once."""
    began = time.monotonic()
    head = {"command": command(["python", *sys.argv]), "machine": machine(), **source()}
    try:
        while any(trial.state in ("waiting", "running") for trial in trials):
            if args.limit is not None and time.monotonic() - began > args.limit - GRACE:
                break
            for trial in trials:
                before = trial.state
                look(trial)
                if args.keep and trial.state != before:
                    keep(trial, args.out)
            free = args.jobs - sum(trial.state == "running" for trial in trials)
            for trial in [t for t in trials if t.state == "waiting"][: max(0, free)]:
                start(trial, args)
            write_log(trials, args, head, began)
            time.sleep(PAUSE)
    finally:
        stop(trials)
        if args.keep:
            for trial in trials:
                if trial.state == "stopped":
                    keep(trial, args.out)
        write_log(trials, args, head, began)


def table(trials: list[Trial]) -> str:
    """Return a line for each trial."""
    lines = []
    for trial in trials:
        record = trial.as_record()
        figures = [
            f"{part} {name} {figure['value']:.2f}"
            for part, scored in (record["result"] or {"scores": {}})["scores"].items()
            for name, figure in scored["figures"].items()
        ]
        seen = record["best"]
        if not figures and seen:
            figures = [f"{seen['metric']} {seen['value']:.4f} at step {seen['step']}"]
        said = "; ".join(figures) or trial.error
        lines.append(f"{trial.state:8} {trial.recipe} {' '.join(trial.changes)}: {said}")
    return "\n".join(lines)


def _log(trial: Trial) -> Path:
    return trial.folder.with_name(f"{trial.folder.name}.log")


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trials", type=Path, help="the list, one trial per line")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of the log")
    parser.add_argument("--work", type=Path, help="folder of the runs; OUT/work if not given")
    parser.add_argument("--recipes", type=Path, default=ROOT / "recipes")
    parser.add_argument("--jobs", type=int, default=4, help="trials at once")
    parser.add_argument("--minutes", type=float, help="of training each; the recipe's if not given")
    parser.add_argument("--limit", type=float, help="seconds for all; what still runs is stopped")
    parser.add_argument("--test", action="store_true", help="score test sets: for final runs alone")
    parser.add_argument("--keep", action="store_true", help="copy the models to OUT/runs")
    args = parser.parse_args()
    args.work = args.work or args.out / "work"
    if not args.trials.exists():
        parser.error(f"{args.trials} must be a list of trials, but there is no such file.")
    missing = [
        trial.recipe
        for trial in read_trials(args.trials.read_text(), args.work)
        if not (args.recipes / f"{trial.recipe}.toml").exists()
    ]
    if missing:
        parser.error(f"{args.recipes} must hold {missing[0]}.toml, but it does not.")
    if args.jobs < 1:
        parser.error(f"--jobs must be at least 1, but it is {args.jobs}.")
    return args


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    # a time limit outside ends this process with SIGTERM: it stops the trials first
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    trials = read_trials(args.trials.read_text(), args.work)
    run(trials, args)
    print(table(trials))
    sys.exit(any(trial.state == "failed" for trial in trials))


if __name__ == "__main__":
    main()
