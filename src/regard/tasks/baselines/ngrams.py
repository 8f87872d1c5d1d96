"""TF-IDF of tokens, their letters and pairs of neighbours with linear models: labels, numbers."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data import EncodedPairs, NumberTargets, Tokenizer
from regard.models.encoder_only import NgramBag
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
#: lengths of n-grams of the letters of a token
LETTERS: Final = (3, 4, 5)
#: examples that the mean of all targets stands for, beside those that have an n-gram
PRIOR: Final = 3.0


def fit_labels(data: BaselineData) -> Baseline | None:
    """Fit a multinomial logistic regression, and add the votes of naive Bayes.

    Each n-gram's own frequency in a class says much where examples are few: it is no less right
    for being naive, and errs elsewhere.
    """
    first, size = len(SYMBOLS), data.task.output.size  # symbols get no votes
    rows = data.sample(SPEED * data.seconds / (size - first))
    if len(rows) < min(size - first, len(data.train.src_lengths)):
        return None  # too many labels: most would have no example in what there is time for
    targets = torch.from_numpy(data.train.gather("tgt", rows).padded(1)[0][:, 0]) - first
    members = F.one_hot(targets.clamp(min=0), size - first) * (targets >= 0)[:, None]

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, first:], targets, reduction="sum", ignore_index=-1)

    bag = _fit_bag(data, rows, size, 0.5, loss, _log_odds(members.float()))
    votes = (bag(*batch) for batch in token_rows(data.dev.corpus, data.dev.rows))
    found = torch.cat([each[:, first:].argmax(dim=1) for each in votes]) + first
    outputs = [data.task.target.decode([label]) for label in found.tolist()]
    return Baseline("TF-IDF, logistic regression and naive Bayes", outputs, bag=bag)


def fit_label_sets(data: BaselineData) -> Baseline | None:
    """Fit a logistic regression for each label, and add the votes of naive Bayes."""
    first, size = len(SYMBOLS), data.task.output.size
    rows = data.sample(SPEED * data.seconds / (size - first))
    if len(rows) < min(size - first, len(data.train.src_lengths)):
        return None  # too many labels: most would have no example in what there is time for
    targets = label_sets(data.train, rows, size)

    def loss(logits: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits[:, first:], targets, reduction="sum")

    bag = _fit_bag(data, rows, size, 0.5, loss, _log_odds(targets))
    votes = torch.cat([bag(*batch) for batch in token_rows(data.dev.corpus, data.dev.rows)])
    outputs = named_labels(data.task, votes[:, first:] > 0)
    return Baseline("TF-IDF, logistic regression and naive Bayes", outputs, bag=bag)


def fit_numbers(data: BaselineData) -> Baseline:
    """Fit a ridge regression; half of the answer is the mean target of each n-gram."""
    rows = data.sample(SPEED * data.seconds)
    bits = data.train.gather("tgt", rows).padded(1)[0][:, 0].astype(np.int32)
    targets = torch.from_numpy(NumberTargets.decode_bits(bits))[:, None]

    def naive(count: Count) -> Tensor:
        return count(targets - targets.mean()) / (count(torch.ones_like(targets)) + PRIOR)

    def loss(numbers: Tensor) -> Tensor:
        return (numbers - targets).square().sum() / 2

    bag = _fit_bag(data, rows, 1, 1.0, loss, naive)
    bag.votes /= 2
    bag.bias += (targets.mean() - bag.bias) / 2
    model = NumberFunction(lambda src, lengths: bag(src, lengths)[:, None])
    return Baseline("TF-IDF, ridge regression and means", model=model, bag=bag)


#: a function from values of sources to their sum over all places of each n-gram
Count = Callable[[Tensor], Tensor]


def _log_odds(members: Tensor) -> Callable[[Count], Tensor]:
    """Return the votes of naive Bayes for each class, given the classes of each source."""

    def votes(count: Count) -> Tensor:
        own, other = count(members), count(1 - members)
        seen = own + other > 0
        own, other = ((each + 1) / (each + seen).sum(dim=0) for each in (own, other))
        return F.pad((own / other).log(), (len(SYMBOLS), 0))

    return votes


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

    def sources(self) -> Tensor:
        """Return the source of each n-gram."""
        counts = torch.diff(self.offsets, append=torch.tensor([len(self.ngrams)]))
        return torch.repeat_interleave(torch.arange(len(counts)), counts)

    def transposed(self, columns: int) -> "Features":
        """Return the features with a row for each n-gram: autograd would be fifty times slower."""
        order, each = self.ngrams.argsort(), torch.bincount(self.ngrams, minlength=columns)
        return Features(self.sources()[order], each.cumsum(0) - each, self.weights[order])

    def normed(self, weights: Tensor) -> "Features":
        """Return the features with these weights, whose squares sum to 1 in each source."""
        source, total = self.sources(), torch.zeros(len(self.offsets))
        norm = total.index_add_(0, source, weights.square()).sqrt().clamp(min=1e-6)
        return self._replace(weights=weights / norm[source])


def features(bag: NgramBag, corpus: EncodedPairs, rows: Rows, *, learn: bool = False) -> Features:
    """Return the TF-IDF features of sources; with `learn`, the bag learns their frequencies."""
    found = [bag.ngrams(*batch) for batch in token_rows(corpus, rows)]
    counts = torch.cat([each.real.sum(dim=1) for each in found])
    keys = torch.cat([each.keys[each.real] for each in found])
    if learn:
        source = torch.repeat_interleave(torch.arange(len(counts)), counts)
        distinct = torch.unique((source << 32) + keys) & 0xFFFFFFFF
        known, sources = torch.unique(distinct, return_counts=True)
        order = sources.argsort(stable=True)  # the most frequent n-gram comes last, and gets a row
        row, mark = (part.numpy() for part in bag.rows(known[order]))
        idf = ((1 + len(rows)) / (1 + sources[order])).log() + 1
        bag.marks.numpy()[row] = mark
        bag.idf.numpy()[row] = idf.where(sources[order] >= FEWEST, 0.0)
    index, marks = bag.rows(keys)
    idf = bag.idf[index].where(bag.marks[index] == marks, 0.0)
    return Features(index, counts.cumsum(0) - counts, idf).normed(idf)


class _Letters(NamedTuple):
    """Votes of rows are `own` times their own parameters, and those of the letters within."""

    own: Tensor
    parts: Features
    letters: int

    @staticmethod
    def of(bag: NgramBag, data: BaselineData, found: Features) -> "_Letters":
        """Find the n-grams of letters of all tokens, and give the tokens their weight, too.

        So a bag needs no letters to predict: the votes of a token hold those of its letters.
        """
        encoder, texts = data.task.input.encoder, [""] * len(SYMBOLS)
        if isinstance(encoder, Tokenizer):
            texts += encoder.tokens(range(len(SYMBOLS), encoder.vocab_size))
        grams = [_letter_ngrams(text.lower()) for text in texts]
        names = {gram: i for i, gram in enumerate(sorted({g for own in grams for g in own}))}
        each = torch.zeros(len(bag.idf), dtype=torch.long)
        each[: len(grams)] = torch.tensor([len(own) for own in grams])
        index = torch.tensor([names[gram] for own in grams for gram in own], dtype=torch.long)
        often = torch.bincount(found.ngrams, minlength=len(bag.idf)) * (bag.idf > 0)
        source = torch.repeat_interleave(torch.arange(len(each)), each)
        sources = len(found.offsets)
        counts = torch.zeros(len(names)).index_add_(0, index, often[source].float())
        idf = ((1 + sources) / (1 + counts.clamp(max=sources))).log() + 1
        weights = idf.where(counts >= FEWEST, 0.0)[index]
        before = bag.idf.clone()
        bag.idf.copy_(before.square().index_add(0, source, weights.square()).sqrt())
        whole = bag.idf.clamp(min=1e-6)
        return _Letters(
            (before / whole)[:, None],
            Features(index, each.cumsum(0) - each, weights / whole[source]),
            len(names),
        )


def _letter_ngrams(text: str) -> list[str]:
    """Return the n-grams of the letters of a token; of a short one, the token itself."""
    if len(text) < LETTERS[0]:
        return [text] if text else []
    return [text[i : i + length] for length in LETTERS for i in range(len(text) - length + 1)]


def _fit_bag(
    data: BaselineData,
    rows: Rows,
    outputs: int,
    penalty: float,
    loss: Callable[[Tensor], Tensor],
    naive: Callable[[Count], Tensor],
) -> NgramBag:
    """Fit the votes of n-grams for each output by L-BFGS, and add naive ones of the same size.

    Args:
        data: the examples.
        rows: of the training examples to fit.
        outputs: number of outputs that n-grams vote for.
        penalty: of squared votes.
        loss: the sum over examples, given the outputs of all of them.
        naive: the votes of each n-gram by its occurrences alone, given a function that counts.
    """
    until = time.monotonic() + data.seconds / 2  # reading and the dev set take the rest
    order = int(data.task.settings.model.get("ngrams", 0)) or 2
    bag = NgramBag(data.task.input.vocab_size, outputs, order)
    plain, whole = features(bag, data.train, rows, learn=True), len(bag.idf)
    own, parts, letters = _Letters.of(bag, data, plain)
    # tokens have the weight of their letters now; n-grams whose row another one owns have none
    known = (plain.ngrams < bag.vocab) | (plain.weights > 0)
    found = plain.normed(bag.idf[plain.ngrams].where(known, 0.0))
    back, up = found.transposed(whole), parts.transposed(letters)
    fitted, bias = torch.zeros(whole + letters, outputs), bag.bias
    optimizer = torch.optim.LBFGS(
        [fitted, bias], max_iter=AT_ONCE, history_size=AT_ONCE, line_search_fn="strong_wolfe"
    )

    def votes(parameters: Tensor) -> Tensor:
        return own * parameters[:whole] + parts.sums(parameters[whole:])

    def closure() -> Tensor:
        sums = (found.sums(votes(fitted)) + bias).requires_grad_()
        with torch.enable_grad():
            total = loss(sums)
        (slope,) = torch.autograd.grad(total, sums)
        each = back.sums(slope)
        fitted.grad = torch.cat([own * each, up.sums(each)]) + penalty * fitted
        bias.grad = slope.sum(dim=0)
        return total.detach() + penalty * fitted.square().sum() / 2

    before = float("inf")
    for _ in range(ITERATIONS // AT_ONCE):
        now = float(optimizer.step(closure))  # type: ignore[no-untyped-call]
        if before - now < CONVERGED * abs(now) or time.monotonic() > until:
            break
        before = now
    bias.grad = None
    places, inside = (each._replace(weights=(each.weights > 0).float()) for each in (back, up))

    def count(values: Tensor) -> Tensor:
        each = places.sums(values)
        return torch.cat([each, inside.sums(each)])

    bag.votes.copy_(votes(fitted))
    others = votes(naive(count))
    one, other = found.sums(bag.votes), found.sums(others)
    centre = other.mean(dim=0)
    scale = one.std() / (other - centre).square().mean().sqrt().clamp(min=1e-6)
    bag.votes += scale * others
    bias -= scale * centre
    return bag
