"""Setup of a run: settings become numbers and objects here, and nowhere below.

`check_settings` refuses settings that contradict each other, before anything is read or written.
`prepare` makes tokenisers, encoded data, model and optimiser, and announces each choice.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from rich.console import Console
from torch import nn

from regard.data import EncodedPairs
from regard.data.corpus import DevSet
from regard.data.shards import display_data, is_sharded
from regard.data.text_files import STDIN, is_read_once
from regard.errors import ArgumentError
from regard.evaluation import METRICS
from regard.messages import message, translated, use_language
from regard.models import COPY_PRESETS, TEXT_PRESETS, AnyModel, SequenceModel
from regard.tasks import Task, open_task
from regard.tasks import check_settings as check_task_settings
from regard.tasks.baselines import Baseline, fit_baseline
from regard.tasks.settings import refuse_settings
from regard.tasks.tokenizer_training import shared_tokenizer_kind
from regard.training.adapters import build_network, halve_frozen
from regard.training.checkpoint import BestWeights, Checkpoints
from regard.training.config import Config, check_model, with_preset_of
from regard.training.defaults import (
    Facts,
    describe_defaults,
    evaluation_interval,
    evaluation_limits,
    fill_settings,
    peak_rate,
    starts_from_counts,
    steps_limit,
    timed_batch_tokens,
)
from regard.training.distributed import (
    DryFabric,
    Fabric,
    GatheredModel,
    Processes,
    join_processes,
    make_fabric,
)
from regard.training.epochs import BatchShapes, Epochs, Replay, TrainingBatches
from regard.training.evaluator import DevMetric, Evaluator
from regard.training.fine_tuning import StartModel, check_start, fill, freeze, open_start
from regard.training.loop import TrainingParts, train
from regard.training.losses import NOT_TAUGHT, Objective, load_teachers
from regard.training.optimization import (
    ExponentialMovingAverage,
    Learner,
    check_precision,
    parameter_groups,
    recompute_layers,
    retain_freed_memory,
    seconds_per_token,
)
from regard.training.pretrained_embeddings import (
    check_vectors,
    embeddings,
    start_from_counts,
    start_from_vectors,
)
from regard.training.reporting import (
    ConsoleReporter,
    Recorder,
    RunSummary,
    format_metric,
)
from regard.training.reporting import say as say_to
from regard.training.run_data import EncodedData, prepare_data
from regard.training.run_files import PairSource
from regard.training.run_folder import RunFolder
from regard.training.schedule import BaselineScore, Budget, Intervals, LearningRate, Progress

#: settings that name files, which are read more than once
FILES: Final = ("data", "tgt", "dev", "dev_tgt", "src_vectors", "tgt_vectors")

Say = Callable[[str], None]


@dataclass(frozen=True)
class PreparedRun(TrainingParts):
    """The parts of a run, ready for its first step, or for its next one.

    `config` has all defaults filled in; only starting and resuming a run need it. `every` says of
    how many examples one was read, for a dry run; `before` evaluates what the model that a run
    starts from could do.
    """

    config: Config
    folder: RunFolder
    summary: RunSummary
    setup_seconds: float = 0.0
    baseline: Baseline | None = None
    baseline_score: BaselineScore | None = None
    every: int = 1
    before: Evaluator | None = None

    def trained(self, progress: Progress) -> float:
        """Return how many examples the model was trained on, repetitions counted."""
        epochs = self.batches.epochs
        part = progress.batch / max(1, self.batches.in_epoch(progress.epoch))
        return (progress.epoch + part) * len(epochs.corpus.src_lengths)

    def train(
        self, progress: Progress, reporter: ConsoleReporter, recorders: Sequence[Recorder] = ()
    ) -> int | None:
        """Train from a point of progress; returns the signal that has stopped the run, if any."""
        with retain_freed_memory(self.learner.processes.device.type):
            return train(self, progress, reporter, recorders)


def prepare(
    config: Config,
    folder: RunFolder,
    console: Console,
    pairs: PairSource | None = None,
    *,
    resumed: bool = False,
    began: float | None = None,
    sample: int | None = None,
) -> PreparedRun:
    """Make the parts of a run.

    Args:
        config: the settings.
        folder: of the run; tokenisers and encoded data are kept there.
        console: where choices are announced.
        pairs: training pairs, if they do not come from `config.data`.
        resumed: whether a checkpoint will restore the weights.
        began: when its minutes began, by the monotonic clock; now if None.
        sample: characters that are enough for a dry run, whose evaluations are not timed.
    """
    began = time.monotonic() if began is None else began
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    dry = sample is not None
    fabric, precision = make_fabric(config.device, config.precision, config.strategy, dry=dry)
    join_processes(fabric.device)
    fabric.launch()
    processes = Processes(fabric)

    def say(sentence: str) -> None:
        if processes.is_first:
            say_to(console, sentence)

    with processes.first_alone():
        # the first process saves stdin: only one may read it
        data = prepare_data(config, folder, pairs, say, sample=sample)
    facts = _facts(data, fabric)
    given = with_preset_of(cast(Config, data.task.settings), data.task)
    values = fill_settings(given, facts)
    if data.columns is not None:
        values = values.model_copy(update={"columns": data.columns})
    task = open_task(values, *data.task.encoders)  # builds a model of the size that was filled in
    baseline, fitted_in = None, 0.0
    if processes.is_first and not resumed and not dry:
        baseline, fitted_in = _fitted_baseline(values, task, data)
    start = None
    if values.start is not None and values.adapter is None and not resumed:
        start = open_start(values.start, values.start_checksum)
    parts = NetworkParts(values, task, data, processes, precision, say)
    network = parts.network(start)
    if not resumed and not dry and not values.freeze:  # else a checkpoint restores the weights
        parts.initialise(network, baseline, from_counts=starts_from_counts(values, facts))
    module, learner = parts.learner(network)
    check_precision(learner.objective, data.train, fabric, precision)
    evaluator = _evaluator(values, module, task, data.dev, fabric)
    run = _planned(parts, facts, given, folder, learner, evaluator, timed=not dry)
    score = _baseline_score(run.evaluator, baseline if values.baseline else None, fitted_in, say)
    seconds = time.monotonic() - began
    return replace(run, baseline=baseline, baseline_score=score, setup_seconds=seconds)


def _planned(
    parts: "NetworkParts",
    facts: Facts,
    given: Config,
    folder: RunFolder,
    learner: Learner,
    evaluator: Evaluator,
    *,
    timed: bool,
) -> PreparedRun:
    """Plan batches, evaluations and the end of a run, and announce what was chosen.

    Args:
        parts: of the network.
        facts: that defaults depend on.
        given: the settings before these were filled in.
        folder: of the run.
        learner: the model with its optimiser.
        evaluator: of the whole dev set.
        timed: whether evaluations are measured, and limited to a share of the minutes.
    """
    values, task, data, say = parts.values, parts.task, parts.data, parts.say
    fabric = parts.processes.fabric
    # a batch of pairs is small on a CPU already
    large = given.batch_tokens is None and not facts.scales_batches and not facts.on_gpu
    if values.minutes is not None and values.batch_tokens and large and fabric.world_size == 1:
        cost = seconds_per_token(learner.objective, data.train, fabric)
        tokens = timed_batch_tokens(values.batch_tokens, values.minutes, cost)
        values = values.model_copy(update={"batch_tokens": tokens})
    batches = _batches(values, data, learner)
    per_epoch = max(1, batches.in_epoch(0) // values.accumulate)
    dev_share = len(data.dev.rows[: values.eval_pairs]) / max(1, facts.examples)
    interval = evaluation_interval(values, per_epoch, dev_share)
    if values.minutes is None:  # else evaluations follow the clock as well
        values = values.model_copy(update={"eval_every": interval})
    if values.minutes is not None and timed:
        evaluator = _within_minutes(evaluator, learner, values.minutes, given.eval_pairs, say)
        values = values.model_copy(update={"eval_pairs": evaluator.decoded})
    budget = Budget(
        steps=steps_limit(values, per_epoch),
        epochs=values.epochs,
        minutes=values.minutes,
        patience=values.patience,
        batches_in_epoch=batches.in_epoch,
    )
    best = BestWeights(folder, evaluator.module, kept=values.average)
    schedule = "cosine" if values.schedule == "auto" else values.schedule
    run = PreparedRun(
        config=values,
        folder=folder,
        learner=learner,
        batches=batches,
        budget=budget,
        learning_rate=LearningRate(schedule, peak_rate(values), values.warmup, budget),
        intervals=Intervals(
            eval_every=interval,
            minutes=values.minutes if values.eval_every is None else None,
            save_every=values.save_every,
            at_start=values.start is not None or bool(task.output.fitted_weights(learner.module)),
        ),
        evaluator=evaluator,
        best=best,
        checkpoints=Checkpoints(folder, learner, best),
        summary=_summary(values, learner.module, facts.examples, evaluator),
        every=data.every,
        before=None if data.before is None else replace(evaluator, dev=data.before),
    )
    examples = task.input.facts.examples
    defaults = describe_defaults(given, values, facts, interval, per_epoch, examples)
    _announce(run, parts.precision, defaults, say)
    return run


def _named_network(values: Config, module: AnyModel) -> dict[str, str]:
    """Return the preset and its size, or the model that has an adapter and what is trained."""
    if values.adapter is None:
        return {"preset": values.preset, "size": values.size}
    trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
    name = f"{values.adapter}, {values.start}"
    return {"preset": name, "size": message("train.model.trained", count=trained)}


def _baseline_score(
    evaluator: Evaluator, baseline: Baseline | None, seconds: float, say: Say
) -> BaselineScore | None:
    """Score and announce a baseline; None if there is none."""
    score = None if baseline is None else evaluator.score_baseline(baseline)
    if baseline is None or score is None:
        return None
    found = BaselineScore(baseline.name, evaluator.metric.name, score, seconds)
    shown = {"metric": found.metric, "score": format_metric(found.metric, score)}
    name = translated("train.baseline", found.name)
    say(message("train.baseline", name=name, seconds=seconds, **shown))
    return found


def _within_minutes(
    evaluator: Evaluator, learner: Learner, minutes: float, given: int | None, say: Say
) -> Evaluator:
    """Return an evaluator that takes a small share of the minutes; given pairs are all decoded."""
    processes = learner.processes
    costs = (0.0, 0.0)
    with learner.evaluated_weights():  # all processes must enter it
        if processes.is_first:
            costs = evaluator.seconds()
    examples, sources = evaluation_limits(minutes, *map(processes.of_first, costs))
    total = len(evaluator.dev.scored)
    if examples < total:
        what = translated("train.examples", evaluator.task.input.facts.examples)
        say(message("train.loss-scored", count=examples, total=total, what=what))
    decoded = evaluator.decoded
    if given is None and decoded is not None:
        decoded = min(decoded, sources)
    return evaluator.limited(examples, decoded)


def _facts(data: EncodedData, fabric: Fabric) -> Facts:
    corpus, task = data.train, data.task
    count = len(corpus.src_lengths)
    tokens = int(corpus.src_lengths.sum() + corpus.tgt_lengths.sum()) + count
    return Facts(
        count,
        tokens / max(1, count),
        on_gpu=fabric.device.type == "cuda",
        scales_batches=task.input.facts.scales_batches,
        has_sources=task.has_sources,
        labels=bool(task.labels),
        writes=task.numbers is None and not task.labels,
    )


def _fitted_baseline(
    values: Config, task: Task, data: EncodedData
) -> tuple[Baseline | None, float]:
    """Return the simple way, if it is scored or a part of the network, and its seconds."""
    votes = values.model.get("ngrams") or values.task_options.get("linear")
    if not (values.baseline or votes):
        return None, 0.0
    start = time.monotonic()
    return fit_baseline(task, data.train, data.dev, values.minutes), time.monotonic() - start


@dataclass(frozen=True)
class NetworkParts:
    """The settings and data of a network: builds it, its objective and its optimiser."""

    values: Config
    task: Task
    data: EncodedData
    processes: Processes
    precision: str
    say: Say

    def network(self, start: StartModel | None) -> AnyModel:
        """Build the network, with the weights of a model that the run starts from, if any."""
        values = self.values
        torch.manual_seed(values.seed)
        module = build_network(self.task)
        if values.adapter is not None and self.precision == "bf16":
            halve_frozen(module)
        if start is not None:
            self.say(fill(start, module, self.task, values.seed))
        if values.freeze:
            self.say(freeze(module, values.freeze))
        return module

    def initialise(self, module: AnyModel, baseline: Baseline | None, *, from_counts: bool) -> None:
        """Set the weights of a network that do not begin at random."""
        data, values = self.data, self.values
        start_from_vectors(values, module, *self.task.encoders, self.say)
        if from_counts:
            start_from_counts(module, data.train, self.say)
        self.task.output.fitted_weights(module, (data.train, data.dev))
        if getattr(getattr(module, "classifier", None), "bag", None) is not None:
            bag = None if baseline is None or baseline.bag is None else baseline.bag.state_dict()
            bag = self.processes.fabric.broadcast(bag)
            if bag is not None:  # of too many labels it has no votes
                cast(Any, module).classifier.bag.load_state_dict(bag)

    def learner(self, module: AnyModel) -> tuple[AnyModel, Learner]:
        """Return the whole model, for evaluation, and the learner, which may have a sharded one."""
        values, processes = self.values, self.processes
        fabric = processes.fabric
        gathered = GatheredModel(module, is_first=processes.is_first) if processes.shards else None
        if values.recompute:
            recompute_layers(module, values.preset)
        # dropout differs between processes
        torch.manual_seed(values.seed + 7919 * processes.rank)
        made = self._objective(module)
        optimizer: torch.optim.Optimizer | None
        if processes.shards:  # before the optimiser is made: shards replace the weights
            objective = fabric.setup_module(made)
            sharded = fabric.setup_optimizers(self._optimizer(module))
            optimizer = cast(torch.optim.Optimizer, sharded)
        elif isinstance(cast(object, fabric), DryFabric):
            # an optimiser would import torch's compiler
            objective, optimizer = fabric.setup_module(made), None
        else:
            # Fabric cannot clip gradients that a fused optimiser would unscale
            fused = self.precision != "fp16"
            objective, optimizer = fabric.setup(made, self._optimizer(module, fused=fused))
        learner = Learner(
            module,
            objective,
            optimizer,
            processes,
            max_norm=values.clip,
            average=ExponentialMovingAverage(module, values.ema) if values.ema else None,
            shapes=self._shapes(),
            gathered=gathered,
        )
        return module if gathered is None else gathered.module, learner

    def _objective(self, module: AnyModel) -> nn.Module:
        values, task = self.values, self.task
        teachers = load_teachers(values, task.encoders, self.processes.device)
        if teachers is not None:
            count = len(teachers.models)
            self.say(message("train.teacher", count=count, share=teachers.weight))
        if task.numbers is not None:
            return task.numbers.objective(module)
        return Objective(
            cast(SequenceModel, module),
            values.label_smoothing,
            values.rdrop,
            teachers,
            task.output.class_weights(self.data.train),
            values.guide_weight,
        )

    def _optimizer(self, module: AnyModel, *, fused: bool = True) -> torch.optim.Optimizer:
        values = self.values
        tables = [embedding.table.weight for embedding in embeddings(values, module).values()]
        fitted = self.task.output.fitted_weights(module)
        groups = parameter_groups(module, values.weight_decay, tables, values.vectors_rate, fitted)
        return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), fused=fused)

    def _shapes(self) -> BatchShapes | None:
        """Return the shapes of batches if CUDA graphs are used.

        A graph needs the whole batch on one GPU, and no checkpointing; fp16 decides on the host
        whether to take a step.
        """
        values, processes = self.values, self.processes
        alone = processes.device.type == "cuda" and processes.count == 1 and values.accumulate == 1
        if not (values.graphs and alone) or self.precision == "fp16" or values.recompute:
            return None
        # recordings are limited in seconds, and may have more frames than other sources
        longest = max(values.max_src_len, int(self.data.train.src_lengths.max(initial=0)))
        limits = (values.max_tokens, values.batch_sentences)
        return BatchShapes(longest, values.max_tgt_len + 1, *limits)


def _batches(values: Config, data: EncodedData, learner: Learner) -> TrainingBatches:
    processes, replay = learner.processes, None
    if data.replay is not None:
        replay = Replay(data.replay, values.replay_share, seed=values.seed)
    epochs = Epochs(
        data.train,
        max_tokens=values.max_tokens,
        max_sentences=values.batch_sentences,
        seed=values.seed,
        replay=replay,
        shapes=learner.shapes,
        joined=values.adapter is not None,
    )
    return TrainingBatches(
        epochs, accumulate=values.accumulate, rank=processes.rank, processes=processes.count
    )


def _evaluator(
    values: Config, module: AnyModel, task: Task, dev: DevSet, fabric: Fabric
) -> Evaluator:
    metric = task.output.default_metric() if values.metric == "auto" else values.metric
    return Evaluator(
        module,
        dev,
        DevMetric(metric, METRICS[metric].higher_is_better),
        task=task,
        fabric=fabric,
        decoded=values.eval_pairs,
        max_tgt_len=values.max_tgt_len,
    )


def _summary(values: Config, module: AnyModel, count: int, evaluator: Evaluator) -> RunSummary:
    dev, task = evaluator.dev, evaluator.task
    settings = values.model_dump(exclude_defaults=True)
    settings.pop("data", None)
    input_file, test_file = task.input.facts.files
    vectors = values.src_vectors or values.tgt_vectors
    seen = "what its word vectors were learned from" if vectors else "nothing else"
    if values.start is not None:
        seen = f"what `{values.start}` has, from which it started ({values.start_checksum})"
    what = task.input.facts.examples
    held_out = len(dev.corpus.src_lengths)
    with use_language("en"):  # that of the card
        encoders = task.encoder_rows()
    return RunSummary(
        preset=values.preset,
        size=values.size,
        weights=sum(weight.numel() for weight in module.parameters()),
        data=display_data(values.data) or f"{what} given in Python",
        counts=f"{count:,} training {what}, {held_out:,} dev {what}",
        tokens=encoders,
        metric=evaluator.metric.name,
        settings=settings,
        examples=task.card_examples(dev),
        input_file=input_file,
        test_file=test_file,
        seen=seen,
    )


def _announce(run: PreparedRun, precision: str, defaults: str | None, say: Say) -> None:
    """Say what is trained, on what, by which settings that were chosen, and what decides."""
    evaluator, processes = run.evaluator, run.learner.processes
    task, dev, epochs, values = evaluator.task, evaluator.dev, run.batches.epochs, run.config
    several = "train.processes-sharded" if processes.shards else "train.processes"
    say(
        message(
            "train.model",
            **_named_network(values, run.learner.module),
            weights=run.summary.weights,
            device=processes.device,
            precision=precision,
            several=message(several, count=processes.count) if processes.count > 1 else "",
        )
    )
    sources, count = len(dev.sources), len(dev.corpus.src_lengths)
    how = message("train.held-out", how=translated("train.held-out", task.input.facts.held_out_by))
    say(
        message(
            "train.data",
            train=len(epochs.corpus.src_lengths),
            what=translated("train.examples", task.input.facts.examples),
            batches=len(epochs[0].batches),
            padding=epochs.padding_share(),
            count=count,
            # a source with several targets is evaluated once, against all of them
            different=message("train.of-sources", sources=sources) if sources < count else "",
            how=how if values.dev is None else "",
        )
    )
    if defaults is not None:
        say(defaults)
    if values.dev is not None:  # held out by hash, dev sources are new
        _warn_of_overlap(task, epochs.corpus, dev, say)
    if run.learner.shapes is not None:
        say(message("train.graphs"))
    metric = evaluator.metric.name
    say(message("train.best", metric=metric, path=run.folder.path))
    if evaluator.decodes:
        count, total = evaluator.scored
        say(message("train.scored", metric=metric, count=count, total=total))


def _warn_of_overlap(task: Task, corpus: EncodedPairs, dev: DevSet, say: Say) -> None:
    """Warn of dev sources that are training sources, too."""
    seen, count = task.overlap(corpus, dev), len(dev.sources)
    if seen:
        both = message("train.overlap.one" if seen == 1 else "train.overlap.several")
        some = message("train.overlap.less")
        share = f"{seen / count:.0%}" if seen / count >= 0.01 else some
        say(message("train.overlap", seen=seen, count=count, share=share, both=both))


def check_settings(config: Config) -> None:
    """Raise ArgumentError if settings contradict each other, or make no model."""
    _check_files(config)
    _check_shards(config)
    check_task_settings(config)
    for name in ("freeze", "replay", "adapter"):
        _check_useful(config, name, "start", fix="add --from MODEL")
    for name in ("adapter_rank", "adapter_targets"):
        _check_useful(config, name, "adapter", fix="add adapter=lora")
    _check_useful(config, "replay_share", "replay", fix="name older examples with replay=FILE")
    _check_useful(config, "teacher_weight", "teacher", fix="name its runs with teacher=RUN,RUN")
    _check_useful(config, "guide_weight", "guide", fix="add guide=words")
    files = ("src_vectors", "tgt_vectors")
    _check_useful(config, "vectors_rate", *files, fix="name a file with src_vectors or tgt_vectors")
    _check_teacher(config)
    check_start(config)
    _check_guide(config)
    shared_tokenizer_kind(config)
    if config.model.get("tied") == "all" and not config.shared_vocab:
        rule = "be 'all' only where source and target have one vocabulary"
        value = "'all' without shared_vocab"
        raise ArgumentError("tied", rule, value, "add shared_vocab=true, or say tied=output")
    if config.preset in COPY_PRESETS and not config.shared_vocab:
        rule = f"be true for the preset {config.preset}, which copies tokens of the source"
        raise ArgumentError("shared_vocab", rule, "false", "leave shared_vocab=false out")
    if config.src_case != "keep" and config.shared_vocab:
        rule = "be keep where one tokeniser cuts what is read and what is written"
        value = repr(config.src_case)
        raise ArgumentError("src_case", rule, value, "bring the data to one case instead")
    check_model(config)
    check_vectors(config)


def _check_useful(config: Config, name: str, *others: str, fix: str) -> None:
    """Raise ArgumentError for a setting that changes nothing, for lack of another one."""
    if not any(getattr(config, other) for other in others):
        rule = f"be left out where {' or '.join(others)} is not given"
        refuse_settings(config, (name,), rule, fix)


def _check_teacher(config: Config) -> None:
    """Raise ArgumentError for settings that do not go with a teacher."""
    if not config.teacher:
        return
    for name in config.teacher:
        if not RunFolder(Path(name)).started:
            rule = "name run folders"
            raise ArgumentError("teacher", rule, repr(name), "give folders of `regard train`")
    if rdrop := config.rdrop:
        rule = "be 0 where a teacher is given"
        raise ArgumentError("rdrop", rule, f"{rdrop:g}", "leave one of them out")
    if (preset := config.preset) in NOT_TAUGHT:
        rule = "be given to presets that write tokens"
        fix = "leave it out, or choose bahdanau or another preset"
        raise ArgumentError("teacher", rule, f"given to {preset}", fix)


def _check_guide(config: Config) -> None:
    """Raise ArgumentError for settings that do not go with a guide."""
    if config.guide is None:
        return
    if (preset := config.preset) in {*NOT_TAUGHT, *TEXT_PRESETS} or config.adapter is not None:
        rule, fix = "be given to presets that write tokens of a source", "leave it out"
        raise ArgumentError("guide", rule, f"given to {preset}", fix)
    if config.replay:
        raise ArgumentError("replay", "be left out where a guide is given", "given", "leave it out")


def _check_shards(config: Config) -> None:
    """Raise ArgumentError for settings that do not go with data in shards."""
    data, tgt = config.data, config.tgt
    if data and tgt is not None and is_sharded(data):
        fix = "write both sides into one file, as with `paste src.txt tgt.txt`"
        raise ArgumentError("tgt", "be left out with data in shards", repr(tgt), fix)


def _check_files(config: Config) -> None:
    """Raise ArgumentError for a pipe, which is read only once; stdin as the data is saved."""
    named = [(name, getattr(config, name)) for name in FILES]
    if not isinstance(config.data, str):
        named += [("data", file) for file in config.data]
    for name, file in named:
        if not isinstance(file, str) or not file or (name == "data" and file == STDIN):
            continue
        if not is_read_once(file):
            continue
        fix = "write it to a file first"
        if name == "data":
            fix += ", or pipe it to `regard train -`"
        rule = "be a file that can be read more than once"
        raise ArgumentError(name, rule, f"{file!r}, which is a pipe or a device", fix)
