"""Search for the settings of a run: trials in its folder, the best of which becomes the run.

`search/trials.jsonl` is the whole state of a search. The settings of a trial follow from the seed
and the rows before it, so that a search that was killed goes on with the same trials. Each trains
in the run folder, on the data that the first one has encoded, while the best waits in `search/`.

Trials end early by asynchronous successive halving, Li et al. (2020),
https://arxiv.org/abs/1810.05934. Settings are proposed by tree-structured Parzen estimators of
Optuna, Bergstra et al. (2011).
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from regard import extras
from regard.atomic_files import write_atomic
from regard.errors import ArgumentError
from regard.evaluation import METRICS
from regard.messages import message
from regard.seeing.draw.trials import draw_trials
from regard.training.config import DEFAULTS, Config, all_options, check_model, make_config
from regard.training.defaults import peak_rate
from regard.training.evaluator import Evaluation
from regard.training.reporting import Recorder, StderrConsole, format_metric, say
from regard.training.run import resume_run, start_run
from regard.training.run_files import PairSource
from regard.training.run_folder import LogRow, RowLog, RunFolder
from regard.training.schedule import EVALUATIONS, Progress
from regard.training.setup import PreparedRun

#: shares of the budget at which the worse half of the trials ends
RUNGS: Final = (0.125, 0.25, 0.5)
#: settings of widths and of batches, and the factors of all of a kind together
SCALED: Final = {
    "width": ("hidden", "embed", "dim", "feed_forward"),
    "batch": ("batch_tokens", "batch_sentences"),
}
FACTORS: Final = (0.5, 1.0, 2.0)
#: largest factor of the learning rate, and largest shares unless the default is larger
RATE_FACTOR: Final = 4.0
LARGEST: Final = {"dropout": 0.5, "label_smoothing": 0.2}
#: share of the trials that are drawn at random, before others are proposed
RANDOM_SHARE: Final = 0.25
#: states of trials; "best" is that of one of the complete trials, once all have ended
ENDED: Final = ("complete", "pruned", "failed", "skipped", "best")


class _PrunedError(Exception):
    """A trial is in the worse half at a rung, or the minutes of the search are over."""


def start_search(
    config: Config,
    output: str | Path,
    trials: int,
    *,
    pairs: PairSource | None = None,
    quiet: bool = False,
    began: float | None = None,
) -> RunFolder:
    """Train `trials` models in a new folder, the first with the settings as they are.

    `minutes` are those of the search; without them, a trial has the budget of a run. The other
    arguments are those of `start_run`.
    """
    if trials < 1:
        raise ArgumentError("search", "be at least 1", trials, "20 is usual")
    if config.start is not None:
        rule = "be left out where a run starts from a model, which has its network"
        raise ArgumentError("search", rule, trials, "leave one of them out")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        count = os.environ["WORLD_SIZE"]
        raise ArgumentError(
            "a search", "run in one process", f"in {count}", "run it without torchrun"
        )
    folder = RunFolder(output)
    folder.check_links()
    folder.check_new()
    if config.minutes is not None:
        config = make_config({"minutes": config.minutes / full_runs(trials)}, config)
    rows: list[LogRow] = [{"trial": n, "state": "waiting"} for n in range(1, trials + 1)]
    search = _Search(folder, rows, pairs, quiet)
    search.table.parent.mkdir(parents=True, exist_ok=True)
    rows[0]["state"] = "running"
    try:
        return search.run(partial(start_run, config, folder.path, began=began))
    except BaseException:
        if not folder.started:
            shutil.rmtree(search.table.parent)
            folder.discard()
        raise


def resume_training(
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    **accepted: Any,
) -> RunFolder:
    """Continue a run as `resume_run` does, or the search that a folder is at."""
    folder = RunFolder(output)
    if not is_open(folder):
        return resume_run(output, settings, quiet=quiet, **accepted)
    for name, value in (settings or {}).items():
        fix = "let the search end first, or start a new one with another -o"
        raise ArgumentError(name, "stay as it is during a search", repr(value), fix)
    return _Search(folder, read_trials(folder), None, quiet, **accepted).run()


def is_open(folder: RunFolder) -> bool:
    """Return whether a search in this folder has not ended."""
    rows = read_trials(folder) if folder.started else []
    waiting = any((folder.path / "search").glob("trial-*"))
    return bool(rows) and (waiting or all(row["state"] != "best" for row in rows))


def read_trials(folder: RunFolder) -> list[LogRow]:
    """Return the rows of the table of trials; none if there was no search."""
    return RowLog(folder.path / "search" / "trials.jsonl", lambda row: row["trial"]).rows()


def best_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of the best trial, and its minutes; none until a search has ended."""
    best = [row for row in read_trials(folder) if row["state"] == "best"]
    minutes = folder.read_config().minutes if best else None
    found = {} if minutes is None else {"minutes": round(minutes, 3)}
    return found | (best[0]["settings"] if best else {})


def full_runs(trials: int) -> float:
    """Return how many whole runs the trials of a search take, if their order is chance."""
    runs, reached, before = 0.0, float(trials), 0.0
    for rung in (*RUNGS, 1.0):
        share = math.ceil(rung * EVALUATIONS) / EVALUATIONS  # the evaluation that decides
        runs, before = runs + reached * (share - before), share
        reached = sum((n + 1) // 2 / n for n in range(1, round(reached) + 1))
    return runs


def falls_behind(rows: Sequence[LogRow], curve: Sequence[Sequence[float]], sign: int) -> bool:
    """Return whether a trial is in the worse half of those that have reached a rung.

    Args:
        rows: earlier trials.
        curve: share of the budget, step, score and loss of each evaluation. The last one decides if
            it is the first at or after a rung.
        sign: 1 if a higher score is better, else -1.
    """
    for rung in RUNGS:
        reached = (
            next((point for point in points if point[0] >= rung), None)
            for points in (curve, *(row.get("curve", ()) for row in rows))
        )
        first, *others = reached
        if first is curve[-1]:
            ranks = [_rank(other, sign) for other in others if other is not None]
            if sum(rank >= _rank(first, sign) for rank in ranks) >= (len(ranks) + 2) // 2:
                return True
    return False


def _rank(point: Sequence[float], sign: int) -> tuple[float, float]:
    """Return what is larger for better evaluations: the score, and of equal ones the loss."""
    score, gain = (-math.inf if math.isnan(x) else x for x in (sign * point[2], -point[3]))
    return score, gain


def searched(config: Config, *, smoothed: bool) -> dict[str, Any]:
    """Return the settings that a search varies, as they are in a run that has all defaults.

    Args:
        config: of that run.
        smoothed: whether its loss knows label smoothing.
    """
    options = all_options(config.preset, config.model_size, config.model) | dict(config)
    names = ["dropout", *SCALED["width"], *SCALED["batch"]]
    if smoothed and "label_smoothing" not in DEFAULTS.get(config.preset, {}):
        names.append("label_smoothing")
    if config.src_vectors or config.tgt_vectors:  # which have the width of the embeddings
        names.remove("embed")
    values = {name: options[name] for name in names if options.get(name) is not None}
    return {"lr": peak_rate(config), **values}


def scaled(defaults: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a trial: numbers as chosen, widths and batches by their factors."""
    found = {name: chosen.get(name, value) for name, value in defaults.items()}
    for factor, names in SCALED.items():
        for name in defaults.keys() & {*names}:
            found[name] = max(1, int(defaults[name] * chosen.get(factor, 1.0)))
    return found


def propose(rows: Sequence[LogRow], trials: int, seed: int, sign: int) -> dict[str, Any]:
    """Return what is chosen for the trial after `rows`, of which the first has the defaults."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    defaults, state = rows[0]["settings"], optuna.trial.TrialState
    limits = {name: (0.0, max(most, defaults.get(name, 0.0))) for name, most in LARGEST.items()}
    limits["lr"] = (defaults["lr"] / RATE_FACTOR, defaults["lr"] * RATE_FACTOR)
    space: dict[str, Any] = {name: CategoricalDistribution(FACTORS) for name in SCALED}
    for name in sorted(limits.keys() & defaults.keys()):
        space[name] = FloatDistribution(*limits[name], log=name == "lr")
    sampler = optuna.samplers.TPESampler(
        n_startup_trials=1 + round(RANDOM_SHARE * trials),
        multivariate=True,
        seed=(7919 * seed + len(rows)) % 2**32,
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for row in rows:
        complete = row["state"] == "complete"
        if not (complete or row["state"] == "pruned") or not math.isfinite(row["score"]):
            continue
        trial = optuna.trial.create_trial(
            state=state.COMPLETE if complete else state.PRUNED,
            params={name: row["chosen"].get(name, defaults.get(name, 1.0)) for name in space},
            distributions=space,
            value=sign * row["score"] if complete else None,
            intermediate_values={int(100 * share): sign * y for share, _, y, _ in row["curve"]},
        )
        study.add_trial(trial)
    chosen = dict(study.ask(space).params)
    for name in limits.keys() & chosen.keys():  # short numbers, for people
        low, high = limits[name]
        chosen[name] = min(max(float(f"{chosen[name]:.3g}"), low), high)
    return chosen


class _Search:
    """A search at work in a folder: the rows of its trials, and how each goes on."""

    def __init__(
        self,
        folder: RunFolder,
        rows: list[LogRow],
        pairs: PairSource | None,
        quiet: bool,
        **accepted: Any,
    ) -> None:
        extras.require("optuna", extra="search", for_="`regard train --search`")
        self.folder, self.rows, self.pairs = folder, rows, pairs
        self.console = StderrConsole(quiet=quiet)
        self.go_on = partial(resume_run, folder.path, **accepted)
        self.table = folder.path / "search" / "trials.jsonl"

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1."""
        return 1 if METRICS[self.rows[0]["metric"]].higher_is_better else -1

    @property
    def best(self) -> LogRow:
        """The best of the complete trials, the first of equal ones."""
        complete = [row for row in self.rows if row["state"] in ("complete", "best")]
        return max(complete, key=lambda row: _rank(self._best_point(row), self.sign))

    def _best_point(self, row: LogRow) -> Sequence[float]:
        point: Sequence[float] = max(row["curve"], key=lambda point: _rank(point, self.sign))
        return point

    def run(self, begin: Callable[..., RunFolder] | None = None) -> RunFolder:
        """Train the trials that are left, and make the best one the run of the folder.

        `begin` starts the first trial.
        """
        with RunFolder(self.table.parent).held():
            for row in self.rows:
                if row["state"] not in ENDED and not self._train(row, begin or self.go_on):
                    return self.folder
                begin = None
            if all(row["state"] != "best" for row in self.rows):
                self._make_room()
                self._tell(self.best, "best")
            kept = RunFolder(self.table.parent / f"trial-{self.best['trial']}")
            if kept.started:
                os.replace(kept.config_file, self.folder.config_file)
            _move(kept, self.folder)
            shutil.rmtree(kept.path, ignore_errors=True)
        return self.folder

    def _train(self, row: LogRow, begin: Callable[..., RunFolder]) -> bool:
        """Train a trial to its end; returns False if a signal has stopped it."""
        if row["state"] == "waiting":
            if self._time_is_up():
                return self._tell(row, "skipped")
            self._make_room()
            config, before = self.folder.read_config(), self.rows[: row["trial"] - 1]
            row["chosen"] = propose(before, len(self.rows), config.seed, self.sign)
            row["settings"] = scaled(before[0]["settings"], row["chosen"])
            # the first trial has said how well a baseline does
            self.folder.write_config(make_config({**row["settings"], "baseline": False}, config))
            row["state"] = "running"
        self._write()
        began = time.monotonic() - row.get("seconds", 0.0)
        state = "complete"
        try:
            if row["trial"] > 1:
                check_model(self.folder.read_config())
            watch = partial(self._watch, row, began)
            self.folder.stopped_by = begin(pairs=self.pairs, quiet=True, watch=watch).stopped_by
        except _PrunedError:
            state = "pruned"
        except (ArgumentError, torch.OutOfMemoryError) as error:
            if row["trial"] == 1:
                raise
            state, row["reason"] = "failed", str(error).splitlines()[0][:200]
        row["seconds"] = round(time.monotonic() - began, 3)
        if self.folder.stopped_by is None:
            return self._tell(row, state)
        self._write()
        command = f"regard train --resume {self.folder.path}"
        say(self.console, message("train.stopped", command=command))
        return False

    def _watch(self, row: LogRow, began: float, run: PreparedRun) -> Recorder:
        """Return what records the evaluations of a trial, and ends it if it falls behind."""
        if row["trial"] == 1:
            settings = searched(run.config, smoothed=run.evaluator.task.numbers is None)
            row |= {"chosen": {}, "settings": settings, "metric": run.evaluator.metric.name}

        def record(progress: Progress, result: Evaluation, rate: float) -> None:
            share, loss = run.budget.spent(progress), result.metrics.get("loss", math.nan)
            curve = [point for point in row.get("curve", []) if point[1] < progress.step]
            row["curve"] = [*curve, [round(share, 4), progress.step, result.score, loss]]
            row["score"] = self._best_point(row)[2]
            row["seconds"] = round(time.monotonic() - began, 3)
            self._write()
            before = self.rows[: row["trial"] - 1]
            behind = self._time_is_up() or falls_behind(before, row["curve"], self.sign)
            if before and share < 1 and behind:
                raise _PrunedError

        return record

    def _time_is_up(self) -> bool:
        minutes = self.folder.read_config().minutes
        seconds = sum(row.get("seconds", 0.0) for row in self.rows)
        return minutes is not None and seconds >= 60 * minutes * full_runs(len(self.rows))

    def _write(self) -> None:
        text = "".join(f"{json.dumps(row)}\n" for row in self.rows)
        write_atomic(self.table, text.encode())

    def _tell(self, row: LogRow, state: str) -> bool:
        """Record the end of a trial and say a line about it; with the best one, draw all."""
        settings, metric = row.get("settings", {}), self.rows[0]["metric"]
        scores = [each.get("score", math.nan) for each in (row, self.rows[0])]
        score, first = (f"{metric} {format_metric(metric, each)}" for each in scores)
        told = {**row, "score": score, "first": first, "path": self.table}
        told["settings"] = " ".join(f"{name}={value}" for name, value in settings.items())
        told["share"] = row["curve"][-1][0] if "curve" in row else 0.0
        text = message(f"search.{state}", trials=len(self.rows), **told)
        if state == "best":
            curves = {each["trial"]: each.get("curve", []) for each in self.rows}
            points = {n: [(x, y) for x, _, y, _ in curve] for n, curve in curves.items() if curve}
            figure = draw_trials(points, row["trial"], metric, text)
            write_atomic(self.table.with_suffix(".svg"), figure.encode())
        row["state"] = state
        self._write()
        say(self.console, text)
        return True

    def _make_room(self) -> None:
        """Keep the run of the last trial if it is the best so far, and remove it else."""
        last = [row for row in self.rows if row["state"] in ENDED and "curve" in row][-1]
        if self.folder.finished and last is self.best:
            kept = RunFolder(self.table.parent / f"trial-{last['trial']}")
            kept.path.mkdir(exist_ok=True)
            kept.write_config(self.folder.read_config())
            _move(self.folder, kept)
            for other in set(self.table.parent.glob("trial-*")) - {kept.path}:
                shutil.rmtree(other)
        for path in filter(os.path.lexists, self.folder.learned):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _move(source: RunFolder, target: RunFolder) -> None:
    """Move what a run has learned, the card last: without it, a run is not finished."""
    for path, place in zip(source.learned, target.learned, strict=True):
        if os.path.lexists(path):
            os.replace(path, place)
