"""Forecasters: models of the next steps of several series, with attention over their past.

Series are forecast independently of each other by one network (channel independence, Nie et al.,
2023, https://arxiv.org/abs/2211.14730), which sees a window of one series beside the exogenous
columns. Each window is brought to a scale of its own, which the forecast is returned from
(reversible instance normalisation, Kim et al., 2022, https://openreview.net/forum?id=cGDAkQo1C0p).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveAttention
from regard.errors import ArgumentError
from regard.layers import LayerOptions, RNNStack, TransformerEncoder
from regard.layers.dropout import Dropout
from regard.models.language_model import CausalBody, RecurrentBody
from regard.models.preset_parts import (
    RECURRENT,
    TRANSFORMER,
    Parts,
    RecurrentSize,
    TransformerSize,
    sizes,
)
from regard.models.protocol import Lengths, Maps, NumberModel, NumberOutput
from regard.ops.check import check_axes, check_equal, check_positive, half_of
from regard.ops.recurrence.scores import Cell
from regard.state import State

#: what is subtracted from the numbers of a window before they are divided by their deviation
WindowScale = Literal["mean", "last", "none"]
#: added to the variance of a window, which is 0 for a constant one
EPSILON: Final = 1e-5


class NetworkOutput(NamedTuple):
    """Forecasts (rows, steps, estimates) at the scale of the windows, and the maps."""

    numbers: Tensor
    maps: Maps


class ForecastNetwork(nn.Module, ABC):
    """Maps windows of one series to its next steps.

    A row is a window of one series: the series itself, then the exogenous columns.
    """

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "rows look_back features"],
        tgt: Float[Tensor, "rows steps"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NetworkOutput:
        """Forecast; `tgt` has the right steps, for networks that read them in training."""


@final
class Forecaster(NumberModel):
    """A network with the scale of each window around it.

    Args:
        network: forecasts one series.
        targets: number of series that are forecast: the first columns of a source.
        scale: "mean" or "last" subtracts the mean or the last value of the window and divides by
            its deviation, "none" leaves it as it is.
        offset: steps that have a number which is added to their forecasts at the end; 0 for none.
    """

    def __init__(
        self, network: ForecastNetwork, *, targets: int, scale: WindowScale, offset: int = 0
    ) -> None:
        super().__init__()
        check_positive(targets=targets)
        self.network, self.targets, self.scale = network, targets, scale
        self.offset = nn.Parameter(torch.zeros(offset)) if offset else None

    def forward(
        self,
        src: Float[Tensor, "batch look_back columns"],
        lengths: Lengths = None,
        tgt: Float[Tensor, "batch steps targets"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NumberOutput:
        """Forecast all series; the maps have a row for each series of each window."""
        check_axes("src", src, "batch look_back columns")
        centre, deviation = self._window_scale(src)
        scaled = (src - centre) / deviation
        centre, deviation = centre[..., : self.targets], deviation[..., : self.targets]
        given = None if tgt is None else (tgt - centre) / deviation
        rows = self._rows(scaled)
        own = None if given is None else given.transpose(1, 2).flatten(0, 1)
        out: NetworkOutput = self.network(rows, own, need_weights=need_weights)
        numbers = out.numbers.view(src.shape[0], self.targets, *out.numbers.shape[1:]).transpose(
            1, 2
        )
        numbers = numbers * deviation[..., None] + centre[..., None]
        if self.offset is not None:
            numbers = numbers + self.offset[:, None, None]
        return NumberOutput(numbers, deviation.squeeze(1), out.maps)

    def _window_scale(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each column is taken from and divided by, (batch, 1, columns) each."""
        mean = src.mean(dim=1, keepdim=True)
        if self.scale == "none":
            return torch.zeros_like(mean), torch.ones_like(mean)
        variance = src.var(dim=1, keepdim=True, unbiased=False)
        return src[:, -1:] if self.scale == "last" else mean, (variance + EPSILON).sqrt()

    def centre(self, look_back: int) -> Float[Tensor, " look_back"]:
        """Return the weights of the mean that is subtracted from a window."""
        ones = torch.ones(look_back, dtype=torch.float64)
        last = F.pad(ones[:1], (look_back - 1, 0))
        return {"none": 0 * ones, "mean": ones / look_back, "last": last}[self.scale]

    def _rows(self, scaled: Tensor) -> Tensor:
        """Return (batch * targets, look_back, 1 + exogenous)."""
        own = scaled[..., : self.targets].transpose(1, 2).unsqueeze(-1)  # (batch, targets, .., 1)
        others = scaled[:, None, :, self.targets :].expand(-1, self.targets, -1, -1)
        return torch.cat([own, others], dim=-1).flatten(0, 1)


@final
class PatchNetwork(ForecastNetwork):
    """A Transformer encoder over patches of the window; one linear map writes all steps at once.

    PatchTST of Nie et al. (2023). The end of the window is repeated once, so that the last patch
    begins before it, as in the paper. Here the last map begins with zeros, so that the first
    forecast is what the scale of the window subtracts. The maps are `encoder-self`: patches that
    attend to patches.

    Args:
        look_back: steps of a window.
        horizon: steps to forecast.
        n: sizes of the encoder.
        features: columns of a row.
        estimates: numbers per step: the point forecast and the quantiles.
        patch: steps of a patch,
        stride: and between the beginnings of two.
        options: of the layers.
        skip: whether a linear map of the window is added to the forecast (Das et al., 2023,
            https://arxiv.org/abs/2304.08424), so that layers learn what it cannot.
    """

    def __init__(
        self,
        look_back: int,
        horizon: int,
        n: TransformerSize,
        *,
        features: int,
        estimates: int,
        patch: int,
        stride: int,
        options: LayerOptions,
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.look_back, self.horizon, self.estimates = look_back, horizon, estimates
        self.patch, self.stride = patch, stride
        self.patches = patch_count(look_back, patch, stride)
        self.project = nn.Linear(patch * features, n.dim)
        self.positions = nn.Parameter(torch.empty(self.patches, n.dim).uniform_(-0.02, 0.02))
        self.dropout = Dropout(options.dropout)
        self.encoder = TransformerEncoder(n.dim, n.heads, n.feed_forward, n.layers, options)
        self.head = nn.Linear(self.patches * n.dim, horizon * estimates)
        self.skip = nn.Linear(look_back, horizon * estimates, bias=False) if skip else None
        # the first forecast is what the scale of the window subtracts
        for last in (self.head, self.skip):
            for weight in () if last is None else last.parameters():
                nn.init.zeros_(weight)

    def forward(
        self,
        x: Float[Tensor, "rows look_back features"],
        tgt: Float[Tensor, "rows steps"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NetworkOutput:
        """Forecast all steps at once."""
        check_equal("agree in look_back", x=x.shape[1], network=self.look_back)
        longer = F.pad(x.transpose(1, 2), (0, self.stride), mode="replicate")
        patches = longer.unfold(2, self.patch, self.stride)  # (rows, features, patches, patch)
        patches = patches.transpose(1, 2).flatten(2)
        read = self.dropout(self.project(patches) + self.positions)
        seen = self.encoder(read, need_weights=need_weights)
        flat = self.head(seen.output.flatten(1))
        if self.skip is not None:
            flat = flat + self.skip(x[..., 0])
        maps: Maps = {"encoder-self": seen.weights} if need_weights else {}
        return NetworkOutput(flat.unflatten(1, (self.horizon, self.estimates)), maps)


def patch_count(look_back: int, patch: int, stride: int) -> int:
    """Return the number of patches of a window whose end is repeated for one stride."""
    return (look_back + stride - patch) // stride + 1


@final
class AttentiveNetwork(ForecastNetwork):
    """A recurrent encoder and decoder with additive attention over the window.

    Bahdanau et al. (2015) for numbers: the decoder reads the number of the step in place of the
    last word, so that it runs in forecasting as in training. The maps are `cross`.

    Args:
        horizon: steps to forecast.
        n: sizes of both.
        features: columns of a row.
        estimates: numbers per step.
        cell: the recurrence.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self,
        horizon: int,
        n: RecurrentSize,
        *,
        features: int,
        estimates: int,
        cell: Cell,
        dropout: float,
    ) -> None:
        super().__init__()
        self.horizon, self.cell = horizon, cell
        self.project = nn.Linear(features, n.embed)
        self.encoder = RNNStack(
            n.embed, half_of(hidden=n.hidden), cell=cell, num_layers=n.layers, bidirectional=True,
            dropout=dropout,
        )  # fmt: skip
        self.steps = nn.Parameter(torch.randn(horizon, n.embed) * 0.02)
        self.bridge = nn.Linear(n.hidden, n.hidden)
        self.attention = AdditiveAttention(n.hidden, n.hidden, n.hidden)
        self.decoder = RNNStack(n.embed + n.hidden, n.hidden, cell=cell)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(2 * n.hidden, estimates)

    def forward(
        self,
        x: Float[Tensor, "rows look_back features"],
        tgt: Float[Tensor, "rows steps"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NetworkOutput:
        """Forecast step after step, each with a context of its own."""
        memory, state = self.encoder(self.dropout(self.project(x)))
        first = torch.tanh(self.bridge(state.hidden[:, -2:].flatten(1)))
        layer = cast(nn.RNNBase, self.decoder.ahead[0])
        weight, width = cast(Tensor, layer.weight_ih_l0), self.steps.shape[1]
        inputs = F.linear(self.steps, weight[:, :width], cast(Tensor, layer.bias_ih_l0))
        out = ops.attentive_rnn(
            inputs.expand(x.shape[0], -1, -1),
            ops.AttentiveState(
                first, torch.zeros_like(first) if self.cell == "lstm" else None, first * 0
            ),
            ops.AttentiveWeights(
                weight[:, width:], cast(Tensor, layer.weight_hh_l0), cast(Tensor, layer.bias_hh_l0)
            ),
            self.attention.as_score(),
            self.attention.project_keys(memory).tensor,
            memory,
            torch.ones(memory.shape[:2], dtype=torch.bool, device=x.device),
            cell=self.cell,
            need_weights=need_weights,
        )
        numbers = self.head(self.dropout(torch.cat([out.hidden, out.context], dim=-1)))
        maps: Maps = {} if out.weights is None else {"cross": (out.weights,)}
        return NetworkOutput(numbers, maps)


@final
class StepwiseNetwork(ForecastNetwork):
    """A causal body that reads the window, and then its own forecasts, one step after another.

    In training it reads the right steps (teacher forcing). Exogenous columns keep their last value.
    The maps are `decoder-history`, of the steps that are forecast over all before them.

    Args:
        horizon: steps to forecast.
        body: reads from left to right, such as a self-attentive RNN.
        embed: width of the vectors that the body reads.
        features: columns of a row.
        estimates: numbers per step; the first is the point forecast, which is read again.
        dropout: probability of dropping a feature.
    """

    def __init__(
        self,
        horizon: int,
        body: CausalBody,
        embed: int,
        *,
        features: int,
        estimates: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.horizon, self.body = horizon, body
        self.project = nn.Linear(features, embed)
        self.dropout = Dropout(dropout)
        self.head = nn.Linear(body.output_size, estimates)

    def forward(
        self,
        x: Float[Tensor, "rows look_back features"],
        tgt: Float[Tensor, "rows steps"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NetworkOutput:
        """Forecast step after step; with the right steps given, all at once."""
        state = self.body.start(len(x), x)
        if tgt is not None and not need_weights:
            others = x[:, -1:, 1:].expand(-1, self.horizon - 1, -1)
            right = torch.cat([tgt[:, :-1, None], others], dim=-1)
            output = self._read(torch.cat([x, right], dim=1), state)[0][:, -self.horizon :]
            before = torch.cat([x[:, -1:, :1], tgt[:, :-1, None]], dim=1)
            return NetworkOutput(self._numbers(output, before), {})
        output, state, seen = self._read(x, state, need_weights=need_weights)
        output, last = output[:, -1:], x[:, -1:]
        found, rows = [], [weights[:, :, -1:] for weights in seen]
        for step in range(self.horizon):
            numbers = self._numbers(output, last[..., :1])
            found.append(numbers)
            if step + 1 == self.horizon:
                break
            last = torch.cat([numbers[..., :1], x[:, -1:, 1:]], dim=-1)
            output, state, seen = self._read(last, state, need_weights=need_weights)
            rows += seen
        maps: Maps = {"decoder-history": (_stacked(rows),)} if rows else {}
        return NetworkOutput(torch.cat(found, dim=1), maps)

    def _read(
        self, x: Tensor, state: State, *, need_weights: bool = False
    ) -> tuple[Tensor, State, tuple[Tensor, ...]]:
        """Return outputs, the state after them, and the weights of the last layer."""
        out = self.body(self.dropout(self.project(x)), state, need_weights=need_weights)
        return out.output, out.state, out.maps.get("history", ())[-1:]

    def _numbers(self, output: Tensor, before: Tensor) -> Tensor:
        """Return the estimates of the next steps: changes of the step before each."""
        change: Tensor = self.head(self.dropout(output))
        return before + change


def _stacked(rows: list[Tensor]) -> Tensor:
    """Stack weights over ever longer histories to (rows, heads, steps, longest)."""
    longest = max(row.shape[-1] for row in rows)
    return torch.cat([F.pad(row, (0, longest - row.shape[-1])) for row in rows], dim=2)


#: the preset's size table and, in place of a default, what else it may be told beside `dropout`
FORECASTERS: Final[dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {
    "transformer": (TRANSFORMER, {"norm_first": True, "attention_dropout": None}),
    "bahdanau": (RECURRENT, {"cell": "gru"}),
    "self-attentive": (RECURRENT, {"cell": "gru"}),
    "rnn": (RECURRENT, {"cell": "lstm"}),
}


def build_forecaster(
    preset: str,
    size: str,
    *,
    look_back: int,
    horizon: int,
    targets: int,
    features: int,
    estimates: int,
    patch: int,
    stride: int,
    skip: bool,
    scale: WindowScale,
    offset: bool = False,
    dropout: float = 0.1,
    **sizes_and_options: Any,
) -> Forecaster:
    """Build the forecaster of a preset; raises ArgumentError if it has none, or no such option."""
    if preset not in FORECASTERS:
        raise ArgumentError(
            "preset", f"be one of {', '.join(FORECASTERS)} for series", preset, "choose one"
        )
    table, defaults = FORECASTERS[preset]
    entries = table["small"]._fields
    for name, value in sizes_and_options.items():
        if name not in entries and name not in defaults:
            rule = f"be left out for series with the preset {preset}"
            raise ArgumentError(name, rule, repr(value), "leave it out")
    n = sizes(table, size, {name: sizes_and_options.get(name) for name in entries})
    own = {name: sizes_and_options.get(name, default) for name, default in defaults.items()}
    read = {"features": features, "estimates": estimates}
    network: ForecastNetwork
    if preset == "transformer":
        network = PatchNetwork(
            look_back,
            horizon,
            n,
            patch=patch,
            stride=stride,
            options=LayerOptions(dropout=dropout, activation="gelu", **own),
            skip=skip,
            **read,
        )
    elif preset == "bahdanau":
        network = AttentiveNetwork(horizon, n, cell=own["cell"], dropout=dropout, **read)
    else:
        parts = Parts(1, 1, n, dropout, 0.0, own["cell"])
        attentive = preset == "self-attentive"
        body = parts.self_attentive_body() if attentive else RecurrentBody(parts.stack())
        network = StepwiseNetwork(horizon, body, n.embed, dropout=dropout, **read)
    return Forecaster(network, targets=targets, scale=scale, offset=horizon if offset else 0)
