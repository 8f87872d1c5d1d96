"""Series: tables of numbers over time, of which a model forecasts the next rows."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, cast, final

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from regard.data import (
    BadLines,
    Corpus,
    EncodedPairs,
    NumberTargets,
    Pair,
    PairReader,
    SourceEncoder,
    Tokenizer,
)
from regard.data.dev_set import DevSet, sampling_order
from regard.data.pair_reader import OpenedSource, SourceTransform, keep_source
from regard.data.pairs import Format
from regard.data.series import (
    Gaps,
    SeriesTable,
    read_series,
    time_labels,
)
from regard.data.series_windows import SeriesScaler, SeriesWindows, find_period, measure_columns
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError, ExportError, RegardError
from regard.evaluation.forecasts import (
    ForecastSums,
    LinearBaseline,
    conformal_offsets,
    pinball,
    repeat_last,
    seasonal_naive,
)
from regard.kinds.data_kind import (
    Advance,
    DataKind,
    DataPlace,
    DevScores,
    Encoders,
    KindOptions,
    Say,
    ScoreTable,
    Settings,
)
from regard.kinds.graph_inputs import GraphInputs, SeriesInputs
from regard.kinds.number_graphs import NumberGraph, forecast_graph
from regard.kinds.text_source import name_some
from regard.messages import message
from regard.models import AnyModel
from regard.models.forecasters import (
    Forecaster,
    StepwiseNetwork,
    WindowScale,
    build_forecaster,
)
from regard.models.protocol import NumberModel, inference
from regard.seeing import Text, Token, Trace
from regard.seeing.attribution.replacements import Replacements, frame_replacements
from regard.seeing.draw.forecast import ForecastView

#: windows that are forecast at once
BATCH: Final = 256
#: parts of the history that are left out in turn, at most
SEGMENTS: Final = 48
#: the longest season that is searched for, in steps
LONGEST_SEASON: Final = 1024


def _listed(value: Any) -> Any:
    """Read `0.1,0.9` as a list, and a single value as a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int | float) else value


#: most steps of a forecast, or of what it is made from
MAX_STEPS: Final = 1_000_000


class SeriesOptions(KindOptions):
    """The settings of a run that forecasts."""

    # more would overflow the size of a matrix before the rows of the data are counted
    horizon: int = Field(24, description="steps to forecast", ge=1, le=MAX_STEPS)
    look_back: int | None = Field(
        None,
        description="steps that the model reads; default: four times the horizon",
        ge=1,
        le=MAX_STEPS,
    )
    time: str | None = Field(None, description="the time column; none recognises it")
    targets: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = Field(
        None, description="columns to forecast, as in A,B; default: all columns of numbers"
    )
    exogenous: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="columns that are read and not forecast, as in C,D"
    )
    split: Annotated[tuple[float, ...], BeforeValidator(_listed)] = Field(
        (0.7, 0.1, 0.2),
        description="training, dev and test rows, in the order of time: shares, or numbers of rows",
        min_length=3,
        max_length=3,
    )
    gaps: Gaps = Field(
        "refuse", description="missing numbers and times: refuse, fill by interpolation, ignore"
    )
    period: int | None = Field(
        None, description="steps of a season, for the seasonal baseline; none finds it", ge=1
    )
    window_scale: WindowScale = Field(
        "mean", description="scale of each window, which is undone: its mean, last value, or none"
    )
    patch_len: int = Field(16, description="steps of a patch of the preset transformer", ge=1)
    stride: int = Field(8, description="steps between the beginnings of two patches", ge=1)
    skip: bool = Field(
        False, description="whether the preset transformer adds a linear map of the window"
    )
    quantiles: Annotated[tuple[float, ...], BeforeValidator(_listed)] = Field(
        (0.1, 0.9), description="levels of the quantiles, as in 0.1,0.9"
    )
    loss: Literal["mse", "mae"] = Field("mse", description="loss of the point forecast")

    @property
    def rows_read(self) -> int:
        """Steps that the model reads."""
        return 4 * self.horizon if self.look_back is None else self.look_back

    @property
    def window(self) -> int:
        """Steps of an example."""
        return self.rows_read + self.horizon


class SplitRows(NamedTuple):
    """The ends of training, dev and test rows."""

    train: int
    dev: int
    test: int


def split_rows(split: Sequence[float], rows: int, name: str) -> SplitRows:
    """Return the ends of the parts; raises if the table has too few rows.

    Shares are rounded down for training and test rows, and dev gets the rest. Numbers of rows may
    leave some at the end of the table unused.
    """
    if sum(split) <= 1 + 1e-9:
        train, test = int(rows * split[0]), int(rows * split[2])
        used = int(rows * sum(split) + 1e-6)
        return SplitRows(train, used - test, used)
    sizes = [int(part) for part in split]
    if any(part != size for part, size in zip(split, sizes, strict=True)) or sum(sizes) > rows:
        raise ArgumentError(
            "split",
            f"be three shares, or whole numbers of the {rows:,} rows of {name}",
            ",".join(f"{part:g}" for part in split),
            "say split=0.7,0.1,0.2 for example",
        )
    ends = np.cumsum(sizes)
    return SplitRows(*(int(end) for end in ends))


@dataclass(frozen=True)
class Forecast:
    """The next rows of a table.

    Attributes:
        table: the rows that were read.
        times: of the next rows, as text.
        point: (steps, targets), at the scale of the data.
        quantiles: (steps, targets, levels), calibrated if the run is.
        levels: of the quantiles.
        names: of the targets.
        calibrated: whether the quantiles are.
    """

    table: SeriesTable
    times: tuple[str, ...]
    point: Float[np.ndarray, "steps targets"]
    quantiles: Float[np.ndarray, "steps targets levels"]
    levels: tuple[float, ...]
    names: tuple[str, ...]
    calibrated: bool

    #: a forecast has no parts that a model does not know
    unknown: ClassVar[tuple[str, ...]] = ()
    alternatives: ClassVar[tuple[Any, ...]] = ()

    @property
    def header(self) -> list[str]:
        """Names of the columns of `text`."""
        own = [[name, *(f"{name}_{level:g}" for level in self.levels)] for name in self.names]
        return [self.table.time or "row", *(column for group in own for column in group)]

    @property
    def text(self) -> str:
        """The forecast as CSV: the times, and for each series the forecast and its quantiles."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.header)
        for i, time in enumerate(self.times):
            each = np.concatenate([self.point[i, :, None], self.quantiles[i]], axis=1)
            writer.writerow([time, *(f"{number:.8g}" for number in each.ravel())])
        return file.getvalue()

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """Return times, forecasts and quantiles, (steps, targets) and (steps, targets, levels)."""
        return {
            "series": list(self.names),
            "times": list(self.times),
            "point": self.point.tolist(),
            "levels": list(self.levels),
            "quantiles": self.quantiles.tolist(),
            "calibrated": self.calibrated,
        }


@final
class SeriesSource:
    """Tables of series: files, mappings of columns, arrays; the model reads their last rows.

    Args:
        scaler: standardises columns, and knows their names.
        options: those of the run.
    """

    unit = "rows"
    card_name = "series"
    ends_with_eos = False
    is_file = True
    request_field = "file"
    feature_names: tuple[str, ...] = ()

    def __init__(self, scaler: SeriesScaler, options: SeriesOptions) -> None:
        self._scaler, self._options = scaler, options

    @property
    def frame_size(self) -> int:
        """Number of columns."""
        return self._scaler.frame_size

    def is_one(self, given: Any) -> bool:
        """Return whether this is one table: anything but a list of tables."""
        tables = (str, Path, SeriesTable, Mapping)
        return not (isinstance(given, list | tuple) and given and isinstance(given[0], tables))

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError for one table."""
        if isinstance(given, str | Path | SeriesTable | Mapping):
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", "one series", fix)

    def check(self, source: Any) -> None:
        """Raise RegardError unless it is a series with the columns of the run and enough rows."""
        self.table(source)

    def check_line(self, line: Any) -> None:
        """Like `check`."""
        self.check(line)

    def table(self, source: Any) -> SeriesTable:
        """Read a table with the columns of the run."""
        time = self._scaler.time or None
        own = ",".join(self._scaler.columns)
        columns = self._scaler.columns
        read = read_series(source, time=time, gaps=self._options.gaps, columns=columns)
        found = read.select(self._scaler.columns, f"the run was trained with {own}")
        if found.step != self._scaler.step and self._options.gaps != "ignore":
            raise DataError(
                found.name,
                None,
                f"there must be a row for each {self._scaler.step}, as in training, but there is "
                f"one for each {found.step}",
                "bring it to the same steps",
            )
        needed = self._options.rows_read
        if len(found) < needed:
            raise DataError(
                found.name,
                None,
                f"there must be {needed} rows, which the model reads, but there are {len(found)}",
                "add earlier rows",
            )
        return found

    def rows(self, sources: Sequence[Any]) -> list[np.ndarray]:
        """Return the last rows of tables, standardised."""
        read = self._options.rows_read
        return [self._scaler.encode(self.table(one).values[-read:]) for one in sources]

    def receive(self, content: bytes) -> SeriesTable:
        """Return the table in a CSV file that a client has sent; raises DataError if it is none."""
        return self.table(content)

    def batch(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Stack rows, which are equally many."""
        lengths = torch.full((len(rows),), self._options.rows_read)
        return torch.from_numpy(np.stack(rows)), lengths

    def positions(self, lengths: Any) -> Any:
        """Return the number of rows."""
        return lengths

    def length(self, row: np.ndarray) -> int:
        """Return the number of rows."""
        return len(row)

    def labels(self, row: np.ndarray) -> list[str]:
        """Return how many steps each row lies before the forecast."""
        return [str(i - len(row)) for i in range(len(row))]

    def text(self, source: Any, row: np.ndarray) -> Text:
        """Return the name of the table with the times of its rows."""
        table = self.table(source)
        last = table.part(len(table) - len(row), len(table))
        return Text(table.name, tuple(map(Token, last.labels())))

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the time of an example."""
        return Text(text, (Token(text),))

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def unknown(self, source: Any, row: np.ndarray) -> tuple[str, ...]:
        """Return nothing: no number is unknown."""
        return ()

    def replacements(self, row: np.ndarray) -> Replacements:
        """Return other rows of the same window."""
        return frame_replacements(row, 1)

    def replaced(self, tgt: Tokenizer, found: Hypothesis, source: Any, row: Any) -> list[str]:
        """Raise ArgumentError, since numbers have no words."""
        raise ArgumentError("replace_unk", "be left out for series", True, "they have no words")

    def size(self, pair: Pair) -> int:
        """Return the number of rows."""
        return len(pair.frames)

    def transform(self, place: Any) -> SourceTransform:
        """Return the pairs as they are."""
        return keep_source

    def of_pair(self, pair: Pair) -> Any:
        """Return the rows."""
        return pair.frames

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[SeriesTable]:
        """Read the table of each file."""
        for file in files:
            yield self.table(file)

    def describe(self) -> dict[str, Any]:
        """Return the columns, the step, the rows that the model reads, and the ending of files."""
        scaler = self._scaler
        own = {"columns": list(scaler.columns), "step": str(scaler.step)}
        rows = {"look_back": self._options.rows_read, "files": [".csv"]}
        return {"tokenizer": scaler.kind, **own, **rows}

    def manifest(self) -> dict[str, Any]:
        """Return the columns, the step, and the rows that the model reads."""
        scaler = self._scaler
        own = {"columns": list(scaler.columns), "step": str(scaler.step)}
        return {"kind": scaler.kind, **own, "look_back": self._options.rows_read}

    def reads(self) -> str:
        """Return a phrase such as "a CSV file with 96 rows or more and the columns load, heat"."""
        names = name_some(self._scaler.columns)
        return message("reads.series", rows=self._options.rows_read, columns=names)

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return none: a series is a file."""
        return []

    def graph_inputs(self) -> GraphInputs:
        """Return the last rows before scaling."""
        return SeriesInputs(self._scaler, self._options.rows_read)


@final
class SeriesForecasts(DataKind):
    """Windows of series: the rows that are read, and those after them, which are forecast."""

    name = "series"
    examples = "windows"
    inputs = "windows"
    encoder_kinds = (SeriesScaler.kind,)
    target_kinds = (NumberTargets.kind,)
    options_type = SeriesOptions
    default_preset = "transformer"
    # dev windows are scored without decoding
    defaults: ClassVar[Mapping[str, Any]] = {"batch_sentences": 32, "eval_pairs": 1000}
    held_out_by = "of later rows"
    scales_batches = False
    example_files = ("series.csv", "series.csv")
    vector_sides: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.scaler = cast(SeriesScaler, encoders.source)
        self.chosen: SeriesOptions = self.options(settings)
        self.sources: SeriesSource = SeriesSource(self.scaler, self.chosen)
        self._offsets: Tensor | None = None
        self._linear: LinearBaseline | None = None

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether a setting of series is given."""
        return bool(settings.kind_options)

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that a setting of series is given."""
        return message("train.why.given", setting=next(iter(settings.kind_options)))

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of texts, and for sizes that do not fit together."""
        options: SeriesOptions = cls.options(settings)
        for name, default in TEXT_ONLY.items():
            value = getattr(settings, name)
            if value != default:
                raise ArgumentError(name, "be left out for series", repr(value), "leave it out")
        if settings.metric not in ("auto", "loss", "mse", "mae"):
            raise ArgumentError(
                "metric", "be mse, mae or loss for series", settings.metric, "leave it out"
            )
        levels = options.quantiles
        if not all(0 < level < 1 for level in levels) or list(levels) != sorted(set(levels)):
            raise ArgumentError(
                "quantiles",
                "be levels between 0 and 1 that go up",
                ",".join(f"{level:g}" for level in levels),
                "say quantiles=0.1,0.9 for example",
            )
        both = set(options.targets or ()) & set(options.exogenous)
        if both:
            rule = "not be forecast as well"
            raise ArgumentError("exogenous", rule, min(both), "name each column once")
        if (
            settings.preset == "transformer"
            and options.patch_len > options.rows_read + options.stride
        ):
            raise ArgumentError(
                "patch_len",
                f"be at most look_back + stride, {options.rows_read + options.stride}",
                options.patch_len,
                "lower it, or raise look_back",
            )
        with torch.device("meta"):
            _build(settings, options, targets=1, exogenous=len(options.exogenous))

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read a table as stretches: the training rows, and the dev rows with those before them."""
        options: SeriesOptions = cls.options(settings)
        table = _own_columns(place.source, options)
        stretches = _stretches(settings, table, options, is_dev=place.source == settings.dev)
        split = [_describe_split(table, stretches)] if settings.dev is None else []
        note = "\n".join([*table.notes, *split])
        opened = OpenedSource(table.name, enumerate(stretches, 1), Format("text"), note=note)
        return PairReader(opened, _as_pair, BadLines(settings.skip_bad, advice=place.hints))

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether a stretch is the dev rows."""
        stretch: Stretch = pair.frames
        return stretch.part == "dev"

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the scale of each column from the training rows, and find a season."""
        options: SeriesOptions = cls.options(settings)
        stretch: Stretch = next(iter(pairs)).frames
        table, targets = stretch.table, len(stretch.table.columns) - len(options.exogenous)
        mean, scale = measure_columns(table.values)
        for name in (
            n for n, v in zip(table.columns, table.values.T, strict=True) if np.ptp(v) == 0
        ):
            say(message("train.constant-column", file=file, name=repr(name)))
        period = options.period
        if period is None:
            longest = min(options.rows_read, LONGEST_SEASON)
            known = (table.values[:, :targets] - mean[:targets]) / scale[:targets]
            period = find_period(known, table.step, longest)
        scaler = SeriesScaler(
            table.columns,
            targets,
            tuple(mean.tolist()),
            tuple(scale.tolist()),
            table.time,
            table.step,
            period,
            stretch.seen_until,
            stretch.test_until,
        )
        how = "given" if options.period else "found"
        season = message(f"train.{'season' if period > 1 else 'no-season'}.{how}", steps=period)
        say(message("train.series", series=scaler.summary, why=why, season=season))
        say(message("train.windows", rows=options.rows_read, horizon=options.horizon))
        names = scaler.target_names
        own = NumberTargets(names, scaler.mean[:targets], scaler.scale[:targets])
        return Encoders(scaler, own)

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the scaler of the columns."""
        return SeriesScaler.from_json(path, content)

    def train_set(self, corpus: Corpus) -> SeriesWindows:
        """Return the windows of the training rows."""
        return self._windows([corpus.frames(row) for row in range(len(corpus))])

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the windows of the dev rows; a source is the time at which its forecast begins."""
        windows = self.train_set(corpus)
        firsts = [int(corpus.pair(row).src) for row in range(len(corpus))]
        times = []
        for stretch, first in zip(windows.stretch_of.tolist(), windows.first.tolist(), strict=True):
            times.append((firsts[stretch], first + self.chosen.rows_read))
        labels = [f"{start}+{row}" for start, row in times]
        order = np.array(sampling_order(labels, labels))
        return DevSet(labels, [[] for _ in labels], np.arange(len(labels)), windows, order)

    def _windows(self, stretches: Sequence[np.ndarray]) -> SeriesWindows:
        return SeriesWindows(
            stretches,
            look_back=self.chosen.rows_read,
            horizon=self.chosen.horizon,
            targets=self.scaler.targets,
        )

    def build_model(self) -> Forecaster:
        """Build the network of the preset, with the scale of windows around it."""
        exogenous = self.scaler.frame_size - self.scaler.targets
        return _build(self.settings, self.chosen, targets=self.scaler.targets, exogenous=exogenous)

    def objective(self, model: AnyModel, tokens: Callable[[], nn.Module]) -> nn.Module:
        """Return the model with the loss of its point forecasts and quantiles."""
        return ForecastObjective(
            cast(NumberModel, model), self.chosen.quantiles, absolute=self.chosen.loss == "mae"
        )

    def default_metric(self) -> str:
        """Return the loss of the point forecast."""
        return self.chosen.loss

    def dev_scores(
        self, model: AnyModel, dev: DevSet, device: torch.device, tokens: Callable[[], DevScores]
    ) -> DevScores:
        """Return the scores of the dev windows, with quantiles as the model gives them."""
        levels = self.chosen.quantiles
        sums = ForecastSums(levels)
        for history, future in _batches(cast(SeriesWindows, dev.corpus), device, dev.scored):
            numbers = cast(NumberModel, model)(history, None).numbers.float()
            sums.add(numbers[..., 0], future, numbers[..., 1:])
        found = sums.scores()
        metrics = {name: found[name] for name in ("mse", "mae")}
        if levels:
            metrics |= {"coverage": found["coverage"]}
        extra = found["quantile loss"] if levels else 0.0
        return DevScores({"loss": found[self.chosen.loss] + extra, **metrics})

    def dev_traces(
        self,
        model: AnyModel,
        dev: DevSet,
        device: torch.device,
        tokens: Callable[[], Sequence[Trace]],
    ) -> Sequence[Trace]:
        """Return nothing: the report of a forecaster has its curves."""
        return ()

    def calibrate(
        self, model: AnyModel, train: EncodedPairs, dev: DevSet, device: torch.device
    ) -> dict[str, Tensor]:
        """Return the offsets of the quantiles on dev windows, and the linear baseline."""
        linear = LinearBaseline.fit(_batches(cast(SeriesWindows, train), device))
        tensors = {"linear.weight": linear.weight, "linear.bias": linear.bias}
        if self.chosen.quantiles:
            errors = []
            for history, future in _batches(cast(SeriesWindows, dev.corpus), device):
                found = cast(NumberModel, model)(history, None)
                error = future[..., None] - found.numbers[..., 1:].float()
                errors.append((error / found.scale[:, None, :, None]).cpu())
            tensors["offsets"] = conformal_offsets(torch.cat(errors), self.chosen.quantiles)
        return tensors

    def use_calibration(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the offsets and the baseline; raises RegardError if they are of another run."""
        look_back, steps = self.chosen.rows_read, self.chosen.horizon
        shapes = {"linear.weight": (look_back, steps), "linear.bias": (steps,)}
        if self.chosen.quantiles:
            shapes["offsets"] = (steps, self.scaler.targets, len(self.chosen.quantiles))
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != shapes:
            raise RegardError(
                f"the calibration of this run must have the shapes {shapes}, but it has {found}: "
                "copy calibration.safetensors again, or remove it."
            )
        self._linear = LinearBaseline(tensors["linear.weight"], tensors["linear.bias"])
        self._offsets = tensors.get("offsets")

    def estimates(
        self, model: AnyModel, history: Tensor, *, need_weights: bool = False
    ) -> "Estimates":
        """Return the forecast of standardised windows, with calibrated quantiles in order."""
        out = cast(NumberModel, model)(history, None, need_weights=need_weights)
        numbers = out.numbers.float()
        quantiles = numbers[..., 1:]
        if self._offsets is not None:
            quantiles = quantiles + self._offsets.to(quantiles) * out.scale[:, None, :, None]
        point, level = numbers[..., 0], torch.tensor(self.chosen.quantiles, device=numbers.device)
        # a band holds its forecast, whatever the offsets are
        quantiles = torch.where(
            level < 0.5, quantiles.minimum(point[..., None]), quantiles.maximum(point[..., None])
        )
        return Estimates(point, quantiles.sort(dim=-1).values, out.maps)

    def number_graph(self, model: AnyModel) -> NumberGraph:
        """Return the graph from the last rows to forecasts, with calibrated quantiles.

        Raises ExportError if the network writes one step after another: its loop would be unrolled.
        """
        if isinstance(cast(Forecaster, model).network, StepwiseNetwork):
            raise ExportError(
                f"an exported forecaster must write all steps at once, but the preset "
                f"{self.settings.preset} writes one after another: export a run of transformer or "
                f"bahdanau."
            )

        def estimate(model: NumberModel, history: Tensor) -> Tensor:
            found = self.estimates(model, history)
            return torch.cat([found.point[..., None], found.quantiles], dim=-1)

        return forecast_graph(
            cast(NumberModel, model), estimate, self.scaler, self.chosen.quantiles
        )

    def predictions(
        self,
        model: AnyModel,
        sources: Iterable[Any],
        device: torch.device,
        tokens: Callable[[], Iterator[Any]],
    ) -> Iterator[Forecast]:
        """Yield the next rows of each table."""
        for source in sources:
            forecast, _ = self._forecast(model, source, device)
            yield forecast

    def _forecast(
        self, model: AnyModel, source: Any, device: torch.device, *, need_weights: bool = False
    ) -> "tuple[Forecast, Estimates]":
        table = self.sources.table(source)
        history = torch.from_numpy(self.sources.rows([table])[0])[None].to(device)
        with inference(model):
            found = self.estimates(model, history, need_weights=need_weights)
        steps = self.chosen.horizon
        times = table.step.after(int(table.times[-1]), steps)
        quantiles = found.quantiles[0].cpu().numpy()
        return Forecast(
            table=table,
            times=tuple(time_labels(times, table.step)),
            point=self.scaler.decode(found.point[0].cpu().numpy()),
            quantiles=np.moveaxis(self.scaler.decode(np.moveaxis(quantiles, -1, 0)), 0, -1),
            levels=self.chosen.quantiles,
            names=self.scaler.target_names,
            calibrated=self._offsets is not None,
        ), found

    def printed(self, prediction: Any, tokens: Callable[[], str], *, as_json: bool = False) -> str:
        """Return a forecast as CSV, or as one line of JSON."""
        return json.dumps(prediction.as_json()) + "\n" if as_json else str(prediction)

    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable:
        """Return the scores of the test windows of a file beside those of the baselines."""
        table = self.sources.table(file)
        stretch, what = self._test_rows(table)
        windows = self._windows([self.scaler.encode(stretch.values)])
        if not len(windows):
            raise DataError(
                table.name,
                None,
                f"there must be {self.chosen.window} rows for a window to score, but there are "
                f"{len(stretch)}{what and ' ' + what}",
                "add rows",
            )
        sums = self.window_scores(model, windows, device, advance)
        rows = [(name, tuple(found.scores().values())) for name, found in sums.items()]
        columns = tuple(ForecastSums().scores())
        band = ""
        if len(self.chosen.quantiles) > 1:
            low, high = self.chosen.quantiles[0], self.chosen.quantiles[-1]
            state = "not-calibrated" if self._offsets is None else "calibrated"
            band = message(f"evaluate.band.{state}", low=low, high=high)
        note = message("evaluate.standardised", band=band)
        said = message(f"evaluate.windows{what and '-of'}", count=len(windows), what=what)
        return ScoreTable(said, columns, rows, (note,))

    def window_scores(
        self,
        model: AnyModel,
        windows: SeriesWindows,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> dict[str, ForecastSums]:
        """Return the sums of errors of the model and of each baseline, by name."""
        steps, targets, period = self.chosen.horizon, self.scaler.targets, self.scaler.period
        names = [self.settings.preset, "repeat last value"]
        names += [f"seasonal naive ({period})"] if period > 1 else []
        names += ["linear"] if self._linear is not None else []
        sums = {name: ForecastSums() for name in names}
        sums[self.settings.preset] = ForecastSums(self.chosen.quantiles)
        for history, future in _batches(windows, device):
            with inference(model):
                found = self.estimates(model, history)
            sums[self.settings.preset].add(found.point, future, found.quantiles)
            sums["repeat last value"].add(repeat_last(history, steps, targets), future)
            if period > 1:
                naive = seasonal_naive(history, steps, targets, period)
                sums[f"seasonal naive ({period})"].add(naive, future)
            if self._linear is not None:
                sums["linear"].add(self._linear.forecast(history, targets), future)
            advance(len(history) / len(windows))
        return sums

    def _test_rows(self, table: SeriesTable) -> tuple[SeriesTable, str]:
        """Return the rows to score, with those that the first window reads, and which they are.

        Of a file that holds rows of training or dev, the test rows are scored alone.
        """
        later = np.flatnonzero(table.times > self.scaler.seen_until)
        if not len(later) or later[0] == 0:
            if len(later):
                return table, ""
            reason = "all of its rows are training or dev rows of the run"
            raise DataError(table.name, None, reason, "give rows that it has not seen")
        end = int(np.searchsorted(table.times, self.scaler.test_until, side="right"))
        first = max(0, int(later[0]) - self.chosen.rows_read)
        end = end if end > later[0] else len(table)
        begin = table.part(int(later[0]), int(later[0]) + 1).labels()[0]
        return table.part(first, end), message("evaluate.from", begin=begin)

    def traces(
        self,
        model: AnyModel,
        sources: Sequence[Any],
        device: torch.device,
        tokens: Callable[[], Sequence[Any]],
    ) -> list[ForecastView]:
        """Return the picture of each forecast: history, bands, and attention over time."""
        return [self._view(model, source, device) for source in sources]

    def _view(self, model: AnyModel, source: Any, device: torch.device) -> ForecastView:
        forecast, found = self._forecast(model, source, device, need_weights=True)
        read = self.chosen.rows_read
        last = forecast.table.part(len(forecast.table) - read, len(forecast.table))
        weights = over_time(found.maps, self.chosen)
        return ForecastView(
            name=forecast.table.name,
            names=forecast.names,
            history_times=tuple(last.labels()),
            history=last.values[:, : self.scaler.targets],
            times=forecast.times,
            point=forecast.point,
            quantiles=forecast.quantiles,
            levels=forecast.levels,
            calibrated=forecast.calibrated,
            attention=weights,
            attention_title=ATTENTION_TITLES[next(iter(found.maps), "")],
        )

    def checked(
        self, model: AnyModel, source: Any, device: torch.device, tokens: Callable[[], Any]
    ) -> ForecastView:
        """Return the picture of a forecast, with how much it changes without parts of the history.

        Each of up to `SEGMENTS` parts is replaced by a straight line between the rows around it.
        The change is the mean over steps, in standard deviations of the series.
        """
        view = self._view(model, source, device)
        history = torch.from_numpy(self.sources.rows([source])[0])
        read = len(history)
        width = -(-read // SEGMENTS)
        starts = range(0, read, width)
        changed = torch.stack([_without(history, first, first + width) for first in starts])
        with inference(model):
            plain = self.estimates(model, history[None].to(device)).point
            parts = [
                self.estimates(model, part.to(device)).point for part in torch.split(changed, BATCH)
            ]
        change = (torch.cat(parts) - plain).abs().mean(dim=1).cpu().numpy()  # (parts, targets)
        mattered = np.repeat(change, width, axis=0)[:read].T
        notes = [
            _describe_change(name, change[:, i], view, i, width)
            for i, name in enumerate(view.names)
        ]
        return replace(view, mattered=mattered, notes=tuple(notes))

    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the series."""
        targets = ", ".join(self.scaler.target_names)
        return {
            "series": self.scaler.summary,
            "forecasts": f"{self.chosen.horizon} steps of {targets}",
        }

    def card_examples(self, dev: DevSet) -> str:
        """Return nothing: a window is no line of text."""
        return ""


class Estimates(NamedTuple):
    """Forecasts (windows, steps, targets), quantiles (.., levels) in order, and the maps."""

    point: Tensor
    quantiles: Tensor
    maps: Mapping[str, tuple[Tensor, ...]]


#: settings that have no meaning for series, with their defaults
TEXT_ONLY: Final[dict[str, Any]] = {
    "tgt": None,
    "dev_tgt": None,
    "columns": None,
    "features": None,
    "join_lines": 1,
    "src_tokenizer": "auto",
    "tgt_tokenizer": "auto",
    "src_case": "keep",
    "stack": 1,
    "scale_vectors": True,
    "shared_vocab": False,
    "src_vectors": None,
    "tgt_vectors": None,
    "bpe_dropout": 0.0,
}

#: what the weights over time are, by the first kind of map of a model
ATTENTION_TITLES: Final = {
    "cross": "attention of each forecast step, the first on top, over the history",
    "encoder-self": "attention that each patch of the history receives, last layer",
    "decoder-history": "attention of each forecast step, the first on top, over all before it",
    "": "",
}


def over_time(
    maps: Mapping[str, tuple[Tensor, ...]], options: SeriesOptions
) -> Float[np.ndarray, "targets queries look_back"] | None:
    """Return weights over the rows that were read, of each series; None without attention.

    Heads are averaged. The weight of a patch is spread over its rows.
    """
    kind = next(iter(maps), None)
    if kind is None:
        return None
    weights = maps[kind][-1].float().mean(dim=1).cpu()  # (targets, queries, keys)
    read = options.rows_read
    if kind != "encoder-self":
        return weights[..., :read].numpy()
    received = weights.mean(dim=1)  # (targets, patches)
    rows = torch.zeros(len(received), read)
    for i in range(received.shape[1]):
        own = rows[:, i * options.stride : i * options.stride + options.patch_len]
        own += received[:, i : i + 1] / own.shape[1]  # the end of the last patch is a repetition
    return rows[:, None].numpy()


def _without(history: Tensor, first: int, end: int) -> Tensor:
    """Return rows with a straight line in place of some, from the row before to the row after."""
    found, end = history.clone(), min(end, len(history))
    before = history[first - 1] if first else history[min(end, len(history) - 1)]
    after = history[end] if end < len(history) else before
    share = torch.arange(1, end - first + 1)[:, None] / (end - first + 1)
    found[first:end] = before + share * (after - before)
    return found


def _describe_change(
    name: str, change: Float[np.ndarray, " parts"], view: ForecastView, place: int, width: int
) -> str:
    """Return a sentence about the part that mattered most to a series, and about attention."""
    best = int(change.argmax()) * width
    last = min(best + width, len(view.history_times)) - 1
    part = view.history_times[best]
    if last > best:
        part = message("check.range", low=part, high=view.history_times[last])
    found = message("check.forecast", name=name, change=change.max(), part=part)
    if view.attention is None or len(change) < 3:
        return message("sentence", text=found)
    weights = view.attention[place].mean(axis=0)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), width))
    correlation = _rank_correlation(sums, change)
    return message("check.forecast-attention", found=found, correlation=correlation)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's correlation; 0 if one of both is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


@final
class ForecastObjective(nn.Module):
    """A forecaster with its loss: that of the point forecast, and the mean quantile loss.

    Args:
        model: the model to train.
        levels: of the quantiles.
        absolute: whether the point forecast has the absolute error as its loss, not the squared.
    """

    def __init__(self, model: NumberModel, levels: Sequence[float], *, absolute: bool) -> None:
        super().__init__()
        self.model, self.levels, self.absolute = model, tuple(levels), absolute

    def forward(
        self,
        src: Float[Tensor, "batch look_back columns"],
        lengths: Int[Tensor, " batch"],
        tgt_in: Float[Tensor, "batch steps targets"],
        tgt_out: Float[Tensor, "batch steps targets"],
        keep: Tensor | None = None,
        *,
        padded: bool = False,
    ) -> Float[Tensor, ""]:
        """Return the loss, summed over windows and steps, of the mean over series."""
        numbers = self.model(src, lengths, tgt_in).numbers.float()
        point, quantiles = numbers[..., 0], numbers[..., 1:]
        real = tgt_out.isfinite()
        # a NaN would reach the gradients, even times zero
        right = torch.where(real, tgt_out, 0.0)
        error = point - right
        loss = error.abs() if self.absolute else error**2
        if self.levels:
            loss = loss + pinball(quantiles, right, self.levels)
        return torch.where(real, loss, 0.0).mean(dim=2).sum()


class Stretch(NamedTuple):
    """Rows of a table that are for training or for dev.

    Attributes:
        part: "train" or "dev".
        table: its rows; those of dev begin with what the first window reads.
        seen_until: last time of training and dev rows,
        test_until: and of test rows.
    """

    part: str
    table: SeriesTable
    seen_until: int
    test_until: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.table.nbytes

    @property
    def values(self) -> np.ndarray:
        """The numbers."""
        return self.table.values


def _own_columns(source: Any, options: SeriesOptions) -> SeriesTable:
    """Read a table, with the columns to forecast first and the exogenous ones after them."""
    wanted = [*options.targets, *options.exogenous] if options.targets else None
    table = read_series(source, time=options.time, gaps=options.gaps, columns=wanted)
    others = [name for name in table.columns if name not in options.exogenous]
    names = [*(options.targets or others), *options.exogenous]
    return table.select(names, "name columns of the file with targets=A,B and exogenous=C,D")


def _stretches(
    settings: Settings, table: SeriesTable, options: SeriesOptions, *, is_dev: bool
) -> list[Stretch]:
    """Cut a table in the order of time; raises DataError if a part has no window."""
    rows, last = len(table), int(table.times[-1])
    if settings.dev is not None:
        found = [Stretch("dev" if is_dev else "train", table, last, last)]
    else:
        ends = split_rows(options.split, rows, table.name)
        seen, test = (int(table.times[max(0, end - 1)]) for end in (ends.dev, ends.test))
        first = max(0, ends.train - options.rows_read)
        found = [
            Stretch("train", table.part(0, ends.train), seen, test),
            Stretch("dev", table.part(first, ends.dev), seen, test),
        ]
    for part, piece, *_ in found:
        if len(piece) < options.window:
            raise DataError(
                table.name,
                None,
                f"the {part} rows must be at least look_back + horizon, {options.window}, but of "
                f"{rows:,} rows they are {len(piece):,}",
                "lower look_back or horizon, add rows, or change split",
            )
    return found


def _describe_split(table: SeriesTable, stretches: Sequence[Stretch]) -> str:
    """Return a sentence about the parts of a table."""
    train = stretches[0]
    seen = table.times <= train.seen_until
    test = int(((table.times <= train.test_until) & ~seen).sum())
    labels = train.table.labels()
    own = int(seen.sum()) - len(train.table)
    return message(
        "train.split",
        name=table.name,
        rows=len(table),
        filled=message("train.filled", count=table.filled) if table.filled else "",
        train=len(train.table),
        first=labels[0],
        last=labels[-1],
        dev=own,
        test=test,
    )


def _as_pair(number: int, stretch: Stretch) -> Pair:
    return Pair(str(int(stretch.table.times[0])), "", number, frames=stretch)


def _build(
    settings: Settings, options: SeriesOptions, *, targets: int, exogenous: int
) -> Forecaster:
    return build_forecaster(
        settings.preset,
        settings.model_size,
        look_back=options.rows_read,
        horizon=options.horizon,
        targets=targets,
        features=1 + exogenous,
        estimates=1 + len(options.quantiles),
        patch=options.patch_len,
        stride=options.stride,
        skip=options.skip,
        scale=options.window_scale,
        **settings.model,
    )


def _batches(
    windows: SeriesWindows, device: torch.device, chosen: np.ndarray | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what is read and what follows, batch by batch, of all windows or of some."""
    order = np.arange(len(windows)) if chosen is None else np.sort(chosen)
    for first in range(0, len(order), BATCH):
        history, future = windows.numbers(order[first : first + BATCH])
        yield (
            torch.from_numpy(np.ascontiguousarray(history)).to(device),
            torch.from_numpy(np.ascontiguousarray(future)).to(device),
        )
