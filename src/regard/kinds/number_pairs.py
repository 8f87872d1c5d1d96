"""Number pairs: a source of text or vectors, and a number to predict, such as a rating."""

import itertools
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from regard.data import (
    TOKENIZER_KINDS,
    Corpus,
    EncodedPairs,
    FrameReader,
    FrameScaler,
    NumberTargets,
    Pair,
    PairReader,
    SourceEncoder,
    Tokenizer,
    base_folder,
    collate,
    require_text,
)
from regard.data.dev_set import DevSet, overlapping_sources
from regard.data.error_hints import SETTING_HINTS, BadLine
from regard.data.frame_tables import why_frames
from regard.data.number_targets import NumberRows
from regard.data.pair_reader import SourceTransform
from regard.data.sampling import draw_sample
from regard.errors import ArgumentError, DataError
from regard.evaluation.regression import regression_scores
from regard.kinds.data_kind import (
    Advance,
    DataKind,
    DataPlace,
    DevScores,
    Encoders,
    Say,
    ScoreTable,
    Settings,
    SourceAdapter,
)
from regard.kinds.frame_model import FrameOptions, check_frame_options, with_frame_input
from regard.kinds.frame_pairs import learned_tables
from regard.kinds.frame_source import FrameSource
from regard.kinds.number_graphs import NumberGraph, regression_graph
from regard.kinds.series import ForecastObjective
from regard.kinds.text_pairs import check_text_settings, read_pair_files
from regard.kinds.text_source import TextSource
from regard.kinds.tokenizer_training import TOKENIZER_LINES, learn_tokenizer
from regard.messages import message
from regard.models import LABEL_PRESETS, AnyModel, Maps, NumberModel
from regard.models.encoder_only import Regressor
from regard.models.protocol import inference
from regard.safe_read import parse_number
from regard.seeing import Map, Text, Token, Trace

#: sources that are predicted at once
BATCH: Final = 64
#: replacements of an input that are tried to see what it changes
TRIED: Final = 16
#: inputs that the sentences of a check name
NAMED: Final = 5
#: settings that number pairs have no use for, with their defaults
UNUSED: Final[dict[str, Any]] = {
    "tgt_tokenizer": "auto",
    "shared_vocab": False,
    "tgt_vectors": None,
    "bpe_dropout": 0.0,
    "rdrop": 0.0,
    "join_lines": 1,
}


class NumberOptions(FrameOptions):
    """Settings of runs that predict a number of each source."""

    numbers: bool = Field(
        default=False, description="whether targets are numbers to predict, such as ratings"
    )
    loss: Literal["mse", "mae"] = Field(
        default="mse", description="of numbers: the squared error, or the absolute one"
    )


@dataclass(frozen=True)
class NumberPrediction:
    """The number that a model predicts for a source.

    Attributes:
        value: the number.
        trace: the source, and the attention over it.
        unknown: parts of the source that the model has no token for.
    """

    value: float
    trace: Trace
    unknown: tuple[str, ...] = ()
    alternatives: tuple["NumberPrediction", ...] = ()

    @property
    def text(self) -> str:
        """The number with six digits."""
        return f"{self.value:.6g}"

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Return the number, the tokens of the source and the weights over them."""
        looked = [found.weights for found in self.trace.maps if found.kind == "cross"]
        return {
            "number": self.value,
            "src_tokens": self.trace.source.labels,
            "attention": [round(float(w), 4) for w in looked[0][0, 0]] if looked else [],
        }


@final
class NumberPairs(DataKind):
    """Texts or tables of vectors, and one number for each."""

    name = "number-pairs"
    encoder_kinds = (*TOKENIZER_KINDS, FrameScaler.kind)
    target_kinds = (NumberTargets.kind,)
    options_type = NumberOptions
    default_preset = "classifier-transformer"
    names_files = True
    vector_sides: ClassVar[Mapping[str, str]] = {"src_vectors": "source"}

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.numbers = cast(NumberTargets, encoders.target)
        self.chosen: NumberOptions = self.options(settings)
        self.sources: SourceAdapter = (
            FrameSource(self.source)
            if isinstance(self.source, FrameScaler)
            else TextSource(cast(Tokenizer, self.source))
        )

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether numbers are asked for."""
        options: NumberOptions = cls.options(settings)
        return options.numbers

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that numbers are asked for."""
        return message("train.why.given", setting="numbers=true")

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of targets that are texts."""
        options: NumberOptions = cls.options(settings)
        if settings.preset not in LABEL_PRESETS:
            raise ArgumentError(
                "preset",
                f"be one of {', '.join(LABEL_PRESETS)} where targets are numbers",
                settings.preset,
                "choose one of them",
            )
        for name, default in UNUSED.items():
            value = getattr(settings, name)
            if value and value != default:
                rule = "be left out where targets are numbers"
                raise ArgumentError(name, rule, repr(value), "leave it out")
        if settings.metric not in ("auto", "loss", "mse", "mae"):
            rule = "be mse, mae or loss where targets are numbers"
            raise ArgumentError("metric", rule, settings.metric, "leave it out")
        if options.ctc or options.ctc_search:
            rule = "be 0 where targets are numbers"
            raise ArgumentError("ctc", rule, options.ctc, "leave it out")
        if settings.src_tokenizer == "vectors":
            check_frame_options(settings, options)
        elif settings.src_tokenizer != "auto":
            check_text_settings(settings)

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return that targets are numbers; its other settings are those of the model."""
        return {"numbers": True}

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read pairs whose targets are numbers, and whose sources are text or tables."""
        reader = _NumberReader(settings.src_tokenizer, place.folder, place.encoder)
        return read_pair_files(settings, place, reader)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the scale of the numbers, and a tokeniser or a scale of the sources."""
        found = array("d")
        counted = _with_numbers(pairs, found)
        first = next(counted)
        rest = itertools.chain([first], counted)
        source: SourceEncoder
        if first.frames is None:
            lines = draw_sample(rest, TOKENIZER_LINES)
            features = sorted({name for pair in lines for name in pair.features})
            texts = [pair.src for pair in lines]
            source = learn_tokenizer(
                settings, "source", settings.src_tokenizer, texts, say, features
            )
        else:
            source = FrameScaler.measure(
                learned_tables(rest, file, []),
                stack=settings.stack,
                scaled=settings.scale_vectors,
                centred=cls.options(settings).centre,
            )
            why_tables = message("train.why.tables")
            say(message("train.source", source=source.summary, why=why_tables))
        values = np.frombuffer(found)
        mean, deviation = float(values.mean()), float(values.std())
        if deviation == 0:
            say(message("train.constant-target", file=file, value=values[0]))
        ends = {"low": values.min(), "high": values.max()}
        say(message("train.number", why=why, mean=mean, deviation=deviation, **ends))
        return Encoders(source, NumberTargets(("number",), (mean,), (deviation or 1.0,)))

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the tokeniser of texts, or the scaler of frames."""
        if content.get("kind") == FrameScaler.kind:
            return FrameScaler.from_json(path, content)
        return Tokenizer.from_json(path, content)

    def train_set(self, corpus: Corpus) -> NumberRows:
        """Return the sources with their numbers."""
        return NumberRows(corpus)

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the dev sources with their numbers."""
        return DevSet.of(corpus)._replace(corpus=NumberRows(corpus))

    def build_model(self) -> Regressor:
        """Build the classifier of the preset with one output, which is the number."""
        settings = self.settings
        vocab = 1 if isinstance(self.source, FrameScaler) else self.source.vocab_size
        model = LABEL_PRESETS[settings.preset](vocab, 1, settings.model_size, **settings.model)
        if isinstance(self.source, FrameScaler):
            with_frame_input(model, self.source, self.chosen)
        return Regressor(model.classifier)

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Features of a frame, and frames that are joined to one; nothing for text."""
        if not isinstance(self.source, FrameScaler):
            return {}
        return {"features": self.source.features, "stack": self.source.stack}

    def objective(self, model: AnyModel, tokens: Callable[[], nn.Module]) -> nn.Module:
        """Return the model with the loss of its numbers."""
        return ForecastObjective(cast(NumberModel, model), (), absolute=self.chosen.loss == "mae")

    def default_metric(self) -> str:
        """Return the loss."""
        return self.chosen.loss

    def dev_scores(
        self, model: AnyModel, dev: DevSet, device: torch.device, tokens: Callable[[], DevScores]
    ) -> DevScores:
        """Return the scores of the dev pairs; `loss` is that of standardised numbers."""
        corpus = cast(NumberRows, dev.corpus)
        order = dev.scored[np.argsort(corpus.src_lengths[dev.scored], kind="stable")]
        found, right = [], []
        for rows in np.split(order, range(BATCH, len(order), BATCH)):
            batch = collate(corpus, rows).to(device)
            out = cast(NumberModel, model)(batch.src, batch.src_lengths)
            found.append(out.numbers[:, 0, 0, 0].float().cpu().numpy())
            right.append(batch.tgt_out[:, 0, 0].cpu().numpy())
        scaled, gold = np.concatenate(found), np.concatenate(right)
        error = scaled - gold
        loss = np.abs(error).mean() if self.chosen.loss == "mae" else (error**2).mean()
        return DevScores(
            {"loss": float(loss), **regression_scores(self._decode(scaled), self._decode(gold))}
        )

    def dev_traces(
        self,
        model: AnyModel,
        dev: DevSet,
        device: torch.device,
        tokens: Callable[[], Sequence[Trace]],
    ) -> Sequence[Trace]:
        """Return traces of the first dev sources."""
        if isinstance(self.source, FrameScaler):
            return ()
        return [self._predict(model, [one], device)[0].trace for one in dev.sources[:3]]

    def predictions(
        self,
        model: AnyModel,
        sources: Iterable[Any],
        device: torch.device,
        tokens: Callable[[], Iterator[Any]],
    ) -> Iterator[NumberPrediction]:
        """Yield the number of each source, in order."""
        rest = iter(sources)
        while chunk := list(itertools.islice(rest, BATCH)):
            yield from self._predict(model, chunk, device)

    def traces(
        self,
        model: AnyModel,
        sources: Sequence[Any],
        device: torch.device,
        tokens: Callable[[], Sequence[Any]],
    ) -> list[Trace]:
        """Return the attention over each source."""
        return [found.trace for found in self._predict(model, sources, device)]

    def checked(
        self, model: AnyModel, source: Any, device: torch.device, tokens: Callable[[], Any]
    ) -> Trace:
        """Return the attention over a source, with how the number changes without each input.

        An input is replaced by others in turn; the change is the mean over them, in the unit of the
        targets.
        """
        (found,) = self._predict(model, [source], device)
        (row,) = self.sources.rows([source])
        able = self.sources.replacements(row)
        rng = np.random.default_rng(0)
        changed, place_of = [], []
        for place, others in enumerate(able.others):
            drawn = rng.choice(len(others), min(TRIED, len(others)), replace=False)
            for i in drawn:
                changed.append(able.put(row, {place: others[int(i)]}))
                place_of.append(place)
        values = np.concatenate(
            [
                self._values(model, changed[i : i + BATCH], device)[0]
                for i in range(0, len(changed), BATCH)
            ]
        )
        tokens_read = len(found.trace.source.tokens)
        change = np.zeros(tokens_read)
        np.add.at(change, place_of, found.value - values)
        change /= np.maximum(np.bincount(place_of, minlength=tokens_read), 1)
        return replace(
            found.trace,
            derived={"ablation": np.abs(change)[None].astype(np.float32)},
            checks={"sentences": self._describe_change(found, change)},
            notes=(*found.trace.notes, *able.notes),
        )

    def _describe_change(self, found: NumberPrediction, change: np.ndarray) -> list[str]:
        """Return a sentence about the inputs that change the number most."""
        labels = found.trace.source.labels
        strongest = np.argsort(-np.abs(change), kind="stable")[:NAMED]
        named = [f"{labels[i]} ({change[i]:+.4g})" for i in strongest if change[i]]
        what = ", ".join(named) if named else "no input at all"
        return [
            f"The number is {found.text}. What each input adds to it, compared with others in its "
            f"place: {what}."
        ]

    def printed(self, prediction: Any, tokens: Callable[[], str], *, as_json: bool = False) -> str:
        """Return a line with the number; an empty one where there is none."""
        if not isinstance(prediction, NumberPrediction):
            return tokens()
        return (json.dumps(prediction.as_json()) if as_json else prediction.text) + "\n"

    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable:
        """Return the scores of a model on a file, beside those of the mean of training."""
        place = DataPlace(file, None, SETTING_HINTS, base_folder(file), self.source)
        pairs = list(self.read(self.settings, place))
        if not pairs:
            raise DataError(str(file), None, "there must be pairs to score", "add some")
        sources = map(self.sources.of_pair, pairs)
        gold = np.array([float(pair.tgt) for pair in pairs])
        found = self.predictions(model, sources, device, lambda: iter(()))
        values = []
        for one in found:
            values.append(one.value)
            advance(1 / len(pairs))
        own = regression_scores(np.array(values), gold)
        mean = regression_scores(np.full(len(gold), self.numbers.mean[0]), gold)
        rows = [(self.settings.preset, tuple(own.values()))]
        rows.append(("mean of training", tuple(mean.values())))
        said = message("evaluate.pairs", count=len(pairs), precision="")
        return ScoreTable(said, tuple(own), rows)

    def number_graph(self, model: AnyModel) -> NumberGraph:
        """Return the graph from a source to its number."""
        return regression_graph(cast(NumberModel, model), self.numbers)

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources occur in the training data, token by token."""
        return 0 if isinstance(self.source, FrameScaler) else overlapping_sources(train, dev)

    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the encoders."""
        target = (
            f"numbers of mean {self.numbers.mean[0]:.4g}, deviation {self.numbers.scale[0]:.4g}"
        )
        return {self.sources.card_name: self.source.summary, "target": target}

    def _decode(self, scaled: np.ndarray) -> np.ndarray:
        """Return numbers in the unit of the targets."""
        decoded: np.ndarray = scaled.astype(np.float64) * self.numbers.scale[0]
        return decoded + self.numbers.mean[0]

    def _values(
        self, model: AnyModel, rows: Sequence[Any], device: torch.device, *, maps: bool = False
    ) -> tuple[np.ndarray, Maps]:
        """Return the numbers of encoded sources, and the maps if they are asked for."""
        src, lengths = self.sources.batch(rows)
        with inference(model):
            out = cast(NumberModel, model)(src.to(device), lengths.to(device), need_weights=maps)
        return self._decode(out.numbers[:, 0, 0, 0].float().cpu().numpy()), out.maps

    def _predict(
        self, model: AnyModel, sources: Sequence[Any], device: torch.device
    ) -> list[NumberPrediction]:
        rows = self.sources.rows(sources)
        values, maps = self._values(model, rows, device, maps=True)
        found = zip(sources, rows, values.tolist(), strict=True)
        return [
            self._prediction(source, row, value, {k: [w[i] for w in m] for k, m in maps.items()})
            for i, (source, row, value) in enumerate(found)
        ]

    def _prediction(
        self, source: Any, row: Any, value: float, maps: Mapping[str, Sequence[Tensor]]
    ) -> NumberPrediction:
        text = self.sources.text(source, row)
        shown = f"{value:.6g}"
        length = len(text.tokens)
        found = tuple(
            Map.of(kind, layer, own[:, :, :length].float().cpu().numpy(), missing=True)  # type: ignore[arg-type]
            for kind, layers in maps.items()
            for layer, weights in enumerate(layers)
            for own in [weights if kind == "cross" else weights[:, :length]]
        )
        trace = Trace(text, Text(shown, (Token(shown),)), found, notes=self.sources.notes(text))
        return NumberPrediction(value, trace, self.sources.unknown(source, row))


@final
class _NumberReader:
    """A transform that checks the numbers of pairs, and reads sources that are tables.

    Args:
        asked: the setting `src_tokenizer`; auto lets the first pair decide.
        folder: base of relative file names.
        encoder: of the sources, once it is learned.
    """

    def __init__(self, asked: str, folder: Path, encoder: SourceEncoder | None) -> None:
        self._asked, self._folder, self._encoder = asked, folder, encoder
        self._sources: SourceTransform | None = None

    def __call__(self, pair: Pair) -> Pair:
        """Return the pair with its source as it is read; raises BadLine for a bad target."""
        if self._sources is None:
            self._sources = self._choose(pair)
        _number(pair.tgt)
        return self._sources(pair)

    def _choose(self, first: Pair) -> SourceTransform:
        if isinstance(self._encoder, FrameScaler):
            return FrameReader(self._folder, self._encoder.features)
        tables = self._asked == "auto" and self._encoder is None and bool(why_frames([first]))
        return FrameReader(self._folder) if tables or self._asked == "vectors" else require_text


def _number(text: str) -> float:
    """Return the number that a target is; raises BadLine if it is none."""
    try:
        number = parse_number(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadLine(
            "not a number",
            f"the target must be a number, but it is {text!r}",
            "write it as 3.5 or -2e-3, or leave numbers=true out",
        )
    return number


def _with_numbers(pairs: Iterable[Pair], found: "array[float]") -> Iterator[Pair]:
    """Yield pairs, and add their numbers to an array."""
    for pair in pairs:
        found.append(float(pair.tgt))
        yield pair
