"""The interface of baselines: examples in, predictions of the dev set out."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data import EncodedPairs
from regard.data.corpus import DevSet, FrameRows
from regard.models import NumberModel, NumberOutput
from regard.models.encoder_only import LinearBag, NgramBag
from regard.models.protocol import Lengths, Src
from regard.symbols import PAD, SYMBOLS
from regard.tasks.task import Task

#: sources that are padded together
CHUNK: Final = 512

Rows = Int[np.ndarray, " rows"]


class BaselineData(NamedTuple):
    """Examples to fit a baseline on, a dev set to predict, and the seconds that it may take."""

    task: Task
    train: EncodedPairs
    dev: DevSet
    seconds: float

    def sample(self, tokens: float) -> Rows:
        """Return all training rows, or a sample of about so many source tokens."""
        lengths = self.train.src_lengths
        count = int(tokens / max(1.0, lengths.mean(dtype=np.float64)))
        if count >= len(lengths):
            return np.arange(len(lengths))
        return np.sort(np.random.default_rng(0).permutation(len(lengths))[: max(1, count)])


class Baseline(NamedTuple):
    """A fitted baseline: one of `outputs`, `model` and `loss` predicts the dev set.

    Attributes:
        name: worded for people, such as "copying the source".
        outputs: texts for the dev sources, in their order; the first suffice.
        model: predicts numbers, at the scale of the training data.
        loss: nats per token of the dev texts, of a language model.
        bag: its votes, if a network can start from them.
    """

    name: str
    outputs: Sequence[str] = ()
    model: NumberModel | None = None
    loss: float | None = None
    bag: NgramBag | LinearBag | None = None


@final
class NumberFunction(NumberModel):
    """A function from sources and lengths to numbers (batch, steps, targets), as a model."""

    def __init__(self, predict: Callable[[Tensor, Tensor | None], Tensor]) -> None:
        super().__init__()
        self.predict = predict

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tensor | None = None, *, need_weights: bool = False
    ) -> NumberOutput:
        """Predict the numbers of each source, whatever `tgt` holds."""
        numbers = self.predict(src, lengths)
        return NumberOutput(numbers[..., None], torch.ones_like(numbers[:, 0]), {})


def label_sets(corpus: EncodedPairs, rows: Rows, size: int) -> Float[Tensor, "rows labels"]:
    """Return 1 for each label of each target, and 0 for others, without columns of symbols."""
    ids = torch.from_numpy(corpus.gather("tgt", rows).padded(1)[0].astype(np.int64))
    return torch.zeros(len(rows), size).scatter(1, ids, 1.0)[:, len(SYMBOLS) :]


def named_labels(task: Task, holds: Bool[Tensor, "rows labels"]) -> list[str]:
    """Return the labels that hold of each row, as outputs name them."""
    return [task.target.decode((row.nonzero()[:, 0] + len(SYMBOLS)).tolist()) for row in holds]


def token_rows(corpus: EncodedPairs, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield padded source tokens with their lengths; tables of sentences are read word by word."""
    for start in range(0, len(rows), CHUNK):
        found = corpus.gather("src", rows[start : start + CHUNK])
        ids, lengths = found.padded(1)
        if isinstance(found, FrameRows):
            ids = ids.reshape(len(ids), -1).astype(np.int64)
            order = np.argsort(ids == PAD, axis=1, kind="stable")
            ids, lengths = np.take_along_axis(ids, order, axis=1), (ids != PAD).sum(axis=1)
        yield torch.from_numpy(ids), torch.from_numpy(lengths)
