"""Evaluation on the dev set: loss, metrics, and the health of attention."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.data import FrameScaler, SourceEncoder, collate
from regard.decoding import DecodingOptions, decode
from regard.evaluation import score
from regard.symbols import PAD
from regard.training.progress import Progress
from regard.training.task import Task


class AttentionHealth(NamedTuple):
    """How attention is spread, over the rows of real outputs.

    Attributes:
        sharpness: mean of the strongest weight of each row.
        column: largest share of all mass that one and the same column of a map gets, on average.
        last: mean mass on the last source token, `</s>`.
        even: what sharpness would be if every row looked at all tokens alike.
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
    """Measures maps of several examples, heads averaged."""
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
    """A sentence when attention has formed or collapsed since the last look; else None."""
    state, last_state = _state(now), None if before is None else _state(before)
    if state == last_state:
        return None
    return {
        "eos": f"attention has collapsed to </s>: it gets {now.last:.0%} of the mass.",
        "column": f"attention has collapsed to one column: it gets {now.column:.0%} of the mass "
        f"whatever the output; a smaller learning rate or more data may help.",
        "formed": f"attention has formed: the strongest weight of a row is {now.sharpness:.2f} on "
        f"average, where even attention has {now.even:.2f}.",
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
    """Return a sentence if the outputs hardly depend on the inputs, else None.

    Outputs may be as uniform as the references, as the labels of a classifier are: what counts is
    how often the most frequent output is wrong.
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
    return (
        f"the outputs hardly depend on the inputs: {times} of {len(outputs)} are {shown!r}; this "
        f"is normal early in training, later try a smaller learning rate or check that the two "
        f"columns belong together."
    )


BATCH = 128
#: sources that are decoded at once on a GPU, which waits for its host at every token
DECODED = 512
#: tokens that an output may have beyond twice those of a reference
EXTRA = 10
#: nats per token of a run that diverges, whose exponential is still a number
LARGEST = 700.0


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
        score: the value of the metric that decides.
        metrics: all values by name, the dev loss (nats per token) among them.
        train_loss: mean loss since the last evaluation.
        health: how attention is spread; None for models that look at nothing.
        examples: a few sources, references and outputs.
        outputs: all outputs, in the order of the dev set.
    """

    score: float
    metrics: dict[str, float]
    train_loss: float
    health: AttentionHealth | None
    examples: list[tuple[str, str, str]]
    outputs: list[str]

    def as_row(self, progress: Progress) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        return {
            "step": progress.step,
            "epoch": progress.epoch,
            "tokens": progress.tokens,
            "seconds": round(progress.seconds, 3),
            "train_loss": self.train_loss,
            **{f"dev_{name}": value for name, value in self.metrics.items()},
        }


@torch.no_grad()
def evaluate(task: Task, progress: Progress) -> Evaluation:
    """The loss of all dev pairs, and the metric of the first `eval_pairs` sources, greedily.

    Texts have no source that an output could answer: nothing is decoded.
    """
    task.module.eval()
    with task.fabric.autocast():
        loss, health = _loss_and_health(task)
        outputs = [] if task.config.reads_texts else _outputs(task)
    references = task.dev.references[: len(outputs)]
    metrics = {"loss": loss}
    if task.metric.name == "perplexity":
        metrics["perplexity"] = math.exp(min(loss, LARGEST))
    elif task.metric.name != "loss":
        for name in dict.fromkeys([task.metric.name, "exact"]):
            metrics[name] = score(name, outputs, references, normalizer=task.tgt_tokenizer).value
    total, count = progress.losses
    few = zip(task.dev.sources[: len(outputs)], references, outputs, strict=True)
    return Evaluation(
        score=metrics[task.metric.name],
        metrics=metrics,
        train_loss=total / count if count else float("nan"),
        health=health,
        examples=[(src, refs[0], out) for src, refs, out in list(few)[:4]],
        outputs=outputs,
    )


def _loss_and_health(task: Task) -> tuple[float, AttentionHealth | None]:
    corpus, total, tokens = task.dev.corpus, 0.0, 0
    health: AttentionHealth | None = None
    texts = task.config.reads_texts
    lengths = corpus.tgt_lengths if texts else corpus.src_lengths
    for number, rows in enumerate(_by_length(lengths, BATCH // task.config.join_lines)):
        batch = collate(corpus, rows).to(task.fabric.device)
        keep = batch.tgt_out != PAD
        look = number == 0 and not texts
        out = task.module(batch.src, batch.src_lengths, batch.tgt_in, keep=keep, need_weights=look)
        gold = batch.tgt_out[keep]
        total += F.cross_entropy(out.logits.float(), gold, reduction="sum").item()
        tokens += len(gold)
        if look and "cross" in out.maps:
            # heads of all layers count alike: a layer may look where another does not
            maps = torch.stack([m.float().mean(dim=1) for m in out.maps["cross"]], dim=1)
            health = _health(task.src_tokenizer, maps, batch.src_lengths, keep.sum(dim=1))
    return total / max(1, tokens), health


def _health(side: SourceEncoder, maps: Tensor, src: Tensor, tgt: Tensor) -> AttentionHealth:
    """How attention is spread. Vectors may have been joined, and have no `</s>` to collapse to."""
    if isinstance(side, FrameScaler):
        return attention_health(maps, side.positions(src), tgt)._replace(last=0.0)
    return attention_health(maps, src, tgt)


def _outputs(task: Task) -> list[str]:
    """Greedy outputs of the first dev sources, in their order."""
    corpus = task.dev.corpus
    first = task.dev.rows[: task.config.eval_pairs]
    options = DecodingOptions(beam=1, max_len=_longest(task, corpus.tgt_lengths[first]))
    outputs = [""] * len(first)
    size = DECODED if task.fabric.device.type == "cuda" else BATCH
    for places in _by_length(corpus.src_lengths[first], size):
        batch = collate(corpus, first[places]).to(task.fabric.device)
        found = decode(task.module, batch.src, batch.src_lengths, options)
        for place, hypotheses in zip(places, found, strict=True):
            outputs[place] = task.tgt_tokenizer.decode(hypotheses[0].tokens)
    return outputs


def _longest(task: Task, lengths: np.ndarray) -> int:
    """Tokens after which an output is cut: twice what any reference has, and some.

    A young model does not know how to end. What is so much too long is wrong however it goes on,
    and would cost an evaluation more time than the training before it.
    """
    return int(min(task.config.max_tgt_len, 2 * lengths.max() + EXTRA))


def _by_length(lengths: np.ndarray, size: int = BATCH) -> list[np.ndarray]:
    """Rows in batches of like lengths, longest first so that memory is found out at once."""
    order, size = np.argsort(-lengths, kind="stable"), max(1, size)
    return [order[i : i + size] for i in range(0, len(order), size)]
