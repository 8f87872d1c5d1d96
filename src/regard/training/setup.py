"""From a config to a task: tokenisers, encoded data, model, optimiser. Each choice is announced."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from rich.console import Console

from regard.data import (
    Corpus,
    Pair,
    PairReader,
    Tokenizer,
    choose_kind,
    dev_share,
    fingerprint,
    held_out,
    joined,
    keep_stdin,
    open_or_build_corpus,
    read_pairs,
    read_texts,
)
from regard.data.advice import Advice
from regard.data.pairs import column_names
from regard.errors import ArgumentError, DataError
from regard.training.advice import DEV_SETTINGS, SETTINGS
from regard.training.aligned import aligned
from regard.training.announce import announced
from regard.training.checks import shared_kind
from regard.training.config import Config
from regard.training.dev_set import DevSet
from regard.training.ema import MovingAverage
from regard.training.epochs import Epochs, make_recutter
from regard.training.gradients import RecordedGradients
from regard.training.learner import can_record, make_learner
from regard.training.run_folder import RunFolder
from regard.training.shapes import Shapes
from regard.training.task import (
    RATE,
    RATES,
    DevMetric,
    Task,
    make_fabric,
)
from regard.training.vectors import grown
from regard.training.watch import say as say_to

#: lines that tokenisers are trained on, at most
TOKENIZER_LINES: Final = 1_000_000
#: which metric decides, by the kind of the target's tokeniser
METRICS: Final = {"char": "exact", "space": "per", "word": "bleu", "bpe": "bleu", "unigram": "bleu"}
HIGHER: Final = {"bleu", "chrf", "exact"}

Say = Callable[[str], None]
PairSource = Sequence[tuple[str, ...] | Mapping[str, Any]]


def prepare(
    config: Config,
    folder: RunFolder,
    console: Console,
    pairs: PairSource | None = None,
) -> Task:
    """Makes everything ready for the first step, or for the next one.

    Args:
        config: the settings.
        folder: where the run lives; tokenisers and encoded data are kept there and found again.
        console: where choices are announced.
        pairs: training pairs, if they do not come from `config.data`.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    fabric, precision = make_fabric(config)
    fabric.launch()

    def say(sentence: str) -> None:
        if fabric.is_global_zero:
            say_to(console, sentence)

    data = _Data(config, folder, pairs, say)
    with fabric.rank_zero_first():
        src_tokenizer, tgt_tokenizer = data.tokenizers()
        corpus, dev = data.corpora(src_tokenizer, tgt_tokenizer)
    if config.bpe_dropout:
        say(f"words are cut anew in each epoch, with {config.bpe_dropout:.0%} of merges left out.")
    recutter = make_recutter(config, corpus, src_tokenizer, tgt_tokenizer)
    module, model, optimizer = make_learner(
        config, folder, fabric, src_tokenizer, tgt_tokenizer, say
    )
    shapes = Shapes.of(config) if can_record(config, fabric, precision) else None
    epochs = Epochs(config, corpus, recutter, shapes)
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
            steps=_steps(config, epochs),
            eval_every=config.eval_every or min(max(_per_epoch(config, epochs), 200), 2000),
            losses=torch.zeros((), device=fabric.device),
            ema=MovingAverage(module, config.ema) if config.ema else None,
            recorded=None if shapes is None else RecordedGradients(fabric, model),
        ),
        precision,
        say,
    )


class _Data:
    """Where the pairs of a run come from; each pass over them reads them anew."""

    def __init__(
        self, config: Config, folder: RunFolder, pairs: PairSource | None, say: Say
    ) -> None:
        self.config, self.folder, self.pairs, self.say = config, folder, pairs, say
        self.share = 0.0
        self.told: set[str] = set()
        self.stdin = folder.stdin_file
        if config.data == "-" and pairs is None and not self.stdin.exists():
            keep_stdin(self.stdin)

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Those of the run, trained at its first start."""
        src_file, tgt_file = self.folder.src_tokenizer_file, self.folder.tgt_tokenizer_file
        if src_file.exists() and tgt_file.exists():
            return Tokenizer.load(src_file), Tokenizer.load(tgt_file)
        lines = list(itertools.islice(self._train(), TOKENIZER_LINES))
        if not lines:
            raise self._too_few("training")
        src, tgt = self._learned(lines)
        src.save(src_file)
        tgt.save(tgt_file)
        return src, tgt

    def _learned(self, lines: list[Pair]) -> tuple[Tokenizer, Tokenizer]:
        """Tokenisers of both sides, or one and the same."""
        config = self.config
        features = sorted({f for p in lines for f in p.features})
        if config.reads_texts:  # one tokeniser cuts what is given and what is written
            every = [line for p in lines for line in p.tgt.split("\n")]
            both = self._learn("text", config.tgt_tokenizer, every)
            return both, both
        if config.shared_vocab:
            # by turns, so that what is looked at to choose a kind is of both sides
            texts = [text for p in lines for text in (p.src, p.tgt)]
            both = self._learn("source and target", shared_kind(config), texts, features)
            return both, both
        return (
            self._learn("source", config.src_tokenizer, [p.src for p in lines], features),
            self._learn("target", config.tgt_tokenizer, [p.tgt for p in lines]),
        )

    def _learn(
        self, side: str, asked: str, texts: list[str], features: Sequence[str] = ()
    ) -> Tokenizer:
        kind, reason = choose_kind(texts) if asked == "auto" else (asked, "it was asked for")
        tokenizer = Tokenizer.train(
            kind,
            texts,
            vocab_size=self.config.vocab_size,
            case=self.config.src_case if side == "source" else "keep",
            features=features,
        )
        self.say(f"{side} tokens: {kind}, {tokenizer.vocab_size} of them, because {reason}.")
        return grown(self.config, side, tokenizer, self.say)

    def corpora(self, src: Tokenizer, tgt: Tokenizer) -> tuple[Corpus, DevSet]:
        """The training pairs, and the dev pairs with their texts."""
        config = self.config
        if config.dev is None and not self.share:
            self.share = dev_share(sum(1 for _ in self._read_train()))
        if next(iter(self._dev()), None) is None:
            raise self._too_few("dev")
        train = self._corpus("train", self._train, src, tgt)
        dev = self._corpus("dev", self._dev, src, tgt, texts=True)
        if train.dropped:
            total = len(train) + train.dropped
            what = self.config.examples
            self.say(f"too long and left out: {train.dropped:,} of {total:,} training {what}.")
        return train, DevSet.of(dev)

    def _corpus(
        self,
        part: str,
        pairs: Callable[[], Iterable[Pair]],
        src: Tokenizer,
        tgt: Tokenizer,
        *,
        texts: bool = False,
    ) -> Corpus:
        path = self.folder.data / f"{part}.arrow"
        try:
            return open_or_build_corpus(
                lambda: self._fit_for_model(pairs(), part, src, tgt),
                src,
                tgt,
                path,
                source=self._source(part),
                max_src_len=self.config.max_src_len,
                max_tgt_len=self.config.longest_tgt,
                texts=texts,
                say=self.say,
            )
        except DataError as error:
            if "pairs" not in error.reason or error.file != str(path):
                raise
            # blame the file that the user knows, for having no pairs that can be used
            raise DataError(self._name_of(part), None, error.reason, error.fix) from None

    def _fit_for_model(
        self, pairs: Iterable[Pair], part: str, src: Tokenizer, tgt: Tokenizer
    ) -> Iterable[Pair]:
        config = self.config
        if not config.tags:
            return pairs
        name, skip = self._name_of(part), config.skip_bad
        return aligned(
            pairs, src, tgt, preset=config.preset, name=name, skip_bad=skip, say=self.say
        )

    def _too_few(self, part: str) -> DataError:
        """What to say of a file with hardly any sources: all fall to one side."""
        return DataError(
            self._name_of(part),
            None,
            f"it has too few different {'texts' if self.config.reads_texts else 'sources'} to hold "
            f"some out, and no {part} {self.config.examples} are left",
            f'add {self.config.examples}, or name dev {self.config.examples} with dev="FILE"',
        )

    def _name(self, source: str) -> str:
        return "stdin" if source in ("-", str(self.stdin)) else source

    def _name_of(self, part: str) -> str:
        source = self.config.dev if part == "dev" and self.config.dev else self.config.data
        return self._name(source) or "pairs"

    def _source(self, part: str) -> str:
        config = self.config
        files = [f for f in (config.data, config.tgt, config.dev, config.dev_tgt) if f]
        if config.data == "-":
            files[0] = str(self.stdin)
        return fingerprint(
            *([] if self.pairs is not None else files),
            part=part,
            share=self.share,
            columns=config.columns,
            features=config.features,
            skip_bad=config.skip_bad,
            **({"join_lines": config.join_lines} if config.reads_texts else {}),
            pairs=None if self.pairs is None else fingerprint(pairs=list(map(repr, self.pairs))),
        )

    def _train(self) -> Iterator[Pair]:
        return (p for p in self._read_train() if not self._is_dev(p))

    def _dev(self) -> Iterator[Pair]:
        if self.config.dev is not None:
            return iter(self._read(self.config.dev, self.config.dev_tgt, DEV_SETTINGS))
        return (p for p in self._read_train() if self._is_dev(p))

    def _is_dev(self, pair: Pair) -> bool:
        if self.config.dev is not None:
            return False
        if not self.share:
            self.share = dev_share(sum(1 for _ in self._read_train()))
        return held_out(pair.src or pair.tgt, share=self.share)

    def _read_train(self) -> Iterable[Pair]:
        if self.pairs is not None:
            return self._read(self.pairs, None)
        if not self.config.data:
            raise ArgumentError(
                "data", "be a file of pairs", "missing", "name one, as in `regard train pairs.tsv`"
            )
        source = str(self.stdin) if self.config.data == "-" else self.config.data
        return self._read(source, self.config.tgt)

    def _read(
        self, source: str | PairSource, tgt: str | None, advice: Advice = SETTINGS
    ) -> Iterator[Pair]:
        try:
            reader = self._reader(source, tgt, advice)
            self._once(reader.note.replace(str(self.stdin), "stdin"))
            yield from joined(self._plain(reader), self.config.join_lines)
        except DataError as error:
            if error.file != str(self.stdin):
                raise
            raise DataError("stdin", error.line, error.reason, error.fix) from None
        name = self._name(source) if isinstance(source, str) else "pairs"
        self._once(f"{name}: {reader.bad}" if reader.bad.total else "")

    def _once(self, sentence: str) -> None:
        """Says it, unless it is empty or was said when the data were read before."""
        if sentence and sentence not in self.told:
            self.told.add(sentence)
            self.say(sentence)

    def _reader(self, source: str | PairSource, tgt: str | None, advice: Advice) -> PairReader:
        skip_bad, max_chars = self.config.skip_bad, self.config.max_chars
        if self.config.reads_texts:
            texts = source if isinstance(source, str) else map(_alone, source)
            return read_texts(texts, skip_bad=skip_bad, max_chars=max_chars, advice=advice)
        return read_pairs(
            source,
            tgt_file=tgt,
            columns=column_names(self._columns(source)),
            features=bool(self.config.features),
            skip_bad=skip_bad,
            max_chars=max_chars,
            advice=advice,
        )

    def _columns(self, source: str | PairSource) -> Sequence[str] | None:
        """Those that were chosen; beside tuples they are meant for the file of dev pairs."""
        tuples = not isinstance(source, str) and not isinstance(next(iter(source), ()), Mapping)
        return None if tuples and self.config.dev is not None else self.config.columns

    def _plain(self, pairs: Iterable[Pair]) -> Iterable[Pair]:
        """Without their features, where the user wants none."""
        if self.config.features is False:
            return (pair._replace(features=()) for pair in pairs)
        return pairs


def _alone(parts: Any) -> Any:
    """The text that a user gave, if it is one; reading complains of anything else."""
    return parts[0] if isinstance(parts, tuple) and len(parts) == 1 else parts


def _metric(config: Config, tgt: Tokenizer) -> DevMetric:
    by_target = "perplexity" if config.reads_texts else METRICS[tgt.kind]
    name = by_target if config.metric == "auto" else config.metric
    return DevMetric(name, name in HIGHER)


def _schedule(config: Config) -> str:
    return "cosine" if config.schedule == "auto" else config.schedule


def _per_epoch(config: Config, epochs: Epochs) -> int:
    return max(1, len(epochs[0].batches) // config.accumulate)


def _steps(config: Config, epochs: Epochs) -> int:
    """Steps at most. Without any limit, about thirty passes: neither so few steps that nothing is
    learned, nor days of them."""
    per_epoch = _per_epoch(config, epochs)
    if config.steps is not None:
        return config.steps
    if config.epochs is not None:
        return per_epoch * config.epochs + config.epochs
    return 10**9 if config.minutes else min(max(30 * per_epoch, 3000), 100_000)
