"""Start a training run, or resume it from its verified state."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from regard import device as devices
from regard import safe_read
from regard.atomic_files import json_checksum, write_atomic
from regard.errors import ArgumentError
from regard.extras import install_command, is_installed
from regard.messages import message, translated
from regard.training.adapters import save_adapter
from regard.training.checkpoint import (
    TUNED,
    Candidate,
    Checkpoint,
    has_checkpoint,
    load_checkpoint,
    remove_tensors,
    tensor_file,
)
from regard.training.config import Config, check_preset, make_config
from regard.training.defaults import recognised, steps_limit
from regard.training.distributed import is_first_process, launch_id, restart_number
from regard.training.evaluator import DevMetric
from regard.training.fine_tuning import new_config
from regard.training.optimization import seconds_per_token
from regard.training.reporting import (
    ConsoleReporter,
    HtmlReport,
    Recorder,
    StderrConsole,
    TensorBoardWriter,
    example_traces,
    format_metric,
    say,
    write_card,
)
from regard.training.run_files import PairSource
from regard.training.run_folder import REPORT, RunError, RunFolder
from regard.training.schedule import (
    START_GAIN,
    BaselineScore,
    Progress,
    final_pairs,
    has_stalled,
    progress_of,
    seconds_for_steps,
    time_is_up,
)
from regard.training.setup import PreparedRun, check_settings, prepare
from regard.training.weights_file import UnusableWeightsError, read_weights

#: returns a recorder of the evaluations of a run that is prepared
Watch = Callable[[PreparedRun], Recorder]

#: characters of examples that are enough for a dry run, about
REHEARSED: Final = 250_000
#: weights, gradients and the two moments of AdamW
WEIGHT_COPIES: Final = 4
#: in errors of gloo and NCCL, which have no type of their own
LOST_PROCESS: Final = r"(?i)gloo|nccl|connection (closed|reset|refused)|broken pipe"


def start_run(
    config: Config,
    output: str | Path,
    *,
    pairs: PairSource | None = None,
    console: Console | None = None,
    quiet: bool = False,
    began: float | None = None,
    watch: Watch | None = None,
) -> RunFolder:
    """Train a model in a new folder, or go on if torchrun has restarted this run.

    Args:
        config: the settings.
        output: the run folder.
        pairs: the training pairs, if they do not come from a file.
        console: where to report; stderr if None.
        quiet: whether to print nothing.
        began: when the minutes of the run began, by the monotonic clock; now if None.
        watch: returns a recorder of the evaluations of the prepared run.
    """
    folder = RunFolder(output)
    if _is_restart(folder, config):
        return resume_run(output, pairs=pairs, console=console, quiet=quiet, watch=watch)
    console = StderrConsole(quiet=quiet) if console is None else console
    began, launch = time.monotonic() if began is None else began, _launch(config)
    device = config.device
    devices.pick(device)
    config = _recognised(config, pairs, console)
    _check_tensorboard(config)
    if not is_first_process():
        run = prepare(config, folder, console, pairs, began=began)
        return _train(run, new_state(), console, quiet)
    folder.check_links()
    folder.check_new()
    folder.create()
    with folder.held():
        folder.check_new()  # again, since another process may have been faster
        folder.sweep()
        folder.write_config(config, chosen=False)
        if launch_id():
            write_atomic(folder.launch_file, json.dumps(launch).encode())
        try:
            run = prepare(config, folder, console, pairs, began=began)
        except BaseException:
            folder.discard()
            raise
        return _train(run, new_state(), console, quiet, watch)


def rehearse_run(config: Config, output: str | Path, console: Console | None = None) -> None:
    """Prepare a run with a sample of its data, and say how long its steps would take.

    A quarter of a million characters tell as much in seconds.
    """
    folder = RunFolder(output)
    console = StderrConsole() if console is None else console
    devices.pick(config.device)
    config = _recognised(config, None, console)
    folder.check_links()
    folder.check_new()
    folder.create()
    try:
        with folder.held():
            config = config.model_copy(update={"baseline": False})
            run = prepare(config, folder, console, sample=REHEARSED)
            say(console, _describe_budget(run))
    finally:
        folder.discard()


def _describe_budget(run: PreparedRun) -> str:
    """Return a sentence about the steps that a run has time for, and its memory."""
    corpus, minutes = run.batches.epochs.corpus, run.config.minutes
    batches = max(1, run.batches.in_epoch(0))
    per_epoch = batches * run.every
    tokens = int(corpus.src_lengths.sum() + corpus.tgt_lengths.sum()) + len(corpus.src_lengths)
    learner = run.learner
    cost = seconds_per_token(learner.objective, corpus, learner.processes.fabric)
    seconds = cost * tokens / batches * run.config.accumulate
    most = steps_limit(run.config, max(1, per_epoch // run.config.accumulate))
    if run.config.epochs is not None:
        most = min(most, run.config.epochs * per_epoch)
    if minutes is not None:
        most = min(most, int(seconds_for_steps(Progress(), minutes) / seconds))
    weights = sum(p.numel() * p.element_size() for p in learner.module.parameters())
    return message(
        "train.rehearsed",
        milliseconds=1000 * seconds,
        steps=most,
        epochs=most * run.config.accumulate / per_epoch,
        minutes=most * seconds / 60,
        megabytes=WEIGHT_COPIES * weights / 1e6,
    )


def _recognised(config: Config, pairs: PairSource | None, console: Console) -> Config:
    """Return checked settings, with those that the first examples ask for."""
    if config.start is not None and config.start_checksum is None:
        config = new_config(config.model_dump(exclude_unset=True))
    check_settings(config)
    speak = partial(say, console) if is_first_process() else lambda sentence: None
    found = recognised(config, pairs, speak)
    if found is not config:
        check_settings(found)
    return found


def _is_restart(folder: RunFolder, config: Config) -> bool:
    """Return whether torchrun runs this command again, after a process was lost or has joined.

    Only lost processes are counted by torchrun, so the folder records its launch. Without a
    checkpoint the other processes have nothing to read, and the first may not have begun.
    """
    if not folder.started or not (is_first_process() or has_checkpoint(folder.checkpoints)):
        return False
    if restart_number() > 0:
        return True
    if not launch_id() or not folder.launch_file.is_file():
        return False
    content = safe_read.read_bytes(folder.launch_file, safe_read.MAX_JSON, inside=folder.path)
    return content == json.dumps(_launch(config)).encode()


def _launch(config: Config) -> dict[str, str]:
    return {"launch": launch_id(), "settings": json_checksum(config.model_dump())}


def resume_run(
    output: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    pairs: PairSource | None = None,
    console: Console | None = None,
    quiet: bool = False,
    watch: Watch | None = None,
) -> RunFolder:
    """Continue a run from its newest valid checkpoint; a finished run stays as it is.

    Raises RunError, and changes nothing, if a part is missing that no other one holds.

    Args:
        output: the run folder.
        settings: those to change; limits may change, the model may not.
        pairs: the training pairs, if they came from Python and not from a file.
        console: where to report; stderr if None.
        quiet: whether to print nothing.
        watch: as for `start_run`.
    """
    folder = RunFolder(output)
    console = StderrConsole(quiet=quiet) if console is None else console
    before = folder.read_config()
    config = _resumed_config(before, settings or {})
    _check_tensorboard(config)
    folder.check_links()
    if config.data == "-" and pairs is None:
        folder.check_stdin()
    with folder.held() if is_first_process() else nullcontext():
        state = read_state(folder)
        if folder.finished and config == before and state.model_problem is None:
            folder.read_task(config)  # raises if the tokenisers are damaged: nothing can load it
            if not quiet and is_first_process():
                _say_finished(folder, config, state, console)
            return folder
        if state.lost is not None:
            raise state.lost
        if is_first_process():
            folder.create()
            folder.sweep()
        run = prepare(config, folder, console, pairs, resumed=state.checkpoint is not None)
        return _train(run, state, console, quiet, watch)


def _resumed_config(before: Config, settings: Mapping[str, Any]) -> Config:
    """Return the settings of a resumed run; raises ArgumentError if a fixed one changes."""
    preset = check_preset(str(settings.get("preset", before.preset)))
    if preset != before.preset:
        raise _changed("preset", before.preset, preset)
    config = make_config(settings, before)
    for name in Config.fixed_on_resume():
        if getattr(config, name) != getattr(before, name):
            raise _changed(name, getattr(before, name), getattr(config, name))
    return config


def _changed(name: str, before: object, now: object) -> ArgumentError:
    rule = f"stay {before!r} when a run goes on"
    return ArgumentError(name, rule, repr(now), "start a new run for it with another -o")


def _check_tensorboard(config: Config) -> None:
    if config.tensorboard and not is_installed("tensorboard"):
        rule = "be false where its package is not installed"
        fix = f"install it with `{install_command('tensorboard')}`, or leave the setting out"
        raise ArgumentError("tensorboard", rule, "true", fix)


def _say_finished(folder: RunFolder, config: Config, state: "RunState", console: Console) -> None:
    """Say that a run is finished, and which parts of it are damaged."""
    for sentence in (*state.notes, *([] if state.lost is None else [str(state.lost)])):
        say(console, sentence)
    say(console, message("train.finished", path=folder.path))
    if state.checkpoint is not None:
        say(console, describe_limits(config, state.progress, folder.path))


def describe_limits(config: Config, progress: Progress, folder: Path) -> str:
    """Return a sentence about the limits that have ended a run, and how to raise them."""
    over: dict[str, int | float] = {}
    if config.epochs is not None and progress.epoch >= config.epochs:
        over["epochs"] = config.epochs
    if config.minutes is not None and time_is_up(progress, config.minutes):
        over["minutes"] = config.minutes
    if config.steps is not None and progress.step >= config.steps:
        over["steps"] = config.steps
    if has_stalled(progress, 1.0, config.patience):
        over["patience"] = progress.stale if config.patience is None else config.patience
    over = over or {"steps": progress.step}  # the default limit, which follows from the data
    units = {"patience": message("train.limit.patience")}  # others are in the name of the limit
    reached = (f"{name}={_number(value)}{units.get(name, '')}" for name, value in over.items())
    more = " ".join(f"{name}={_number(2 * value)}" for name, value in over.items())
    return message(
        "train.limit" if len(over) == 1 else "train.limits",
        what=message("runs.and").join(reached),
        command=f"regard train --resume {folder} {more}",
    )


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _train(
    run: PreparedRun,
    state: "RunState",
    console: Console,
    quiet: bool,
    watch: Watch | None = None,
) -> RunFolder:
    """Train a prepared run to its end, from a state."""
    folder, progress = run.folder, state.progress
    processes, dev = run.learner.processes, run.evaluator.dev
    notes = list(state.notes)
    if state.checkpoint is not None:
        notes += run.checkpoints.restore(state.checkpoint)
    reporter = ConsoleReporter(
        console,
        run.budget.spent,
        dev.sources,
        dev.references,
        quiet=quiet or not processes.is_first,
    )
    for sentence in notes:
        reporter.note(sentence)
    if progress.evaluated == progress.step and run.budget.is_over(progress):
        reporter.note(describe_limits(run.config, progress, folder.path))
    elif progress.step:
        reporter.note(message("train.going-on", step=progress.step))
    recorders: list[Recorder] = []
    report: HtmlReport | None = None
    if processes.is_first:
        _settle_folder(run, state)
        if run.config.tensorboard:
            recorders.append(TensorBoardWriter(folder.path, progress.evaluated))
        if run.config.report:
            traces = partial(example_traces, run.evaluator)
            heading = run.summary.heading()
            report = HtmlReport(folder.path, progress.step, heading, traces)
            reporter.note(message("train.report", path=folder.path / REPORT[0]))
            recorders.append(report)
        if watch is not None:
            recorders.append(watch(run))
    progress.setup_seconds += processes.of_first(run.setup_seconds)
    if state.checkpoint is None:
        progress.baseline = run.baseline_score
        progress.start_gain = START_GAIN if run.config.start is None else 0.0
        if run.before is not None:
            with run.learner.evaluated_weights():
                if processes.is_first:
                    progress.before = run.before.evaluate().score
        run.checkpoints.save(progress)  # from now on, a run without a checkpoint is damaged
    try:
        with reporter.running(), _told_of_lost_process(processes.count, folder):
            folder.stopped_by = run.train(progress, reporter, recorders)
            if folder.stopped_by is not None:
                resume = f"regard train --resume {folder.path}"
                reporter.note(message("train.stopped", command=resume))
            else:
                with run.learner.evaluated_weights():
                    if processes.is_first:
                        if report is not None:
                            report.draw(training=False)
                        _finish(run, progress, reporter)
    except KeyboardInterrupt:
        command = f"regard train --resume {folder.path}"
        reporter.note(message("train.stopped-at-once", command=command))
        raise
    processes.fabric.barrier()  # the card, written last, says that the run is finished
    return folder


@contextmanager
def _told_of_lost_process(processes: int, folder: RunFolder) -> Iterator[None]:
    """Raise RunError if a message between processes fails, since one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        if processes == 1 or not re.search(LOST_PROCESS, str(error)):
            raise
        reason = str(error).strip().splitlines()[0]
        raise RunError(
            f"all {processes} processes of a run must stay alive, but one is gone "
            f"({reason:.200}): torchrun restarts them with --max-restarts, or go on with `regard "
            f"train --resume {folder.path}` under torchrun."
        ) from error


def _settle_folder(run: PreparedRun, state: "RunState") -> None:
    """Make a folder agree with its state; whatever can fail before the first step has been tried
    by now, and nothing was written."""
    folder, step = run.folder, state.progress.evaluated
    folder.write_config(run.config)
    folder.card_file.unlink(missing_ok=True)
    for path in state.unusable:
        remove_tensors(path)
    for log in (folder.metrics, folder.report):
        log.cut(state.seals.get(log.path.name), step)
    if state.model_problem is not None and state.model_source is not None:
        folder.write_model(read_weights(state.model_source))
    if state.checkpoint is not None:  # a kill may have come between the last one and this
        run.best.drop_worse(state.progress)


def _finish(run: PreparedRun, progress: Progress, reporter: ConsoleReporter) -> None:
    """Write the final weights and the model card."""
    metric = run.evaluator.metric
    evaluator = run.evaluator.enlarged(
        final_pairs(
            progress,
            run.trained(progress),
            decoded=run.evaluator.scored[0],
            minutes=run.budget.minutes,
        )
    )
    candidates = run.best.write_final(
        progress,
        lambda: evaluator.evaluate(progress.mean_loss),
        metric,
        rescore=evaluator is not run.evaluator,
    )
    if candidates:
        several = len(progress.best)
        reporter.note(describe_candidates(candidates, several, metric.name, evaluator.scored))
    if len(progress.best) > 1 and len({found.score for found in progress.best}) == 1:
        score = format_metric(metric.name, progress.best[0].score)
        reporter.note(message("train.loss-decided", metric=metric.name, score=score))
    final = next((each.found for each in candidates if each.taken), progress.best[0])
    for what in TUNED:
        tuned = run.best.tune(what, lambda: evaluator.evaluate(progress.mean_loss), metric, final)
        if tuned is not None:
            share, final = tuned
            candidates = [each._replace(taken=False) for each in candidates]
            candidates.append(Candidate(what, final, taken=True))
            shown = {"metric": metric.name, "score": format_metric(metric.name, final.score)}
            reporter.note(message(f"train.{what}", share=share, **shown))
    simple = progress.baseline
    if simple is not None and run.baseline is not None:  # on what the final model is scored on
        rescored = evaluator.score_baseline(run.baseline)
        assert rescored is not None
        simple = progress.baseline = simple._replace(score=rescored)
    if simple is not None:
        reporter.note(describe_baseline(simple, final.score, metric))
    forgotten = None
    if run.config.start is not None:
        # the first score is of the examples that evaluations read
        same = final if evaluator is run.evaluator else progress.best[0]
        forgotten = describe_forgetting(run, progress, same.score)
        reporter.note(forgotten)
    save_adapter(run.learner.module, run.folder.path)
    calibration = run.evaluator.calibrate(run.batches.epochs.corpus)
    run.folder.write_calibration(calibration)
    write_card(run.folder, run.summary, progress, candidates, forgotten)


def describe_forgetting(run: PreparedRun, progress: Progress, final: float) -> str:
    """Return a sentence about what the model could do before, and about the new data."""
    name = run.evaluator.metric.name
    rows = run.folder.metrics.rows()
    first = next((row[f"dev_{name}"] for row in rows if row["step"] == 0), None)
    scores = {"final": final, "first": math.nan if first is None else first}
    if run.before is not None and progress.before is not None:
        scores |= {"before": progress.before, "after": run.before.evaluate().score}
    shown = {which: format_metric(name, score) for which, score in scores.items()}
    key = "train.forgotten" if "after" in scores else "train.forgotten.unknown"
    return message(key, name=run.config.start, metric=name, **shown)


def describe_baseline(simple: BaselineScore, score: float, metric: DevMetric) -> str:
    """Return a sentence about a final score beside that of the baseline."""
    scores = {"score": score, "simple": simple.score}
    shown = {name: format_metric(metric.name, value) for name, value in scores.items()}
    which = "above" if (score > simple.score) == metric.higher_is_better else "below"
    if shown["score"] == shown["simple"]:
        which = "equal"
    name = translated("train.baseline", simple.name)
    return message(f"train.baseline.{which}", name=name, metric=metric.name, **shown)


def describe_candidates(
    candidates: Sequence[Candidate], several: int, metric: str, scored: tuple[int, int]
) -> str:
    """Return a sentence about the weights that were compared at the end, and those taken.

    Args:
        candidates: the weights, with their scores.
        several: how many are averaged.
        metric: the metric that decides.
        scored: number of dev sources that the scores are of, and of all.
    """
    scores = message("train.comma").join(
        message(
            f"train.final.{each.name}",
            step=each.found.step,
            several=several,
            score=format_metric(metric, each.found.score),
        )
        for each in candidates
    )
    (taken,) = ("start" if each.found.step == 0 else each.name for each in candidates if each.taken)
    return message(
        "train.final",
        metric=metric,
        count=scored[0],
        total=scored[1],
        scores=scores,
        taken=message(f"train.final.{taken}-taken"),
    )


class RunState(NamedTuple):
    """The saved state of a run, verified as a whole before anything is written.

    Attributes:
        checkpoint: the newest valid one; None for a run that begins.
        progress: of that checkpoint; of its best evaluations, those with valid weights.
        seals: length and checksum of each log at that point, by file name.
        notes: a sentence for each fault that costs nothing.
        lost: the error of a part that is missing or damaged, and that nothing else holds.
        unusable: damaged checkpoints newer than `checkpoint`, and damaged files of best/.
        model_problem: why model.safetensors cannot be used, or None.
        model_source: the file of best/ to restore it from, if there is one.
    """

    checkpoint: Checkpoint | None
    progress: Progress
    seals: Mapping[str, Any]
    notes: list[str]
    lost: RunError | None
    unusable: list[Path]
    model_problem: str | None
    model_source: Path | None


def new_state() -> RunState:
    """Return the state of a run that begins."""
    return RunState(None, Progress(), {}, [], None, [], None, None)


def read_state(folder: RunFolder) -> RunState:
    """Read the state of a run, and verify its checkpoints, logs, best weights and model."""
    found = load_checkpoint(folder.checkpoints)
    notes, lost = list(found.complaints), None
    unusable = [folder.checkpoints / f"{name}.safetensors" for name in found.damaged]
    progress, seals = Progress(), {}
    if found.checkpoint is None:  # which a run saves before its first step
        made = (folder.model_file, folder.card_file, *folder.best.glob("*"))
        what = f"{folder.checkpoints} has no checkpoint"
        if found.damaged:
            names = ", ".join(found.damaged)
            what = f"all checkpoints in {folder.checkpoints} are damaged ({names})"
        if found.damaged or folder.metrics.rows() or any(path.exists() for path in made):
            lost = _incomplete(what)
    else:
        numbers = found.checkpoint.numbers
        progress, seals = progress_of(numbers["progress"]), numbers.get("logs", {})
        for log in (folder.metrics, folder.report):
            if (fault := log.problem(seals.get(log.path.name))) is not None:
                fault = f"{log.path} is damaged: {fault}; what cannot be read is left out."
                notes.append(fault)
        files = (folder.src_tokenizer_file, folder.tgt_tokenizer_file)
        again = "is missing, and is learned again from the data."
        notes += [f"{file} {again}" for file in files if not file.exists()]
    problem, had_best = _problem(folder.model_file), bool(progress.best)
    source, forgotten = _best(folder, progress, model_is_whole=problem is None)
    notes += forgotten.values()
    unusable += forgotten
    if problem is not None and (had_best or folder.model_file.exists() or folder.finished):
        said = f"{folder.model_file} {problem}"
        if source is not None:
            notes.append(f"{said}, and is written again from {source}.")
        elif had_best or folder.finished:
            lost = lost or _incomplete(f"{said}, and the best weights so far are gone")
        else:
            notes.append(f"{said}, and is written again at the next evaluation.")
    return RunState(found.checkpoint, progress, seals, notes, lost, unusable, problem, source)


def _incomplete(what: str) -> RunError:
    return RunError(
        f"a run must be whole to go on, but {what}: restore that from a copy, or start a new run "
        f"from this one with --from RUN@STEP."
    )


def _best(
    folder: RunFolder, progress: Progress, *, model_is_whole: bool
) -> tuple[Path | None, dict[Path, str]]:
    """Forget evaluations whose weights are gone.

    Returns:
        the file of the best evaluation, if it is valid; a sentence for each file that is not.
    """
    source, kept, gone = None, [], {}
    for place, found in enumerate(progress.best):
        path = tensor_file(folder.best, found.step)
        problem = _problem(path)
        if problem is not None:
            gone[path] = f"{path} {problem}, and is left out at the end."
        elif place == 0:
            source = path
        if problem is None or (place == 0 and model_is_whole):  # the model has the best weights
            kept.append(found)
    progress.best = kept
    return source, gone


def _problem(path: Path) -> str | None:
    """Return why a file of weights cannot be used, or None.

    Raises DataError if it may not be read: it need not be damaged then.
    """
    if not path.exists():
        return "is missing"
    try:
        read_weights(path)
    except UnusableWeightsError as error:
        return f"is damaged ({error})"
    return None
