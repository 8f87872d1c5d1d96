"""Pictures, vectors, recordings and series: linear models of their numbers, and nearest ones."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.data import EncodedPairs, NumberTargets, PictureEncoder
from regard.data.corpus import DevSet
from regard.evaluation.forecasts import LinearBaseline
from regard.models.encoder_only import MOST_NUMBERS, LinearBag, fixed_numbers
from regard.symbols import SYMBOLS
from regard.tasks.baselines.base import (
    Baseline,
    BaselineData,
    NumberFunction,
    Rows,
    label_sets,
    named_labels,
)
from regard.tasks.outputs.forecast import ForecastOutput, simple_forecasts, window_moments

#: numbers of sources times outputs that a second is enough for, about
SPEED: Final = 2e7
#: iterations of L-BFGS, and of each of its calls
ITERATIONS, AT_ONCE = 60, 10


def fit_labels(data: BaselineData) -> Baseline:
    """Fit a logistic regression, or take the label of the nearest source if that does better."""
    first, classes = len(SYMBOLS), data.task.output.size - len(SYMBOLS)
    x, rows = _training_numbers(data, classes)
    labels = torch.from_numpy(data.train.gather("tgt", rows).padded(1)[0][:, 0])
    asked = _numbers(data, data.dev.corpus, data.dev.rows)
    square = x.square().sum(dim=1)
    nearest = [labels[(square - 2 * part @ x.mT).argmin(dim=1)] for part in torch.split(asked, 256)]

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels - first, reduction="sum", ignore_index=-1)  # `unk`

    weight = _logistic_regression(x, loss, classes, data.seconds / 2)
    votes = asked @ weight[:-1] + weight[-1]
    bag = LinearBag(len(weight) - 1, data.task.output.size)
    bag.weight[:, first:], bag.bias[first:] = weight[:-1], weight[-1]
    named = {
        "logistic regression": votes.argmax(dim=1) + first,
        "the nearest neighbour": torch.cat(nearest),
    }
    found = {
        name: [data.task.target.decode([label]) for label in each.tolist()]
        for name, each in named.items()
    }
    each = (Baseline(name, outputs, bag=bag) for name, outputs in found.items())
    return max(each, key=lambda one: _right(one, data.dev))


def fit_label_sets(data: BaselineData) -> Baseline:
    """Fit a logistic regression for each label."""
    size = data.task.output.size
    x, rows = _training_numbers(data, size)
    targets = label_sets(data.train, rows, size)
    loss = partial(F.binary_cross_entropy_with_logits, target=targets, reduction="sum")
    weight = _logistic_regression(x, loss, targets.shape[1], data.seconds / 2)
    votes = _numbers(data, data.dev.corpus, data.dev.rows) @ weight[:-1] + weight[-1]
    return Baseline("logistic regression", named_labels(data.task, votes > 0))


def _right(found: Baseline, dev: DevSet) -> int:
    return sum(out in several for out, several in zip(found.outputs, dev.references, strict=True))


def fit_numbers(data: BaselineData) -> Baseline:
    """Fit a ridge regression."""
    x, rows = _training_numbers(data, 1)
    bits = data.train.gather("tgt", rows).padded(1)[0][:, 0].astype(np.int32)
    y = torch.from_numpy(NumberTargets.decode_bits(bits))[:, None]
    square = x.mT @ x + torch.eye(x.shape[1])
    weight = torch.linalg.solve(square, x.mT @ (y - y.mean()))
    bag = LinearBag(len(weight), 1)
    bag.weight.copy_(weight)
    bag.bias.fill_(y.mean())

    def predict(src: Tensor, lengths: Tensor | None) -> Tensor:
        numbers: Tensor = _summary(data, src, lengths) @ weight + y.mean()
        return numbers[:, None]

    return Baseline("ridge regression", model=NumberFunction(predict), bag=bag)


def fit_forecast(data: BaselineData) -> Baseline:
    """Take the best of the last value, the last season and a linear map, on dev windows."""
    output = cast(ForecastOutput, data.task.output)
    linear, metric = LinearBaseline.fit(window_moments(data.train)), data.task.settings.metric
    models = {
        name: NumberFunction(lambda src, _, forecast=forecast: forecast(src))  # type: ignore[misc]
        for name, forecast in simple_forecasts(output, linear).items()
    }

    def error(name: str) -> float:
        scores = output.dev_scores(models[name], data.dev, torch.device("cpu"))
        return scores.metrics[output.default_metric() if metric == "auto" else metric]

    best = min(models, key=error)
    return Baseline(best, model=models[best])


def _training_numbers(data: BaselineData, outputs: int) -> tuple[Tensor, Rows]:
    """Return the numbers of training sources, as many as there is time for, and their rows."""
    width = _numbers(data, data.train, np.arange(1)).shape[1]
    count = int(SPEED * data.seconds / width / outputs)
    rows = np.sort(np.random.default_rng(0).permutation(len(data.train.src_lengths))[:count])
    return _numbers(data, data.train, rows), rows


def _numbers(
    data: BaselineData, corpus: EncodedPairs, rows: Rows
) -> Float[Tensor, "sources numbers"]:
    parts = [
        _summary(data, *map(torch.from_numpy, corpus.gather("src", some).padded(0)))
        for some in np.split(rows, range(256, len(rows), 256))
    ]
    return torch.cat(parts)


def _summary(
    data: BaselineData, src: Tensor, lengths: Tensor | None
) -> Float[Tensor, "sources numbers"]:
    """Return the numbers of each source, or mean and deviation over frames if lengths differ."""
    encoder = data.task.input.encoder
    if isinstance(encoder, PictureEncoder):
        side = encoder.patch
        able = [n for n in range(1, side + 1) if side % n == 0]
        fits = (n for n in able if src[0].numel() <= MOST_NUMBERS * n * n)
        pixels = src.reshape(-1, side, side, encoder.channels).movedim(3, 1)
        return F.avg_pool2d(pixels, next(fits, side)).reshape(len(src), -1)
    if length := getattr(encoder, "frames", 0):
        return fixed_numbers(src, length)
    counts = torch.full((len(src),), src.shape[1]) if lengths is None else lengths
    real = (torch.arange(src.shape[1]) < counts[:, None])[..., None]
    mean = (src * real).sum(dim=1) / counts[:, None]
    deviation = ((src - mean[:, None]).square() * real).sum(dim=1) / counts[:, None]
    return torch.cat([mean, deviation.sqrt()], dim=1)


def _logistic_regression(
    x: Float[Tensor, "sources numbers"],
    loss_of: Callable[[Tensor], Tensor],
    classes: int,
    seconds: float,
) -> Float[Tensor, "numbers_and_bias classes"]:
    """Fit by L-BFGS, with a penalty of half the squares; the last row is the bias."""
    until = time.monotonic() + seconds
    weight = torch.zeros(x.shape[1] + 1, classes, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight], max_iter=AT_ONCE, history_size=AT_ONCE, line_search_fn="strong_wolfe"
    )

    @torch.enable_grad()
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(x @ weight[:-1] + weight[-1])
        loss = loss + weight[:-1].square().sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(ITERATIONS // AT_ONCE):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        if time.monotonic() > until:
            break
    return weight.detach()
