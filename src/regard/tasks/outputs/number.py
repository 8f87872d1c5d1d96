"""Numbers: one number for a source, such as a rating."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from regard.data import Corpus, NumberTargets, Pair, base_folder, collate
from regard.data.corpus import DevSet
from regard.data.error_hints import SETTING_HINTS, BadLine
from regard.data.frame_scaler import NumberRows
from regard.data.table_files import DECIMAL_COMMA
from regard.data.text_codec import number_texts
from regard.errors import ArgumentError, DataError
from regard.evaluation.forecasts import pinball, regression_scores
from regard.messages import message
from regard.models import LABEL_PRESETS, AnyModel, Maps, NumberModel
from regard.models.encoder_only import Regressor
from regard.models.protocol import inference
from regard.safe_read import parse_number
from regard.seeing import DecodingInfo, Map, Text, Token, Trace
from regard.tasks.inputs.array import ArrayInput
from regard.tasks.outputs.base import NumbersOutput
from regard.tasks.outputs.number_graphs import NumberGraph, Rescaled
from regard.tasks.settings import (
    Advance,
    DataPlace,
    DevScores,
    Say,
    ScoreTable,
    Settings,
    TaskOptions,
    refuse_settings,
)

#: sources that are predicted at once
BATCH: Final = 64
#: replacements of an input that are tried to see what it changes
TRIED: Final = 16
#: inputs that the sentences of a check name
NAMED: Final = 5
#: a number with a decimal comma that may also part thousands
THOUSANDS: Final = re.compile(r"[-+]?[1-9][0-9]{0,2},[0-9]{3}", re.ASCII)
#: settings of targets that are cut into tokens
NOT_TOKENS: Final = ("tgt_tokenizer", "shared_vocab", "tgt_vectors", "rdrop")


class NumberOptions(TaskOptions):
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
        """The number with six digits, or as many as tell numbers of the training data apart."""
        return self.trace.target.text

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return self.text

    def printed(self, *, as_json: bool) -> str:
        """Return the line of a prediction on stdout."""
        return (json.dumps(self.as_json()) if as_json else self.text) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return the number, the tokens of the source and the weights over them."""
        looked = [found.weights for found in self.trace.maps if found.kind == "cross"]
        return {
            "number": self.value,
            "src_tokens": self.trace.source.labels,
            "attention": [round(float(w), 4) for w in looked[0][0, 0]] if looked else [],
        }


class ValueOutput(NumbersOutput):
    """One number for each source."""

    name = "number"
    options_type: ClassVar[type[TaskOptions]] = NumberOptions
    default_preset = "classifier-transformer"

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether numbers are asked for."""
        return bool(NumberOptions.of(settings).numbers)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of targets that are texts."""
        if settings.preset not in LABEL_PRESETS:
            rule = f"be one of {', '.join(LABEL_PRESETS)} where targets are numbers"
            raise ArgumentError("preset", rule, settings.preset, "choose one of them")
        refuse_settings(settings, NOT_TOKENS, "be left out where targets are numbers")
        if settings.metric not in ("auto", "loss", "mse", "mae"):
            rule = "be mse, mae or loss where targets are numbers"
            raise ArgumentError("metric", rule, settings.metric, "leave it out")
        if ctc := settings.task_options.get("ctc"):
            rule = "be 0 where targets are numbers"
            raise ArgumentError("ctc", rule, ctc, "leave it out")

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> NumberTargets:
        """Learn the scale of the numbers."""
        values = np.array([float(target) for target in targets])
        mean, deviation = float(values.mean()), float(values.std())
        if deviation == 0:
            say(message("train.constant-target", file=file, value=f"{mean:g}"))
        ends = {"low": values.min(), "high": values.max()}
        why = message("train.why.given", setting="numbers=true")
        say(message("train.number", why=why, mean=mean, deviation=deviation, **ends))
        return NumberTargets(("number",), (mean,), (deviation or 1.0,))

    @classmethod
    def check_pair(cls, pair: Pair) -> Pair:
        """Return a pair whose target is a number; raises BadLine for another."""
        return pair._replace(tgt=plain_number(pair.tgt))

    @property
    def size(self) -> int:
        """1: the classifier of the preset has one output, which is the number."""
        return 1

    def finish(self, model: Any) -> Regressor:
        """Return the regressor of a classifier."""
        return Regressor(model.classifier)

    def train_set(self, corpus: Corpus) -> NumberRows:
        """Return the sources with their numbers."""
        return NumberRows(corpus)

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the dev sources with their numbers."""
        return DevSet.of(corpus)._replace(corpus=NumberRows(corpus))

    def objective(self, model: AnyModel) -> nn.Module:
        """Return the model with the loss of its numbers."""
        return NumberObjective(cast(NumberModel, model), (), absolute=self.options.loss == "mae")

    def encoder_rows(self) -> dict[str, str]:
        """Return the row of the model card about the numbers."""
        mean, scale = self.encoder.mean[0], self.encoder.scale[0]
        return {"target": f"numbers of mean {mean:.4g}, deviation {scale:.4g}"}

    def dev_scores(self, model: AnyModel, dev: DevSet, device: torch.device) -> DevScores:
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
        loss = np.abs(error).mean() if self.options.loss == "mae" else (error**2).mean()
        scores = regression_scores(self._decode(scaled), self._decode(gold))
        return DevScores({"loss": float(loss), **scores})

    def dev_traces(self, model: AnyModel, dev: DevSet, device: torch.device) -> Sequence[Trace]:
        """Return traces of the first dev sources, unless these are only names of tables."""
        if isinstance(self.input, ArrayInput):
            return ()
        return [self._predict(model, [one], device)[0].trace for one in dev.sources[:3]]

    def predictions(
        self, model: AnyModel, sources: Iterable[Any], device: torch.device
    ) -> Iterator[NumberPrediction]:
        """Yield the number of each source, in order."""
        rest = iter(sources)
        while chunk := list(itertools.islice(rest, BATCH)):
            yield from self._predict(model, chunk, device)

    def traces(self, model: AnyModel, sources: Sequence[Any], device: torch.device) -> list[Trace]:
        """Return the attention over each source."""
        return [found.trace for found in self._predict(model, sources, device)]

    def checked(self, model: AnyModel, source: Any, device: torch.device) -> Trace:
        """Return the attention over a source, with how the number changes without each input.

        An input is replaced by others in turn; the change is the mean over them, in the unit of the
        targets.
        """
        (found,) = self._predict(model, [source], device)
        (row,) = self.input.rows([source])
        able = self.input.replacements(row)
        rng = np.random.default_rng(0)
        changed, place_of = [], []
        for place, others in enumerate(able.others):
            for i in rng.choice(len(others), min(TRIED, len(others)), replace=False):
                changed.append(able.put(row, {place: others[int(i)]}))
                place_of.append(place)
        starts = range(0, len(changed), BATCH)
        values = [self._values(model, changed[i : i + BATCH], device)[0] for i in starts]
        tokens_read = len(found.trace.source.tokens)
        change = np.zeros(tokens_read)
        np.add.at(change, place_of, found.value - np.concatenate(values))
        change /= np.maximum(np.bincount(place_of, minlength=tokens_read), 1)
        return replace(
            found.trace,
            derived={"change": np.abs(change)[None].astype(np.float32)},
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

    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable:
        """Return the scores of a model on a file, beside those of the mean of training."""
        place = DataPlace(file, None, SETTING_HINTS, base_folder(file), self.input.encoder)
        pairs = list(self.input.read_examples(self.settings, place, self.check_pair))
        if not pairs:
            raise DataError(str(file), None, "there must be pairs to score", "add some")
        gold = np.array([float(pair.tgt) for pair in pairs])
        values = []
        for one in self.predictions(model, map(self.input.of_pair, pairs), device):
            values.append(one.value)
            advance(1 / len(pairs))
        own = regression_scores(np.array(values), gold)
        mean = regression_scores(np.full(len(gold), self.encoder.mean[0]), gold)
        rows = [(self.settings.preset, tuple(own.values()))]
        rows.append(("mean of training", tuple(mean.values())))
        said = message("evaluate.pairs", count=len(pairs), precision="")
        return ScoreTable(said, tuple(own), rows)

    def graph(self, model: AnyModel) -> NumberGraph:
        """Return the graph from a source to its number."""
        module = Rescaled(cast(NumberModel, model), self.encoder)
        return NumberGraph(module, self.encoder.names, (), self.encoder.scale)

    def _decode(self, scaled: np.ndarray) -> np.ndarray:
        """Return numbers in the unit of the targets."""
        return np.asarray(scaled.astype(np.float64) * self.encoder.scale[0] + self.encoder.mean[0])

    def _values(
        self, model: AnyModel, rows: Sequence[Any], device: torch.device, *, maps: bool = False
    ) -> tuple[np.ndarray, Maps]:
        """Return the numbers of encoded sources, and the maps if they are asked for."""
        src, lengths = self.input.batch(rows)
        with inference(model):
            out = cast(NumberModel, model)(src.to(device), lengths.to(device), need_weights=maps)
        return self._decode(out.numbers[:, 0, 0, 0].float().cpu().numpy()), out.maps

    def _predict(
        self, model: AnyModel, sources: Sequence[Any], device: torch.device
    ) -> list[NumberPrediction]:
        rows = self.input.rows(sources)
        values, maps = self._values(model, rows, device, maps=True)
        found = zip(sources, rows, values.tolist(), strict=True)
        return [
            self._prediction(source, row, value, {k: [w[i] for w in m] for k, m in maps.items()})
            for i, (source, row, value) in enumerate(found)
        ]

    def _prediction(
        self, source: Any, row: Any, value: float, maps: Mapping[str, Sequence[Tensor]]
    ) -> NumberPrediction:
        text = self.input.text(source, row)
        (shown,) = number_texts([[value]], self.encoder.scale)
        length = len(text.tokens)
        found = tuple(
            Map.of(kind, layer, own[:, :, :length].float().cpu().numpy(), missing=True)  # type: ignore[arg-type]
            for kind, layers in maps.items()
            for layer, weights in enumerate(layers)
            for own in [weights if kind == "cross" else weights[:, :length]]
        )
        info, notes = DecodingInfo("one pass"), self.input.notes(text)
        trace = Trace(text, Text(shown, (Token(shown),)), found, decoded=info, notes=notes)
        return NumberPrediction(value, trace, self.input.unknown(source, row))


class NumberObjective(nn.Module):
    """A model of numbers with its loss: that of the point, and the mean quantile loss.

    Args:
        model: the model to train.
        levels: of the quantiles.
        absolute: whether the point has the absolute error as its loss, not the squared.
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


def plain_number(text: str) -> str:
    """Return a number as Python writes it, with a point; raises BadLine for another text."""
    plain = text.strip()
    if DECIMAL_COMMA.fullmatch(plain) and not THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", ".")
    try:
        number = parse_number(plain)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadLine(
            "not a number",
            f"the target must be a number, but it is {text!r}",
            "write it as 3.5 or -2e-3, or leave numbers=true out",
        )
    return plain
