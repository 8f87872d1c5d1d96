"""From a config to a task: tokenisers, encoded data, model, optimiser. Each choice is announced."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from regard import kinds
from regard.data import Corpus, Tokenizer
from regard.data.dev_set import DevSet, overlapping_sources
from regard.data.text_files import STDIN, is_pipe
from regard.errors import ArgumentError
from regard.kinds.tokenizer_training import shared_tokenizer_kind
from regard.training.config import Config, check_model, no_bpe
from regard.training.console_reporter import say as say_to
from regard.training.defaults import (
    Facts,
    describe_defaults,
    evaluation_interval,
    fill_settings,
    has_stalled,
    steps_limit,
)
from regard.training.distributed import Fabric
from regard.training.epochs import BatchShapes, Epochs, make_recutter
from regard.training.optimization import (
    CudaGraphGradients,
    ExponentialMovingAverage,
    can_record,
    check_precision,
    make_learner,
)
from regard.training.pretrained_embeddings import check_vectors
from regard.training.progress import Progress
from regard.training.run_data import PairSource, prepare_data
from regard.training.run_folder import RunFolder
from regard.training.task import (
    RATE,
    RATES,
    DevMetric,
    Task,
    make_fabric,
)

#: which metric decides, by the kind of the target's tokeniser
METRICS: Final = {"char": "exact", "space": "per", "word": "bleu", "bpe": "bleu", "unigram": "bleu"}
HIGHER: Final = {"bleu", "chrf", "exact"}


def prepare(
    config: Config,
    folder: RunFolder,
    console: Console,
    pairs: PairSource | None = None,
    *,
    resumed: bool = False,
    accept_changed_data: bool = False,
) -> Task:
    """Makes everything ready for the first step, or for the next one.

    Args:
        config: the settings.
        folder: where the run lives; tokenisers and encoded data are kept there and found again.
        console: where choices are announced.
        pairs: training pairs, if they do not come from `config.data`.
        resumed: whether a checkpoint will bring the weights.
        accept_changed_data: whether a run may go on with data that have changed since it began.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    fabric, precision = make_fabric(config)
    fabric.launch()

    def say(sentence: str) -> None:
        if fabric.is_global_zero:
            say_to(console, sentence)

    with fabric.rank_zero_first():
        # which keeps stdin: one alone may read it
        data = prepare_data(config, folder, pairs, say, accept_changed=accept_changed_data)
    corpus, dev = data.train, data.dev
    src_tokenizer, tgt_tokenizer = data.kind.encoders
    given, facts = config, _facts(corpus, fabric)
    config = fill_settings(config, facts)
    if config.bpe_dropout:
        say(f"words are cut anew in each epoch, with {config.bpe_dropout:.0%} of merges left out.")
    recutter = make_recutter(config, corpus, src_tokenizer, tgt_tokenizer)
    module, model, optimizer = make_learner(
        config, fabric, src_tokenizer, tgt_tokenizer, say, resumed=resumed
    )
    check_precision(model, corpus, fabric, precision)
    shapes = BatchShapes.of(config) if can_record(config, fabric, precision) else None
    epochs = Epochs(config, corpus, recutter, shapes)
    per_epoch = max(1, len(epochs[0].batches) // config.accumulate)
    interval = evaluation_interval(config, per_epoch, _dev_share(config, corpus, dev))
    if config.minutes is None:  # else evaluations also follow the clock
        config = config.model_copy(update={"eval_every": interval})
    defaults = describe_defaults(given, config, facts, interval)
    return announced(
        Task(
            config=config,
            folder=folder,
            fabric=fabric,
            model=model,
            module=module,
            optimizer=optimizer,
            corpus=corpus,
            epochs=epochs,
            dev=dev,
            src_tokenizer=src_tokenizer,
            tgt_tokenizer=tgt_tokenizer,
            metric=_metric(config, tgt_tokenizer),
            schedule=_schedule(config),
            lr=config.lr or RATES.get(config.preset, RATE),
            steps=steps_limit(config, per_epoch),
            eval_every=interval,
            losses=torch.zeros((), device=fabric.device),
            ema=ExponentialMovingAverage(module, config.ema) if config.ema else None,
            recorded=None if shapes is None else CudaGraphGradients(fabric, model),
        ),
        precision,
        defaults,
        say,
    )


def _facts(corpus: Corpus, fabric: Fabric) -> Facts:
    tokens = int(corpus.src_lengths.sum() + corpus.tgt_lengths.sum()) + len(corpus)
    return Facts(len(corpus), tokens / max(1, len(corpus)), fabric.device.type == "cuda")


def _dev_share(config: Config, corpus: Corpus, dev: DevSet) -> float:
    """Dev pairs that are evaluated, as a share of the training pairs."""
    return len(dev.rows[: config.eval_pairs]) / max(1, len(corpus))


def _metric(config: Config, tgt: Tokenizer) -> DevMetric:
    by_target = "perplexity" if config.reads_texts else METRICS[tgt.kind]
    name = by_target if config.metric == "auto" else config.metric
    return DevMetric(name, name in HIGHER)


def _schedule(config: Config) -> str:
    return "cosine" if config.schedule == "auto" else config.schedule


#: the settings that name files, which are read more than once
FILES: Final = ("data", "tgt", "dev", "dev_tgt", "src_vectors", "tgt_vectors")


def check_settings(config: Config) -> None:
    """Raises where settings contradict each other, or no model can be made of them."""
    _check_files(config)
    kinds.check_settings(config)
    shared_tokenizer_kind(config)
    if config.model.get("tied") == "all" and not config.shared_vocab:
        raise ArgumentError(
            "tied",
            "be 'all' only where source and target have one vocabulary",
            "'all' without shared_vocab",
            "add shared_vocab=true, or say tied=output",
        )
    if config.copies and not config.shared_vocab:
        raise ArgumentError(
            "shared_vocab",
            f"be true for the preset {config.preset}, which copies tokens of the source",
            "false",
            "leave shared_vocab=false out",
        )
    if config.src_case != "keep" and config.shared_vocab:
        raise ArgumentError(
            "src_case",
            "be keep where one tokeniser cuts what is read and what is written",
            repr(config.src_case),
            "bring the data to one case instead",
        )
    asked = (config.src_tokenizer, config.tgt_tokenizer)
    if config.bpe_dropout and not {"auto", "bpe"} & set(asked):
        raise no_bpe(config, *asked)
    check_model(config)
    check_vectors(config)


def _check_files(config: Config) -> None:
    """Raises for a file that can be read but once; stdin is kept, if it is the data."""
    for name in FILES:
        file = getattr(config, name)
        if not file or (name == "data" and file == STDIN) or not is_pipe(file):
            continue
        fix = "write it to a file first"
        if name == "data":
            fix += ", or pipe it to `regard train -`"
        rule = "be a file that can be read more than once"
        raise ArgumentError(name, rule, f"{file!r}, which is a pipe", fix)


#: what a limit counts, where its name does not say it
MEANING: Final = {"patience": " (evaluations without a better one)"}


def announced(task: Task, precision: str, defaults: str | None, say: Callable[[str], None]) -> Task:
    """The task, of which the user has been told."""
    weights = sum(p.numel() for p in task.module.parameters())
    batches, what = task.epochs[0].batches, task.config.examples
    say(
        f"model: {task.config.preset}, {task.config.size}, {weights:,} weights, on "
        f"{task.fabric.device} in {precision}"
        + (f", {task.fabric.world_size} processes" if task.fabric.world_size > 1 else "")
        + "."
    )
    say(
        f"data: {len(task.corpus):,} training {what} in {len(batches):,} batches "
        f"({_padding(task):.0%} padding), {len(task.dev.corpus):,} dev {what}"
        + _different(task.dev)
        + (" held out by hash." if task.config.dev is None else ".")
    )
    if defaults is not None:
        say(defaults)
    _warn_of_seen(task, say)
    if task.recorded is not None:
        say("steps are replayed from CUDA graphs, one for each shape of a batch.")
    say(f"the checkpoint with the best dev {task.metric.name} is kept, in {task.folder.path}.")
    return task


def reached(config: Config, progress: Progress, folder: Path) -> str:
    """Say which limit has ended a run, and what to give so that it goes on."""
    over: dict[str, int | float] = {}
    if config.epochs is not None and progress.epoch >= config.epochs:
        over["epochs"] = config.epochs
    if config.minutes is not None and progress.seconds >= 60 * config.minutes:
        over["minutes"] = config.minutes
    if config.steps is not None and progress.step >= config.steps:
        over["steps"] = config.steps
    if has_stalled(config, progress, spent=1.0):
        over["patience"] = progress.stale if config.patience is None else config.patience
    over = over or {"steps": progress.step}  # the default limit, which follows from the data
    what = " and ".join(f"{n}={_number(v)}{MEANING.get(n, '')}" for n, v in over.items())
    more = " ".join(f"{name}={_number(2 * value)}" for name, value in over.items())
    return (
        f"{what} {'is' if len(over) == 1 else 'are'} reached: give more, as in `regard train "
        f"--resume {folder} {more}`."
    )


def _number(value: int | float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _different(dev: DevSet) -> str:
    """A source with several targets is judged once, by any of them."""
    count = len(dev.sources)
    return f" of {count:,} sources" if count < len(dev.corpus) else ""


def _warn_of_seen(task: Task, say: Callable[[str], None]) -> None:
    """What is held out by hash has no source in common with the rest; a file of dev pairs may."""
    if task.config.dev is None or task.config.reads_texts or task.corpus.features:
        return
    seen, count = overlapping_sources(task.corpus, task.dev), len(task.dev.sources)
    if seen:
        both = "is also a source" if seen == 1 else "are also sources"
        say(
            f"{seen:,} of {count:,} dev sources ({_share(seen / count)}) {both} of training pairs, "
            "and what was learned does not show how the model does on new ones: leave such pairs "
            "out of one of the files."
        )


def _share(share: float) -> str:
    """In per cent, with what is needed to tell it from nothing."""
    return f"{share:.0%}" if share >= 0.01 else "less than 1%"


def _padding(task: Task) -> float:
    """The share of padding among all tokens of the first pass."""
    pairs, batches = task.epochs[0]
    shapes = task.epochs.shapes
    if shapes is None:
        return batches.padding_share
    found = [shapes.of_batch(pairs, rows) for rows in map(batches.__getitem__, range(len(batches)))]
    real = int(pairs.src_lengths.sum() + pairs.tgt_lengths.sum()) + len(pairs.tgt_lengths)
    return 1 - real / sum(shape.rows * (shape.src_len + shape.tgt_len) for shape in found)
