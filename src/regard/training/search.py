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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from regard import extras
from regard.atomic_files import write_atomic
from regard.errors import ArgumentError, DataError, RegardError
from regard.evaluation import METRICS
from regard.messages import message
from regard.seeing.page.report import render_trials
from regard.training.config import DEFAULTS, Config, all_options, check_model, make_config
from regard.training.defaults import peak_rate
from regard.training.distributed import check_alone
from regard.training.evaluator import Evaluation
from regard.training.reporting import Recorder, StderrConsole, format_metric, say
from regard.training.row_log import LogRow, RowLog
from regard.training.run import resume_run, start_run
from regard.training.run_files import PairSource
from regard.training.run_folder import RunError, RunFolder
from regard.training.schedule import EVALUATIONS, Progress
from regard.training.setup import PreparedRun

#: shares of the budget at which the worse half of the trials ends
RUNGS: Final = (0.125, 0.25, 0.5)
#: share of a trial's minutes that must be left for another one
LEAST_SHARE: Final = 0.25
#: settings that are halved or doubled, as far as a run has them
SIZES: Final = ("hidden", "embed", "dim", "feed_forward", "batch_tokens", "batch_sentences")
#: largest shares, unless the default is larger, and largest factor of the learning rate
LARGEST: Final = {"dropout": 0.5, "label_smoothing": 0.2}
RATE_FACTOR: Final = 4.0
#: share of the trials that are drawn at random, before others are proposed
RANDOM_SHARE: Final = 0.25
#: share of the budget, step, score and loss of an evaluation
Point = Sequence[int | float]


class _EndedError(Exception):
    """A prepared run is not trained, or not any further."""


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
    check_alone("a search")
    folder = RunFolder(output)
    folder.check_new()
    if config.minutes is not None:
        config = make_config({"minutes": round(config.minutes / full_runs(trials), 4)}, config)
    rows: list[LogRow] = [{"trial": n, "state": "waiting"} for n in range(1, trials + 1)]
    search = _Search(folder, rows, quiet, pairs=pairs)
    folder.search.mkdir(parents=True, exist_ok=True)
    search.write()
    try:
        return search.run(partial(start_run, config, folder.path, began=began, pairs=pairs))
    except BaseException:
        if not folder.started:
            shutil.rmtree(folder.search)
            folder.discard()
        raise


def resume_training(
    output: str | Path, settings: Mapping[str, Any], *, quiet: bool = False, **how: Any
) -> RunFolder:
    """Continue a run as `resume_run` does, or the search that a folder is at."""
    folder = RunFolder(output)
    if not is_open(folder):
        return resume_run(output, settings, quiet=quiet, **how)
    for name, value in settings.items():
        fix = "let the search end first, or start a new one with another -o"
        raise ArgumentError(name, "stay as it is during a search", repr(value), fix)
    return _Search(folder, read_trials(folder), quiet, **how).run()


def read_trials(folder: RunFolder) -> list[LogRow]:
    """Return the rows of the table of trials; none if there was no search."""
    return RowLog(folder.search / "trials.jsonl", lambda row: row["trial"]).rows()


def is_open(folder: RunFolder) -> bool:
    """Return whether a search in this folder has not ended."""
    rows = read_trials(folder) if folder.started else []
    return bool(rows) and (not _best(rows) or any(folder.search.glob("trial-*")))


def best_settings(folder: RunFolder) -> dict[str, Any]:
    """Return the settings that a search has found; none if there was no search, or it is open."""
    return dict(_best(read_trials(folder)).get("settings", {}))


def _best(rows: Sequence[LogRow]) -> LogRow:
    """Return the row of the best trial, which is chosen once all have ended; else an empty one."""
    return next((row for row in rows if row["state"] == "best"), {})


def full_runs(trials: int) -> float:
    """Return how many whole runs the trials of a search take, if their order is chance."""
    runs, reached, before = 0.0, float(trials), 0.0
    for rung in (*RUNGS, 1.0):
        share = math.ceil(rung * EVALUATIONS) / EVALUATIONS  # the evaluation that decides
        runs, before = runs + reached * (share - before), share
        reached = sum((n + 1) // 2 / n for n in range(1, round(reached) + 1))
    return runs


def falls_behind(rows: Sequence[LogRow], curve: Sequence[Point], sign: int) -> bool:
    """Return whether a trial is in the worse half of itself and earlier `rows` at a rung.

    The first evaluations at or after the rung are compared. `sign` is 1 if a higher score is
    better, else -1.
    """
    curves = (curve, *(row.get("curve", ()) for row in rows))
    for rung in RUNGS:
        own, *others = (next((p for p in points if p[0] >= rung), None) for points in curves)
        if own is not None:
            ranks = [_rank([other], sign) for other in others if other is not None]
            if sum(rank >= _rank([own], sign) for rank in ranks) >= (len(ranks) + 2) // 2:
                return True
    return False


def _rank(curve: Sequence[Point], sign: int) -> list[float]:
    """Return what is larger for a better best evaluation: its score, and of equal ones its loss."""
    pairs = ((sign * score, -loss) for _, _, score, loss in curve)
    return max([-math.inf if math.isnan(value) else value for value in pair] for pair in pairs)


def searched(config: Config, *, smoothed: bool) -> dict[str, Any]:
    """Return the settings that a search varies, and the minutes, of a run with all defaults.

    `smoothed` says whether its loss knows label smoothing.
    """
    options = all_options(config.preset, config.model_size, config.model) | dict(config)
    names = ["dropout", *SIZES, "minutes"]
    if smoothed and "label_smoothing" not in DEFAULTS.get(config.preset, {}):
        names.append("label_smoothing")
    if config.src_vectors or config.tgt_vectors:  # which have the width of the embeddings
        names.remove("embed")
    values = {name: options[name] for name in names if options.get(name) is not None}
    return {"lr": peak_rate(config), **values}


def propose(rows: Sequence[LogRow], trials: int, seed: int, sign: int) -> dict[str, Any]:
    """Return the settings of the trial after `rows`, of which the first has the defaults."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    defaults, states = rows[0]["settings"], optuna.trial.TrialState
    limits = {name: (0.0, max(most, defaults.get(name, 0.0))) for name, most in LARGEST.items()}
    limits["lr"] = (defaults["lr"] / RATE_FACTOR, defaults["lr"] * RATE_FACTOR)
    space: dict[str, Any] = {}
    for name, value in defaults.items():
        if name in SIZES:
            space[name] = CategoricalDistribution(sorted({max(1, value // 2), value, 2 * value}))
        elif name in limits:
            space[name] = FloatDistribution(*limits[name], log=name == "lr")
    seed, drawn = (7919 * seed + len(rows)) % 2**32, 1 + round(RANDOM_SHARE * trials)
    sampler = optuna.samplers.TPESampler(n_startup_trials=drawn, multivariate=True, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for row in rows:
        if row["state"] in ("complete", "pruned") and math.isfinite(row["score"]):
            complete = row["state"] == "complete"
            trial = optuna.trial.create_trial(
                state=states.COMPLETE if complete else states.PRUNED,
                params={name: row["settings"][name] for name in space},
                distributions=space,
                value=sign * row["score"] if complete else None,
                intermediate_values={int(100 * p[0]): sign * p[2] for p in row["curve"]},
            )
            study.add_trial(trial)
    found = {**defaults, **study.ask(space).params}
    for name in limits.keys() & space.keys():  # short numbers, for people
        low, high = limits[name]
        found[name] = min(max(float(f"{found[name]:.3g}"), low), high)
    return found


class _Search:
    """A search at work in a folder: the rows of its trials, and how each is resumed."""

    def __init__(self, folder: RunFolder, rows: list[LogRow], quiet: bool, **how: Any) -> None:
        folder.check_links()
        extras.require("optuna", extra="search", for_="`regard train --search`")
        self.folder, self.rows, self.console = folder, rows, StderrConsole(quiet=quiet)
        self.go_on = partial(resume_run, folder.path, **how)
        self.table = folder.search / "trials.jsonl"

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1."""
        return 1 if METRICS[self.rows[0]["metric"]].higher_is_better else -1

    def run(self, begin: Callable[..., RunFolder] | None = None) -> RunFolder:
        """Prepare the data, by `begin` if they are new, train the trials, and keep the best one."""
        home = RunFolder(self.folder.search)
        with home.held():
            home.sweep()
            if "settings" not in self.rows[0]:
                with suppress(_EndedError):
                    (begin or self.go_on)(quiet=self.console.quiet, watch=self._describe)
            for row in self.rows:
                if row["state"] in ("waiting", "running") and not self._train(row):
                    return self.folder
            if not _best(self.rows):
                self._make_room()
                page = render_trials(self.rows, self.folder.path.resolve().name)
                content = page.encode(errors="backslashreplace")  # names need not be valid text
                write_atomic(self.table.with_suffix(".html"), content)
                self._end(self._leader(), "best")
            kept = RunFolder(self.folder.search / f"trial-{_best(self.rows)['trial']}")
            if kept.started:
                os.replace(kept.config_file, self.folder.config_file)
            _move(kept, self.folder)
            shutil.rmtree(kept.path, ignore_errors=True)
        return self.folder

    def _describe(self, run: PreparedRun) -> Recorder:
        """Record the defaults of a prepared run, and end it: no trial reads the data itself."""
        settings = searched(run.config, smoothed=run.evaluator.task.numbers is None)
        self.rows[0] |= {"settings": settings, "metric": run.evaluator.metric.name}
        self.rows[0]["seconds"] = round(run.setup_seconds, 3)
        self.write()
        raise _EndedError

    def _train(self, row: LogRow) -> bool:
        """Train a trial to its end; returns False if a signal has stopped it."""
        before, state = self.rows[: row["trial"] - 1], "complete"
        if row["state"] == "waiting":
            left = self._minutes_left()
            if before and left < LEAST_SHARE * self.rows[0]["settings"].get("minutes", 0.0):
                return self._end(row, "skipped")
            self._make_room()
            config = self.folder.read_config()
            if before:
                row["settings"] = propose(before, len(self.rows), config.seed, self.sign)
                if row["settings"].get("minutes", 0.0) > left:
                    row["settings"]["minutes"] = round(left, 4)
            # how well a baseline does has been said
            self.folder.write_config(make_config({**row["settings"], "baseline": False}, config))
            row["state"] = "running"
            self.write()
        began = time.monotonic() - row.get("seconds", 0.0)
        try:
            check_model(self.folder.read_config())
            run = self.go_on(quiet=True, watch=partial(self._watch, row, began))
            self.folder.stopped_by = run.stopped_by
        except _EndedError:
            state = "pruned"
        except (RegardError, torch.OutOfMemoryError) as error:
            if not before or isinstance(error, RunError | DataError):  # of the folder or its data
                raise
            state, row["reason"] = "failed", str(error).splitlines()[0][:200]
        row["seconds"] = round(time.monotonic() - began, 3)
        if self.folder.stopped_by is None:
            return self._end(row, state)
        self.write()
        command = f"regard train --resume {self.folder.path}"
        say(self.console, message("train.stopped", command=command))
        return False

    def _watch(self, row: LogRow, began: float, run: PreparedRun) -> Recorder:
        """Return what records the evaluations of a trial, and ends it if it falls behind."""

        def record(progress: Progress, result: Evaluation, rate: float) -> None:
            share, loss = run.budget.spent(progress), result.metrics.get("loss", math.nan)
            curve = [point for point in row.get("curve", []) if point[1] < progress.step]
            row["curve"] = [*curve, [round(share, 4), progress.step, result.score, loss]]
            row["score"] = self.sign * _rank(row["curve"], self.sign)[0]
            row["seconds"] = round(time.monotonic() - began, 3)
            self.write()
            before = self.rows[: row["trial"] - 1]
            if before and share < 1 and falls_behind(before, row["curve"], self.sign):
                raise _EndedError

        return record

    def _leader(self) -> LogRow:
        """Return the best of the complete trials, the first of equal ones."""
        complete = [row for row in self.rows if row["state"] == "complete"]
        return max(complete, key=lambda row: _rank(row["curve"], self.sign))

    def _minutes_left(self) -> float:
        minutes: float = self.rows[0]["settings"].get("minutes", math.inf)
        seconds: float = sum(row.get("seconds", 0.0) for row in self.rows)
        return minutes * full_runs(len(self.rows)) - seconds / 60

    def write(self) -> None:
        """Write the table."""
        write_atomic(self.table, "".join(f"{json.dumps(row)}\n" for row in self.rows).encode())

    def _end(self, row: LogRow, state: str) -> bool:
        """Record how a trial has ended, and say a line about it."""
        row["state"], metric = state, self.rows[0]["metric"]
        self.write()
        scores = [each.get("score", math.nan) for each in (row, self.rows[0])]
        score, first = (f"{metric} {format_metric(metric, each)}" for each in scores)
        told = {**row, "score": score, "first": first, "path": self.table}
        settings = row.get("settings", {}).items()
        told["settings"] = " ".join(f"{n}={v}" for n, v in settings if n != "minutes")
        told["share"] = row["curve"][-1][0] if "curve" in row else 0.0
        say(self.console, message(f"search.{state}", trials=len(self.rows), **told))
        return True

    def _make_room(self) -> None:
        """Keep the run of the last trial if it is the best so far, and remove it else."""
        if self.folder.finished:  # so that it is complete
            last = [row for row in self.rows if row["state"] == "complete"][-1]
            if last is self._leader():
                kept = RunFolder(self.folder.search / f"trial-{last['trial']}")
                kept.path.mkdir(exist_ok=True)
                kept.write_config(self.folder.read_config())
                _move(self.folder, kept)
                for other in set(self.folder.search.glob("trial-*")) - {kept.path}:
                    shutil.rmtree(other)
        for path in filter(os.path.lexists, self.folder.learned):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _move(source: RunFolder, target: RunFolder) -> None:
    """Move what a run has learned, the card last: without it, a run is not finished."""
    for path, place in zip(source.learned, target.learned, strict=True):
        if os.path.lexists(path):
            os.replace(path, place)
