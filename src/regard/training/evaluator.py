"""Evaluation on the dev set: loss, metrics, and the health of attention."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.data import EncodedPairs, collate
from regard.data.batches import Batch
from regard.data.corpus import DevSet
from regard.decoding import DecodingOptions, decode
from regard.evaluation.bootstrap import MAX_NATS
from regard.evaluation.metrics import Normalizer, compared, find_metric
from regard.messages import message
from regard.models import AnyModel, ModelOutput, SequenceModel
from regard.symbols import PAD
from regard.tasks import DevScores, Task
from regard.tasks.baselines import Baseline
from regard.training.distributed import Fabric
from regard.training.schedule import Progress

#: examples of a batch whose loss is computed, or that a CPU decodes
BATCH: Final = 128
#: sources that a GPU decodes at once, since it waits for its host at every token
GPU_BATCH: Final = 512
#: tokens that an output may have beyond twice those of the longest reference
EXTRA: Final = 10
#: dev sources by which the time of an evaluation is measured on a CPU; a GPU takes as long for few
#: as for a batch
PROBE: Final = 32


class DevMetric(NamedTuple):
    """The metric that ranks evaluations."""

    name: str
    higher_is_better: bool


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        score: value of the metric that ranks evaluations.
        metrics: all values by name, the dev loss (nats per token) among them.
        train_loss: mean training loss since the last evaluation.
        health: statistics of attention; None for models without cross-attention.
        outputs: all outputs, in the order of the dev set.
        errors: standard errors by name, of the metrics that have one.
        margin: standard error of the difference between two scores of such samples of the dev set,
            to that of scores of the whole dev set; 0 if all of it is scored.
    """

    score: float
    metrics: dict[str, float]
    train_loss: float
    health: "AttentionHealth | None"
    outputs: Sequence[str]
    errors: Mapping[str, float] = field(default_factory=dict)
    margin: float = 0.0

    def as_row(self, progress: Progress) -> dict[str, Any]:
        """Return a line of metrics.jsonl; NaN and infinities, which JSON has not, are None."""
        simple = progress.baseline
        row = {
            "step": progress.step,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "train_loss": self.train_loss,
            **{f"dev_{name}": value for name, value in self.metrics.items()},
            **({} if simple is None else {f"baseline_{simple.metric}": simple.score}),
        }
        return {name: value if math.isfinite(value) else None for name, value in row.items()}


@final
@dataclass(eq=False)
class Evaluator:
    """Evaluates a model on the dev set.

    Args:
        module: the model.
        dev: the dev set.
        metric: ranks evaluations.
        task: of the run; if its examples have no sources, no outputs are decoded.
        fabric: has the device and the precision.
        decoded: maximum number of sources to decode.
        max_tgt_len: maximum number of tokens of an output.
        batch_size: examples per batch for the loss.
    """

    module: AnyModel
    dev: DevSet
    metric: DevMetric
    _: KW_ONLY
    task: Task
    fabric: Fabric
    decoded: int | None = None
    max_tgt_len: int = 256
    batch_size: int = BATCH

    @torch.no_grad()
    def evaluate(self, train_loss: float = math.nan) -> Evaluation:
        """Return the loss of all dev examples, and the metrics of their kind of data."""
        train_loss *= self.task.output.counted
        self.module.eval()
        with self.fabric.autocast():
            found = (
                self._token_scores()
                if self.task.numbers is None
                else self.task.numbers.dev_scores(self.module, self.dev, self.fabric.device)
            )
        count, total = self.scored
        return Evaluation(
            found.metrics[self.metric.name],
            found.metrics,
            train_loss,
            found.health,
            found.outputs,
            found.errors,
            math.sqrt(2 * (1 - count / total)) * found.errors.get(self.metric.name, 0.0),
        )

    @torch.no_grad()
    def score_baseline(self, found: Baseline) -> float | None:
        """Return the score of a baseline on the dev examples that the model is scored on.

        None if it has none by the metric that ranks evaluations, such as the loss of labels.
        """
        name, numbers = self.metric.name, self.task.numbers
        if numbers is not None and found.model is not None:
            scores = numbers.dev_scores(found.model.eval(), self.dev, torch.device("cpu"))
            return scores.metrics[name]
        if found.loss is not None:
            return {"loss": found.loss, "perplexity": math.exp(found.loss)}.get(name)
        if not found.outputs or not self.decodes:
            return None
        outputs = found.outputs[: self.scored[0]]
        texts = (outputs, self.dev.references[: len(outputs)], self.task.target)
        return score_with_error(name, *texts)[0]

    @property
    def decodes(self) -> bool:
        """True if the score is that of decoded outputs."""
        writes = self.task.has_sources and self.task.numbers is None
        return writes and self.metric.name not in ("loss", "perplexity")

    @property
    def scored(self) -> tuple[int, int]:
        """The number of dev sources, or examples, that the score is of, and of all."""
        if not self.decodes:
            return len(self.dev.scored), len(self.dev.scored_pairs.src_lengths)
        total = len(self.dev.sources)
        return min(self.decoded or total, total), total

    def limited(self, examples: int, decoded: int | None) -> "Evaluator":
        """Return an evaluator with the loss of so many dev examples, that decodes so many."""
        return replace(self, dev=self.dev.limited(examples), decoded=decoded)

    def seconds(self) -> tuple[float, float]:
        """Return the seconds that the loss of a dev example takes, and the decoding of a source.

        They are measured, once what has to be compiled is. An untrained model does not end its
        outputs, so that a trained one takes less.
        """
        most = GPU_BATCH if self.fabric.device.type == "cuda" else PROBE
        count = min(most, len(self.dev.sources))

        def measured(decoded: int) -> float:
            metric = self.metric if decoded else DevMetric("loss", higher_is_better=False)
            small = replace(self.limited(count, decoded), batch_size=count, metric=metric)
            began = time.monotonic()
            small.evaluate()
            return time.monotonic() - began

        measured(count)
        loss, both = measured(0), measured(count)
        return loss / count, max(0.0, both - loss) / count

    def enlarged(self, decoded: int) -> "Evaluator":
        """Return an evaluator that decodes more of the dev set, or this one if there is no more."""
        is_sample = self.decodes and (self.decoded or math.inf) < len(self.dev.sources)
        if not is_sample or decoded <= cast(int, self.decoded):
            return self
        return replace(self, decoded=decoded)

    @torch.no_grad()
    def calibrate(self, train: EncodedPairs) -> dict[str, Tensor]:
        """Return what predictions need beside the weights that the model has now."""
        self.module.eval()
        with self.fabric.autocast():
            return self.task.output.calibrate(self.module, train, self.dev, self.fabric.device)

    def _token_scores(self) -> DevScores:
        """Return the loss, and metrics of greedily decoded outputs."""
        loss, health = self._loss_and_health()
        outputs = self.outputs() if self.task.has_sources else []
        references, name = self.dev.references[: len(outputs)], self.metric.name
        metrics, errors = {"loss": loss}, {}
        if name == "perplexity":
            metrics["perplexity"] = math.exp(min(loss, MAX_NATS))
        elif name != "loss":
            for each in dict.fromkeys([name, self.task.tokens.exact_metric]):
                texts = (outputs, references, self.task.target)
                metrics[each], errors[each] = score_with_error(each, *texts)
        return DevScores(metrics, health, outputs, errors)

    def _loss_and_health(self) -> tuple[float, "AttentionHealth | None"]:
        scored, total, tokens = self.dev.scored, 0.0, 0
        lengths = self.task.sort_lengths(self.dev.scored_pairs)[scored]
        for places in _by_length(lengths, self.batch_size):
            batch, keep, out = self._forward(scored[places], maps=False)
            gold = batch.tgt_out[keep]
            total += F.cross_entropy(out.logits.float(), gold, reduction="sum").item()
            tokens += len(gold) if out.certain is None else int((~out.certain).sum())
        return total / max(1, tokens), self._health() if self.task.has_sources else None

    def _forward(self, rows: np.ndarray, *, maps: bool) -> tuple[Batch, Tensor, ModelOutput]:
        """Return a batch of dev examples, its real target tokens, and what the model says to it."""
        batch = collate(self.dev.scored_pairs, rows).to(self.fabric.device)
        keep = batch.tgt_out != PAD
        sides = (batch.src, batch.src_lengths, batch.tgt_in)
        return batch, keep, self.module(*sides, keep=keep, need_weights=maps)

    def _health(self) -> "AttentionHealth | None":
        """Return the health of attention over some of the dev examples, of any length."""
        batch, keep, out = self._forward(self.dev.rows[: self.batch_size], maps=True)
        # several labels look at the same inputs, which is no collapse
        if "cross" not in out.maps or not self.task.tokens.exclusive:
            return None
        # layers count alike: one may attend where another does not
        layers = torch.stack([m.float().mean(dim=1) for m in out.maps["cross"]], dim=1)
        sources = self.task.input
        lengths = (sources.positions(batch.src_lengths), keep.sum(dim=1))
        health = attention_health(layers, *lengths)
        return health if sources.facts.ends_with_eos else health._replace(last=0.0)

    def outputs(self) -> list[str]:
        """Return greedy outputs of the first dev sources, in their order.

        Outputs are cut after twice the length of the longest reference, and some: a young model
        does not end them, and decoding on would cost more than the training before it.
        """
        corpus, first = self.dev.corpus, self.dev.rows[: self.decoded]
        if not len(first):
            return []
        longest = 2 * int(corpus.tgt_lengths[first].max()) + EXTRA
        own = {**self.task.target.decoding, **self.task.tokens.decoding(), "beam": 1}
        most = min(self.max_tgt_len, longest, own.get("max_len", longest))
        options = DecodingOptions(**{**own, "max_len": max(most, own.get("min_len", 0))})
        outputs = [""] * len(first)
        size = GPU_BATCH if self.fabric.device.type == "cuda" else BATCH
        for places in _by_length(corpus.src_lengths[first], size):
            batch = collate(corpus, first[places]).to(self.fabric.device)
            first_tokens = self.task.prefixed(options, batch.src.tolist())
            found = decode(
                cast(SequenceModel, self.module), batch.src, batch.src_lengths, first_tokens
            )
            for place, hypotheses in zip(places, found, strict=True):
                outputs[place] = self.task.target.decode(hypotheses[0].tokens)
        return outputs


def score_with_error(
    name: str, outputs: Sequence[str], references: list[list[str]], normalizer: Normalizer
) -> tuple[float, float]:
    """Return the value of a metric and its standard error, by the jackknife over sentences.

    The error is at least what one sentence counts: that all of a sample are right says no more.
    """
    texts = compared(outputs, references, normalizer)
    metric = find_metric(name, texts.references)
    rows = metric.measure(*texts)
    whole, count = rows.sum(axis=0, keepdims=True), len(rows)
    without = metric.values(whole - rows)
    error = math.sqrt((count - 1) * float(np.var(without)))
    least = (1.0 if metric.share else 100.0) / count
    return float(metric.values(whole)[0]), max(error, least)


def _by_length(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Return rows in batches of like lengths, the longest first to find out early about memory."""
    order, size = np.argsort(-lengths, kind="stable"), max(1, size)
    return [order[i : i + size] for i in range(0, len(order), size)]


class AttentionHealth(NamedTuple):
    """Statistics of cross-attention, over the target tokens of some examples.

    Attributes:
        sharpness: mean of the largest weight of each row.
        column: mean, over examples, of the largest share of the mass that one column gets.
        last: mean mass on the last source token, `</s>`.
        even: the sharpness of uniform attention.
    """

    sharpness: float
    column: float
    last: float
    even: float


def attention_health(
    weights: Float[Tensor, "batch heads q_len kv_len"],
    src_lengths: Int[Tensor, " batch"],
    tgt_lengths: Int[Tensor, " batch"],
) -> AttentionHealth:
    """Return statistics of the attention maps of a batch, averaged over heads."""
    rows = weights.float().mean(dim=1)
    sharp, column, last, even, count = 0.0, 0.0, 0.0, 0.0, 0
    for i, (src, tgt) in enumerate(zip(src_lengths.tolist(), tgt_lengths.tolist(), strict=True)):
        if src < 3 or tgt < 3:
            continue  # too short to tell a column from a diagonal
        one = rows[i, :tgt, :src]
        sharp += one.amax(dim=-1).mean().item()
        column += one.mean(dim=0).amax().item()
        last += one[:, -1].mean().item()
        even += 1 / src
        count += 1
    if not count:
        return AttentionHealth(0.0, 0.0, 0.0, 0.0)
    return AttentionHealth(sharp / count, column / count, last / count, even / count)


def describe_attention(now: AttentionHealth, before: AttentionHealth | None) -> str | None:
    """Return a sentence if attention has formed or collapsed since the last evaluation."""
    state = _state(now)
    if before is not None and state == _state(before):
        return None
    return {
        "eos": message("train.attention.eos", share=now.last),
        "column": message("train.attention.column", share=now.column),
        "formed": message("train.attention.formed", sharpness=now.sharpness, even=now.even),
        "even": None,
    }[state]


def _state(health: AttentionHealth) -> str:
    if health.last > 0.8:
        return "eos"
    if health.column > 0.8:
        return "column"
    if health.even and health.sharpness > max(0.5, 2 * health.even):
        return "formed"
    return "even"


def describe_outputs(
    outputs: Sequence[str], sources: Sequence[str], references: Sequence[Sequence[str]]
) -> str | None:
    """Return a sentence if the outputs hardly depend on the inputs.

    Outputs may be as uniform as the references, like the labels of a classifier: what counts is how
    often the most frequent output is wrong.
    """
    if len(set(sources)) < 10:
        return None
    (most, times), *_ = Counter(outputs).most_common(1)
    wrong = sum(o == most not in right for o, right in zip(outputs, references, strict=True))
    uniform = Counter(reference for right in references for reference in set(right))
    if times < 0.5 * len(outputs) or wrong < 0.25 * len(outputs):
        return None
    if max(uniform.values()) >= times:
        return None
    shown = most if len(most) <= 40 else most[:37] + "..."
    return message("train.outputs", times=times, count=len(outputs), shown=shown)
