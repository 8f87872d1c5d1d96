"""An output of regard in one file: ordered labels, such as one to five stars.

With `from examples.rating import RatingOutput` in `regard/tasks/__init__.py`, and `RatingOutput`
before `LabelOutput` among the `OUTPUTS`, `regard train reviews.tsv ordinal=true` predicts ratings,
and every command knows them. One number places a source on a scale, and cuts between the labels are
learned (proportional odds, McCullagh, 1980): a mistake by one star costs less than one by three.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from regard.data import TargetEncoder
from regard.errors import ArgumentError
from regard.evaluation import METRICS, Metric
from regard.models import LABEL_PRESETS
from regard.models.encoder_only import IMPROBABLE, AnswerModel, Classifier
from regard.models.encoders import Encoder
from regard.models.protocol import Memory
from regard.symbols import SYMBOLS
from regard.tasks.outputs.labels import LabelOptions, LabelOutput
from regard.tasks.settings import Settings, TaskOptions

#: a logit of what is certain
CERTAIN = 30.0


def rating_sums(predictions: Sequence[str], references: list[list[str]]) -> np.ndarray:
    """Return (1, prediction, reference, squared difference, sum of squares) of each pair."""
    rows = []
    for text, several in zip(predictions, references, strict=True):
        try:
            found, wanted = float(text), [float(one) for one in several]
        except ValueError:
            raise ArgumentError("kappa", "be of numbers", repr(text), "choose accuracy") from None
        gold = min(wanted, key=lambda one: abs(one - found))
        rows.append((1.0, found, gold, (found - gold) ** 2, found**2 + gold**2))
    return np.array(rows)


def kappa(sums: Float[np.ndarray, "samples 5"]) -> Float[np.ndarray, " samples"]:
    """Return Cohen's kappa with quadratic weights (Cohen, 1968); 0 where all are equal."""
    count, found, gold, wrong, squares = sums.T
    chance = squares - 2 * found * gold / count
    return np.where(chance > 0, 1 - wrong / np.where(chance > 0, chance, 1.0), 0.0)


METRICS["kappa"] = Metric("agreement of ratings beyond chance", rating_sums, kappa)


class RatingOptions(LabelOptions):
    """Settings of runs whose labels have an order."""

    ordinal: bool = Field(
        default=False, description="whether labels are numbers in order, such as 1 to 5 stars"
    )


class RatingOutput(LabelOutput):
    """One of several labels that have an order."""

    name = "rating"
    like = "label"
    options_type: ClassVar[type[TaskOptions]] = RatingOptions

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether labels are said to have an order."""
        return bool(RatingOptions.of(settings).ordinal) and settings.preset in LABEL_PRESETS

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Any) -> TargetEncoder:
        """Learn the labels, which are numbers."""
        found = super().learn(settings, targets, file=file, say=say)
        _ranks(found.tokens(range(len(SYMBOLS), found.vocab_size)))
        return found

    @property
    def size(self) -> int:
        """1: the network places a source on a scale."""
        return 1

    def finish(self, model: Any) -> "OrdinalClassifier":
        """Return the network with cuts between the labels."""
        return OrdinalClassifier(model.classifier, _ranks(self.labels))

    def default_metric(self) -> str:
        """Return the agreement beyond chance."""
        return "kappa"

    def metrics(self) -> tuple[str, ...]:
        """Return the agreement and the share of right labels."""
        return ("kappa", *super().metrics())


def _ranks(labels: Sequence[str]) -> list[int]:
    """Return the rank of each label; raises ArgumentError unless all are numbers."""
    try:
        order = sorted(range(len(labels)), key=lambda i: float(labels[i]))
    except ValueError:
        value = f"{', '.join(labels[:3])}, ..."
        raise ArgumentError("ordinal", "be for numbers", value, "leave it out") from None
    return [order.index(i) for i in range(len(labels))]


@final
class OrdinalClassifier(AnswerModel):
    """Writes one label: the probability of those up to a label is the sigmoid of its cut.

    Args:
        classifier: scores one class, the place of a source on the scale.
        ranks: of the labels, from 0 on.
    """

    learns_end = False
    ranks: Tensor

    def __init__(self, classifier: Classifier, ranks: Sequence[int]) -> None:
        super().__init__()
        self.classifier = classifier
        self.first = nn.Parameter(torch.tensor([-0.5 * (len(ranks) - 2)]))
        self.gaps = nn.Parameter(torch.full((len(ranks) - 2,), 0.5413))  # softplus gives 1
        self.register_buffer("ranks", torch.tensor(ranks), persistent=False)

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

    def answers(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the labels, and the weights of the pooling."""
        place, weights, _ = self.classifier.classify(memory, need_weights=True)
        assert weights is not None
        cuts = torch.cat([self.first, self.first + F.softplus(self.gaps).cumsum(0)])
        below = F.pad(cuts - place.float(), (1, 0), value=-CERTAIN)
        above = F.pad(cuts - place.float(), (0, 1), value=CERTAIN)
        # log(sigmoid(above) - sigmoid(below))
        among = (
            F.logsigmoid(above)
            + F.logsigmoid(-below)
            + torch.log1p(-(below - above).clamp(max=-1e-4).exp())
        )
        return F.pad(among[:, self.ranks], (len(SYMBOLS), 0), value=IMPROBABLE), weights
