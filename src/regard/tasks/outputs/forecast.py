"""A forecast: the next rows of a series, with quantiles that are calibrated on dev windows."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import Corpus, EncodedPairs, NumberTargets
from regard.data.corpus import DevSet, sampling_order
from regard.data.series import SeriesTable
from regard.data.series_windows import SeriesWindows, time_labels
from regard.data.text_codec import number_texts
from regard.device import shapes_only
from regard.errors import ArgumentError, DataError, ExportError, RegardError
from regard.evaluation.forecasts import (
    ForecastSums,
    LinearBaseline,
    WindowMoments,
    choose_linear,
    conformal_offsets,
    repeat_last,
    seasonal_naive,
)
from regard.messages import message
from regard.models import AnyModel
from regard.models.forecasters import Forecaster, StepwiseNetwork, build_forecaster
from regard.models.protocol import NumberModel, inference
from regard.seeing.draw.forecast import ForecastView
from regard.tasks.inputs.series import SeriesInput, SeriesOptions
from regard.tasks.outputs.base import NumbersOutput
from regard.tasks.outputs.number import NumberObjective
from regard.tasks.outputs.number_graphs import NumberGraph, RescaledForecasts
from regard.tasks.settings import Advance, DevScores, Say, ScoreTable, Settings, TaskOptions

#: windows that are forecast at once
BATCH: Final = 256
#: parts of the history that are left out in turn, at most
SEGMENTS: Final = 48
#: what the weights over time are, by the first kind of map of a model
ATTENTION_TITLES: Final = {
    "cross": "attention of each forecast step, the first on top, over the history",
    "encoder-self": "attention that each patch of the history receives, last layer",
    "decoder-history": "attention of each forecast step, the first on top, over all before it",
    "": "",
}


@dataclass(frozen=True)
class Forecast:
    """The next rows of a table.

    Attributes:
        table: the rows that were read.
        times: of the next rows, as text.
        point: (steps, targets), at the scale of the data.
        quantiles: (steps, targets, levels), calibrated if the run is.
        levels: of the quantiles.
        names: of the targets,
        scale: and the deviation of each in training.
        calibrated: whether the quantiles are.
    """

    table: SeriesTable
    times: tuple[str, ...]
    point: Float[np.ndarray, "steps targets"]
    quantiles: Float[np.ndarray, "steps targets levels"]
    levels: tuple[float, ...]
    names: tuple[str, ...]
    scale: tuple[float, ...]
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
            writer.writerow([time, *number_texts(each, self.scale, 8)])
        return file.getvalue()

    def __str__(self) -> str:
        return self.text

    def printed(self, *, as_json: bool) -> str:
        """Return the lines of a forecast on stdout: CSV, or one line of JSON."""
        return json.dumps(self.as_json()) + "\n" if as_json else self.text

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


class ForecastOutput(NumbersOutput):
    """The next rows of the columns that are forecast."""

    name = "forecast"
    only = ("series", "only a series has next rows to forecast")
    options_type: ClassVar[type[TaskOptions]] = SeriesOptions
    default_preset = "transformer"
    # dev windows are scored without decoding
    defaults: ClassVar[Mapping[str, Any]] = {"batch_sentences": 32, "eval_pairs": 1000}
    # begins as a linear map, to which a small network adds what that cannot know; the absolute
    # error is nearer to what the dev score rewards, and dropout of attention takes half of a step
    starter: ClassVar[Mapping[str, Any]] = {
        "loss": "mae",
        "metric": "mse",
        "skip": "fitted",
        "window_scale": "last",
        "dim": 16,
        "heads": 4,
        "feed_forward": 64,
        "layers": 2,
        "dropout": 0.3,
        "attention_dropout": 0.0,
    }

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._offsets: Tensor | None = None
        self.linear: LinearBaseline | None = None

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the input may be a series."""
        return SeriesInput.is_possible(settings)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for sizes that do not fit together."""
        options: SeriesOptions = SeriesOptions.of(settings)
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
        if options.look_back is None and options.skip == "fitted":
            return  # the rows decide
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
        with shapes_only():
            _build(settings, options, targets=1, exogenous=len(options.exogenous))

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> NumberTargets:
        """Raise AssertionError: the scale of the targets is part of that of the series."""
        raise AssertionError("the encoder of the series has it")

    @property
    def size(self) -> int:
        """Estimates of a number."""
        return 1 + len(self.options.quantiles)

    def build(self) -> Forecaster:
        """Build the network of the preset, with the scale of windows around it."""
        scaler = self.input.encoder
        exogenous = scaler.frame_size - scaler.targets
        return _build(self.settings, self.options, targets=scaler.targets, exogenous=exogenous)

    def objective(self, model: AnyModel) -> nn.Module:
        """Return the model with the loss of its point forecasts and quantiles."""
        absolute = self.options.loss == "mae"
        return NumberObjective(cast(NumberModel, model), self.options.quantiles, absolute=absolute)

    def fitted_weights(
        self, model: AnyModel, data: tuple[EncodedPairs, DevSet] | None = None
    ) -> list[Tensor]:
        """Return the linear map of the window, if it begins as least squares.

        Windows are divided by a deviation, which forecasts are multiplied by: no map depends on it.
        """
        forecaster = cast(Forecaster, model)
        skip = getattr(forecaster.network, "skip", None)
        if forecaster.offset is None or skip is None:
            return []
        if data is not None:
            train, dev = window_moments(data[0]), window_moments(data[1].corpus)
            start = choose_linear(train, dev, [forecaster.centre(self.options.rows_read)])
            with torch.no_grad():
                skip.weight.copy_(start.weight.mT.repeat_interleave(self.size, dim=0))
                forecaster.offset.copy_(start.bias)
        return [skip.weight, forecaster.offset]

    def train_set(self, corpus: Corpus) -> SeriesWindows:
        """Return the windows of the training rows."""
        return self._windows([corpus.frames(row) for row in range(len(corpus))])

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the windows of the dev rows; a source is the time at which its forecast begins."""
        windows = self.train_set(corpus)
        firsts = [int(corpus.pair(row).src) for row in range(len(corpus))]
        times = []
        for stretch, first in zip(windows.stretch_of.tolist(), windows.first.tolist(), strict=True):
            times.append((firsts[stretch], first + self.options.rows_read))
        labels = [f"{start}+{row}" for start, row in times]
        order = np.array(sampling_order(labels, labels))
        return DevSet(labels, [[] for _ in labels], np.arange(len(labels)), windows, order)

    def _windows(self, stretches: Sequence[np.ndarray]) -> SeriesWindows:
        return SeriesWindows(
            stretches,
            look_back=self.options.rows_read,
            horizon=self.options.horizon,
            targets=self.input.encoder.targets,
        )

    def dev_scores(self, model: AnyModel, dev: DevSet, device: torch.device) -> DevScores:
        """Return the scores of the dev windows, with quantiles as the model gives them."""
        levels = self.options.quantiles
        sums = ForecastSums(levels)
        for history, future in _batches(cast(SeriesWindows, dev.corpus), device, dev.scored):
            numbers = cast(NumberModel, model)(history, None).numbers.float()
            sums.add(numbers[..., 0], future, numbers[..., 1:] if numbers.shape[-1] > 1 else None)
        found = sums.scores()
        metrics = {name: found[name] for name in ("mse", "mae")}
        if len(levels) > 1:
            metrics |= {"coverage": found["coverage"]}
        extra = found["quantile loss"] if levels else 0.0
        return DevScores({"loss": found[self.options.loss] + extra, **metrics})

    def calibrate(
        self, model: AnyModel, train: EncodedPairs, dev: DevSet, device: torch.device
    ) -> dict[str, Tensor]:
        """Return the offsets of the quantiles on dev windows, and the linear baseline."""
        linear = LinearBaseline.fit(window_moments(train))
        tensors = {"linear.weight": linear.weight, "linear.bias": linear.bias}
        if self.options.quantiles:
            errors = []
            for history, future in _batches(cast(SeriesWindows, dev.corpus), device):
                found = cast(NumberModel, model)(history, None)
                error = future[..., None] - found.numbers[..., 1:].float()
                errors.append((error / found.scale[:, None, :, None]).cpu())
            tensors["offsets"] = conformal_offsets(torch.cat(errors), self.options.quantiles)
        return tensors

    def use_calibration(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the offsets and the baseline; raises RegardError if they are of another run."""
        look_back, steps = self.options.rows_read, self.options.horizon
        shapes = {"linear.weight": (look_back, steps), "linear.bias": (steps,)}
        if self.options.quantiles:
            shapes["offsets"] = (steps, self.input.encoder.targets, len(self.options.quantiles))
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != shapes:
            raise RegardError(
                f"the calibration of this run must have the shapes {shapes}, but it has {found}: "
                "copy calibration.safetensors again, or remove it."
            )
        self.linear = LinearBaseline(tensors["linear.weight"], tensors["linear.bias"])
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
        point, level = numbers[..., 0], torch.tensor(self.options.quantiles, device=numbers.device)
        # a band holds its forecast, whatever the offsets are; the median may be on either side
        bound, none = point[..., None], torch.inf
        low, high = bound.where(level > 0.5, -none), bound.where(level < 0.5, none)
        quantiles = quantiles.clamp(low, high)
        return Estimates(point, quantiles.sort(dim=-1).values, out.maps)

    def graph(self, model: AnyModel) -> NumberGraph:
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

        scaler = self.input.encoder
        module = RescaledForecasts(cast(NumberModel, model), estimate, scaler)
        scale = scaler.scale[: scaler.targets]
        return NumberGraph(module, scaler.target_names, self.options.quantiles, scale)

    def predictions(
        self, model: AnyModel, sources: Iterable[Any], device: torch.device
    ) -> Iterator[Forecast]:
        """Yield the next rows of each table."""
        for source in sources:
            forecast, _ = self._forecast(model, source, device)
            yield forecast

    def _forecast(
        self, model: AnyModel, source: Any, device: torch.device, *, need_weights: bool = False
    ) -> "tuple[Forecast, Estimates]":
        table = cast(SeriesInput, self.input).table(source)
        history = torch.from_numpy(self.input.rows([table])[0])[None].to(device)
        with inference(model):
            found = self.estimates(model, history, need_weights=need_weights)
        steps = self.options.horizon
        times = table.step.after(table.times, steps)
        quantiles = found.quantiles[0].cpu().numpy()
        return Forecast(
            table=table,
            times=tuple(time_labels(times, table.step)),
            point=self.input.encoder.decode(found.point[0].cpu().numpy()),
            quantiles=np.moveaxis(self.input.encoder.decode(np.moveaxis(quantiles, -1, 0)), 0, -1),
            levels=self.options.quantiles,
            names=self.input.encoder.target_names,
            scale=self.input.encoder.number_targets.scale,
            calibrated=self._offsets is not None,
        ), found

    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable:
        """Return the scores of the test windows of a file beside those of the baselines."""
        table = cast(SeriesInput, self.input).table(file)
        stretch, what = self._test_rows(table)
        windows = self._windows([self.input.encoder.encode(stretch.values)])
        if not len(windows):
            raise DataError(
                table.name,
                None,
                f"there must be {self.options.window} rows for a window to score, but there are "
                f"{len(stretch)}{what and ' ' + what}",
                "add rows",
            )
        sums = window_scores(self, model, windows, device, advance)
        rows = [(name, tuple(found.scores().values())) for name, found in sums.items()]
        columns = tuple(ForecastSums().scores())
        band = ""
        if len(self.options.quantiles) > 1:
            low, high = self.options.quantiles[0], self.options.quantiles[-1]
            state = "not-calibrated" if self._offsets is None else "calibrated"
            band = message(f"evaluate.band.{state}", low=low, high=high)
        note = message("evaluate.standardised", band=band)
        said = message(f"evaluate.windows{what and '-of'}", count=len(windows), what=what)
        return ScoreTable(said, columns, rows, (note,))

    def _test_rows(self, table: SeriesTable) -> tuple[SeriesTable, str]:
        """Return the rows to score, with those that the first window reads, and which they are.

        Of a file that holds rows of training or dev, the test rows are scored alone.
        """
        scaler = self.input.encoder
        ends = scaler.seen_until, scaler.test_until
        later, end = np.searchsorted(table.times, ends, side="right").tolist()
        beginning = table.beginning(self.options.window)
        if not later or (not table.time and beginning != (scaler.beginning or beginning)):
            return table, ""
        if later == len(table):
            reason = "all of its rows are training or dev rows of the run"
            raise DataError(table.name, None, reason, "give rows that it has not seen")
        begin = table.part(later, later + 1).labels()[0]
        first, end = max(0, later - self.options.rows_read), end if end > later else len(table)
        return table.part(first, end), message("evaluate.from", begin=begin)

    def traces(
        self, model: AnyModel, sources: Sequence[Any], device: torch.device
    ) -> list[ForecastView]:
        """Return the picture of each forecast: history, bands, and attention over time."""
        return [self._view(model, source, device) for source in sources]

    def _view(self, model: AnyModel, source: Any, device: torch.device) -> ForecastView:
        forecast, found = self._forecast(model, source, device, need_weights=True)
        read = self.options.rows_read
        last = forecast.table.part(len(forecast.table) - read, len(forecast.table))
        weights = over_time(found.maps, self.options)
        name, simple = list(simple_forecasts(self).items())[-1]
        history = torch.from_numpy(self.input.rows([forecast.table])[0])[None]
        return ForecastView(
            name=forecast.table.name,
            names=forecast.names,
            history_times=tuple(last.labels()),
            history=last.values[:, : self.input.encoder.targets],
            times=forecast.times,
            point=forecast.point,
            quantiles=forecast.quantiles,
            levels=forecast.levels,
            calibrated=forecast.calibrated,
            attention=weights,
            attention_title=ATTENTION_TITLES[next(iter(found.maps), "")],
            simple=self.input.encoder.decode(simple(history)[0].numpy()),
            simple_name=message(f"forecast.simple.{name.split()[0]}"),
        )

    def checked(self, model: AnyModel, source: Any, device: torch.device) -> ForecastView:
        """Return the picture of a forecast, with how much it changes without parts of the history.

        Each of up to `SEGMENTS` parts is replaced by a straight line between the rows around it.
        The change is the mean over steps, in standard deviations of the series.
        """
        view = self._view(model, source, device)
        history = torch.from_numpy(self.input.rows([source])[0])
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
        """Return the row of the model card about the forecasts."""
        names = ", ".join(self.encoder.names)
        return {"forecasts": f"{self.options.horizon} steps of {names}"}


def window_moments(windows: EncodedPairs) -> WindowMoments:
    """Return what linear maps of windows are fitted to."""
    own = cast(SeriesWindows, windows)
    targets = (rows[:, : own.targets] for rows in own.stretches)
    return WindowMoments.of(targets, own.look_back, own.horizon)


def simple_forecasts(
    output: ForecastOutput, linear: LinearBaseline | None = None
) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return functions from standardised windows to forecasts without a network, by name."""
    steps, linear = output.options.horizon, output.linear if linear is None else linear
    targets, period = output.input.encoder.targets, output.input.encoder.period
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "repeat last value": partial(repeat_last, steps=steps, targets=targets)
    }
    if period > 1:
        naive = partial(seasonal_naive, steps=steps, targets=targets, period=period)
        found[f"seasonal naive ({period})"] = naive
    if linear is not None:
        found["linear"] = partial(linear.forecast, targets=targets)
    return found


def window_scores(
    output: ForecastOutput,
    model: AnyModel,
    windows: SeriesWindows,
    device: torch.device,
    advance: Advance = lambda share: None,
) -> dict[str, ForecastSums]:
    """Return the sums of errors of the model and of each baseline, by name."""
    simple = simple_forecasts(output)
    sums = {output.settings.preset: ForecastSums(output.options.quantiles)}
    sums |= {name: ForecastSums() for name in simple}
    for history, future in _batches(windows, device):
        with inference(model):
            found = output.estimates(model, history)
        sums[output.settings.preset].add(found.point, future, found.quantiles)
        for name, forecast in simple.items():
            sums[name].add(forecast(history), future)
        advance(len(history) / len(windows))
    return sums


class Estimates(NamedTuple):
    """Forecasts (windows, steps, targets), quantiles (.., levels) in order, and the maps."""

    point: Tensor
    quantiles: Tensor
    maps: Mapping[str, tuple[Tensor, ...]]


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
        start = min(i * options.stride, read - 1)  # the last patch repeats the last row
        own = rows[:, start : start + options.patch_len]
        own += received[:, i : i + 1] / own.shape[1]
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
    """Return Spearman's correlation, in which equals share a rank; 0 if one of both is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    first, second = ((x[:, None] > x).sum(1) - (x[:, None] < x).sum(1) for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


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
        skip=bool(options.skip),
        offset=options.skip == "fitted",
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
