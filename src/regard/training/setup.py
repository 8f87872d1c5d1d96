"""From a config to a task: tokenisers, encoded data, model, optimiser. Each choice is announced."""

from typing import Final

import torch
from rich.console import Console

from regard.data import Corpus, Tokenizer
from regard.data.dev_set import DevSet
from regard.training.announce import announced
from regard.training.config import Config
from regard.training.defaults import (
    Facts,
    describe_defaults,
    evaluation_interval,
    fill_settings,
    steps_limit,
)
from regard.training.ema import MovingAverage
from regard.training.epochs import Epochs, make_recutter
from regard.training.fabric import Fabric
from regard.training.gradients import RecordedGradients
from regard.training.learner import can_record, check_precision, make_learner
from regard.training.run_data import PairSource, RunData
from regard.training.run_folder import RunFolder
from regard.training.shapes import Shapes
from regard.training.task import (
    RATE,
    RATES,
    DevMetric,
    Task,
    make_fabric,
)
from regard.training.watch import say as say_to

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
        data = RunData(config, folder, pairs, say, accept_changed=accept_changed_data)
        src_tokenizer, tgt_tokenizer = data.tokenizers()
        corpus, dev = data.corpora(src_tokenizer, tgt_tokenizer)
    given, facts = config, _facts(corpus, fabric)
    config = fill_settings(config, facts)
    if config.bpe_dropout:
        say(f"words are cut anew in each epoch, with {config.bpe_dropout:.0%} of merges left out.")
    recutter = make_recutter(config, corpus, src_tokenizer, tgt_tokenizer)
    module, model, optimizer = make_learner(
        config, fabric, src_tokenizer, tgt_tokenizer, say, resumed=resumed
    )
    check_precision(model, corpus, fabric, precision)
    shapes = Shapes.of(config) if can_record(config, fabric, precision) else None
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
            ema=MovingAverage(module, config.ema) if config.ema else None,
            recorded=None if shapes is None else RecordedGradients(fabric, model),
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
