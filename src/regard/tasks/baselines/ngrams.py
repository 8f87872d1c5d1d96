"""TF-IDF of tokens and pairs of neighbours with a linear model: labels and numbers of texts."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data import EncodedPairs, NumberTargets
from regard.models.ngram_bag import NgramBag
from regard.symbols import SYMBOLS
from regard.tasks.baselines.base import (
    Baseline,
    BaselineData,
    NumberFunction,
    Rows,
    label_sets,
    named_labels,
    token_rows,
)

#: source tokens times outputs that a second is enough for, about
SPEED: Final = 200_000
#: sources that an n-gram must occur in
FEWEST: Final = 2
#: iterations of L-BFGS, and of each of its calls, which end if they change the loss by less
ITERATIONS, AT_ONCE, CONVERGED = 100, 10, 1e-4


def fit_labels(data: BaselineData) -> Baseline:
    """Fit a multinomial logistic regression."""
    first, size = len(SYMBOLS), data.task.output.size  # symbols get no votes
    rows = data.sample(SPEED * data.seconds / (size - first))
    targets = torch.from_numpy(data.train.gather("tgt", rows).padded(1)[0][:, 0]) - first

    def loss(logits: Tensor) -> Tensor:
        own = logits[:, first:]
        return F.cross_entropy(own, targets, reduction="sum", ignore_index=-1)  # -1 is `unk`

    bag = _fit_bag(data, rows, size, 0.5, loss)
    votes = (bag(*batch) for batch in token_rows(data.dev.corpus, data.dev.rows))
    found = torch.cat([each[:, first:].argmax(dim=1) for each in votes]) + first
    outputs = [data.task.target.decode([label]) for label in found.tolist()]
    return Baseline("TF-IDF and logistic regression", outputs, bag=bag)


def fit_label_sets(data: BaselineData) -> Baseline:
    """Fit a logistic regression for each label."""
    first, size = len(SYMBOLS), data.task.output.size
    rows = data.sample(SPEED * data.seconds / (size - first))
    targets = label_sets(data.train, rows, size)

    def loss(logits: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits[:, first:], targets, reduction="sum")

    bag = _fit_bag(data, rows, size, 0.5, loss)
    votes = torch.cat([bag(*batch) for batch in token_rows(data.dev.corpus, data.dev.rows)])
    outputs = named_labels(data.task, votes[:, first:] > 0)
    return Baseline("TF-IDF and logistic regression", outputs, bag=bag)


def fit_numbers(data: BaselineData) -> Baseline:
    """Fit a ridge regression."""
    rows = data.sample(SPEED * data.seconds)
    bits = data.train.gather("tgt", rows).padded(1)[0][:, 0].astype(np.int32)
    targets = torch.from_numpy(NumberTargets.decode_bits(bits))[:, None]
    bag = _fit_bag(data, rows, 1, 1.0, lambda numbers: (numbers - targets).square().sum() / 2)
    model = NumberFunction(lambda src, lengths: bag(src, lengths)[:, None])
    return Baseline("TF-IDF and ridge regression", model=model, bag=bag)


class Features(NamedTuple):
    """Sparse rows: the n-grams of all sources, where each source begins, and their weights."""

    ngrams: Tensor
    offsets: Tensor
    weights: Tensor

    def sums(self, table: Tensor) -> Tensor:
        """Return the weighted sum of rows of a table for each source."""
        return F.embedding_bag(
            self.ngrams, table, self.offsets, mode="sum", per_sample_weights=self.weights
        )

    def transposed(self, columns: int) -> "Features":
        """Return the features with a row for each n-gram: autograd would be fifty times slower."""
        counts = torch.diff(self.offsets, append=torch.tensor([len(self.ngrams)]))
        source = torch.repeat_interleave(torch.arange(len(counts)), counts)
        order, each = self.ngrams.argsort(), torch.bincount(self.ngrams, minlength=columns)
        return Features(source[order], each.cumsum(0) - each, self.weights[order])


def features(bag: NgramBag, corpus: EncodedPairs, rows: Rows, *, learn: bool = False) -> Features:
    """Return the TF-IDF features of sources; with `learn`, the bag learns their frequencies."""
    found = [bag.ngrams(*batch) for batch in token_rows(corpus, rows)]
    counts = torch.cat([each.real.sum(dim=1) for each in found])
    keys = torch.cat([each.keys[each.real] for each in found])
    source = torch.repeat_interleave(torch.arange(len(counts)), counts)
    if learn:
        distinct = torch.unique((source << 32) + keys) & 0xFFFFFFFF
        known, sources = torch.unique(distinct, return_counts=True)
        order = sources.argsort(stable=True)  # the most frequent n-gram comes last, and gets a row
        row, mark = (part.numpy() for part in bag.rows(known[order]))
        idf = ((1 + len(rows)) / (1 + sources[order])).log() + 1
        bag.marks.numpy()[row] = mark
        bag.idf.numpy()[row] = idf.where(sources[order] >= FEWEST, 0.0)
    index, marks = bag.rows(keys)
    idf = bag.idf[index].where(bag.marks[index] == marks, 0.0)
    norm = torch.zeros(len(counts)).index_add_(0, source, idf.square()).sqrt().clamp(min=1e-6)
    return Features(index, counts.cumsum(0) - counts, idf / norm[source])


def _fit_bag(
    data: BaselineData, rows: Rows, outputs: int, penalty: float, loss: Callable[[Tensor], Tensor]
) -> NgramBag:
    """Fit the votes of n-grams for each output by L-BFGS.

    Args:
        data: the examples.
        rows: of the training examples to fit.
        outputs: number of outputs that n-grams vote for.
        penalty: of squared votes.
        loss: the sum over examples, given the outputs of all of them.
    """
    until = time.monotonic() + data.seconds / 2  # reading and the dev set take the rest
    order = int(data.task.settings.model.get("ngrams", 0)) or 2
    bag = NgramBag(data.task.input.vocab_size, outputs, order)
    found = features(bag, data.train, rows, learn=True)
    back = found.transposed(len(bag.idf))
    optimizer = torch.optim.LBFGS(
        [bag.votes, bag.bias], max_iter=AT_ONCE, history_size=AT_ONCE, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        sums = (found.sums(bag.votes) + bag.bias).requires_grad_()
        with torch.enable_grad():
            total = loss(sums)
        (slope,) = torch.autograd.grad(total, sums)
        bag.votes.grad = back.sums(slope) + penalty * bag.votes
        bag.bias.grad = slope.sum(dim=0)
        return total.detach() + penalty * bag.votes.square().sum() / 2

    before = float("inf")
    for _ in range(ITERATIONS // AT_ONCE):
        now = float(optimizer.step(closure))  # type: ignore[no-untyped-call]
        if before - now < CONVERGED * abs(now) or time.monotonic() > until:
            break
        before = now
    bag.votes.grad = bag.bias.grad = None
    return bag
