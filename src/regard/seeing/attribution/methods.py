"""Attribution: how much each input mattered to an output, by several methods.

A weight says where a model looked, an attribution what mattered to it. Every method takes an
`InputScorer`, which is a model with one input and its outputs, and questions about outputs; it
returns one score per input for each question. `METHODS` is the table of them. None is right by
definition: `faithfulness` measures which one to trust on a model.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.messages import message
from regard.models.protocol import evaluating
from regard.preemption import in_turn
from regard.seeing.attribution.input_scorer import (
    Array,
    AttentionRecord,
    InputScorer,
    MethodUnavailableError,
    Question,
    row_values,
    values,
)

Scores = Float[np.ndarray, "questions inputs"]
Questions = Sequence[Question]

#: replacements that are tried for an ablated input
DRAWS: Final = 16
#: points of the path of integrated gradients, doubled until the sum of the scores is right
PATH_POINTS: Final = (16, 32, 64, 128, 256)
#: largest difference between the sum of the scores and that of the outputs, in nats or as a share
COMPLETENESS: Final = 0.01


def ablation(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the cost of each output, in nats, if an input is unknown.

    `log p(y_t | x) - log mean_z p(y_t | x with z in the place of x_i)`, where z are the
    replacements of x_i: the prediction difference of Robnik-Sikonja and Kononenko (2008,
    https://doi.org/10.1109/TKDE.2007.190734), which averages over the values of an unknown input.
    The input is replaced, not deleted: deletion would move all that follow it, and a model that
    counts would be charged for that. `unk` would be a vector that training has hardly seen. A
    difference of two logits is averaged as it is.
    """
    rng = np.random.default_rng(0)
    chosen = [_draw(rng, ids, DRAWS) for ids in scorer.replacements.others]
    changes = [{i: z} for i, ids in enumerate(chosen) for z in ids]
    found = scorer.replaced([{}, *changes], questions)
    starts = np.cumsum([0, *map(len, chosen[:-1])])
    counts = np.array([len(ids) for ids in chosen])[:, None]
    log_means = np.logaddexp.reduceat(found[1:], starts, axis=0) - np.log(counts)
    means = np.add.reduceat(found[1:], starts, axis=0) / counts
    contrasted = np.array([question.versus is not None for question in questions])
    costs: Array = found[0] - np.where(contrasted, means, log_means)
    return costs.T


def _draw(rng: np.random.Generator, ids: Sequence[int], count: int) -> list[int]:
    if len(ids) <= count:
        return list(ids)
    return [ids[i] for i in rng.choice(len(ids), count, replace=False)]


def gradient(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the norm of the gradient of each output's value for each input.

    `|| d log p(y_t | x) / d e_i ||`, the Euclidean norm, where e_i is the vector of x_i (Li et al.,
    2016, https://arxiv.org/abs/1506.01066). Gradients of parameters are not touched.
    """
    found: Array = np.linalg.norm(vector_gradients(scorer, questions, scorer.vectors()), axis=-1)
    return found


def integrated_gradients(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the gradient along a straight path from unknown inputs to the given ones.

    `(e_i - b_i) . mean_a d value(b + a (e - b)) / d e_i` over a from 0 to 1 (Sundararajan et al.,
    2017, https://arxiv.org/abs/1703.01365), where b_i is the mean vector of what may stand at
    position i. The scores sum to `value(e) - value(b)`. The mean is a Gauss-Legendre sum, whose
    points are doubled until this holds up to `COMPLETENESS`, for each question.
    """
    vectors, start = scorer.vectors(), scorer.baseline()
    path, change = vectors - start, _change(scorer, questions)
    scores, open_ = np.zeros((len(questions), scorer.inputs)), np.arange(len(questions))
    for points in PATH_POINTS:
        places, shares = np.polynomial.legendre.leggauss(points)
        asked = [questions[int(q)] for q in open_]
        scores[open_] = 0.0
        at_once = max(1, scorer.rows_at_once // len(asked))
        for part in in_turn(np.split(np.arange(points), range(at_once, points, at_once))):
            on_path = torch.from_numpy((places[part] + 1) / 2).to(path)[:, None, None]
            vectors_here = (start + on_path * path).repeat_interleave(len(asked), dim=0)
            slopes = vector_gradients(scorer, asked * len(part), vectors_here)
            slopes = slopes.reshape(len(part), len(asked), *path.shape)
            along = np.einsum("pqid,id->pqi", slopes, _array(path))
            scores[open_] += np.einsum("p,pqi->qi", shares[part] / 2, along)
        open_ = np.flatnonzero(_incomplete(scores, change))
        if not len(open_):
            break
    return scores


def _incomplete(scores: Scores, change: Array) -> Array:
    gap = np.abs(scores.sum(axis=1) - change)
    found: Array = gap > COMPLETENESS * np.maximum(1.0, np.abs(change))
    return found


def _change(scorer: InputScorer, questions: Questions) -> Array:
    """Return how far the value of each question is from that of unknown inputs."""
    rows = torch.stack([scorer.baseline(), scorer.vectors()])
    with evaluating(scorer.model), torch.no_grad():
        ends = _array(values(scorer.logits(rows), questions))
    change: Array = ends[1] - ends[0]
    return change


def _say_incomplete(scorer: InputScorer, questions: Questions, scores: Scores) -> str | None:
    count = int(_incomplete(scores, _change(scorer, questions)).sum())
    if not count:
        return None
    total, points = len(questions), PATH_POINTS[-1]
    return message("check.incomplete", count=count, total=total, points=points)


def attention(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the mean attention weight over all layers and heads."""
    found = scorer.attention()
    layers = found.cross or [found.at_outputs(heads) for heads in found.own]
    return _of_outputs(np.mean([heads.mean(axis=0) for heads in layers], axis=0), questions)


def rollout(scorer: InputScorer, questions: Questions) -> Scores:
    """Return attention followed down to the inputs; see `attention_rollout`."""
    found = scorer.attention()
    if not found.own:
        raise MethodUnavailableError(message("check.why.no-self-attention"))
    return _of_outputs(attention_rollout(found), questions)


def attention_rollout(found: AttentionRecord) -> Float[np.ndarray, "outputs inputs"]:
    """Return attention rollout: attention multiplied through all layers.

    `cross . A_n ... A_1` with `A_l = (mean over heads + identity) / 2`: the residual connection
    carries half of each position (Abnar and Zuidema, 2020, https://arxiv.org/abs/2005.00928). Where
    outputs are predicted from positions of the input itself, their rows of `A_n ... A_1`.
    """
    rolled = np.eye(found.own[0].shape[-1])
    for heads in found.own:
        rolled = (heads.mean(axis=0) + np.eye(len(rolled))) / 2 @ rolled
    if not found.cross:
        return found.at_outputs(rolled)
    followed: Array = np.mean([heads.mean(axis=0) for heads in found.cross], axis=0) @ rolled
    return followed


class Method(NamedTuple):
    """An attribution method.

    Attributes:
        score: returns one score per input for each question.
        contrasts: whether it can compare two tokens; methods that read attention weights cannot,
            since these do not depend on which token is asked about.
        note: takes the scores too; returns a remark about them, or None.
    """

    score: Callable[[InputScorer, Questions], Scores]
    contrasts: bool
    note: Callable[[InputScorer, Questions, Scores], str | None] = lambda *_: None


#: methods by name
METHODS: Final[dict[str, Method]] = {
    "ablation": Method(ablation, True),
    "gradient": Method(gradient, True),
    "integrated-gradients": Method(integrated_gradients, True, _say_incomplete),
    "attention": Method(attention, False),
    "rollout": Method(rollout, False),
}


def method_title(name: str) -> str:
    """Return the title of a method for tables and sentences."""
    return message(f"check.method.{name}")


#: methods whose scores take few passes
QUICK_METHODS: Final = "attention,ablation,gradient,rollout"


class Attributions(NamedTuple):
    """Scores by the name of the method, the reasons why others have none, and remarks."""

    scores: dict[str, Scores]
    unavailable: dict[str, str]
    notes: list[str]


def attribute(scorer: InputScorer, questions: Questions, methods: str = "all") -> Attributions:
    """Apply several methods to the same questions."""
    names, required = method_names(methods), methods not in ("all", QUICK_METHODS)
    contrast = any(question.versus is not None for question in questions)
    scores: dict[str, Scores] = {}
    unavailable: dict[str, str] = {}
    notes: list[str | None] = []
    for name in in_turn(names):
        try:
            if contrast and not METHODS[name].contrasts:
                raise MethodUnavailableError(message("check.why.versus"))
            scores[name] = METHODS[name].score(scorer, questions)
            notes.append(METHODS[name].note(scorer, questions, scores[name]))
        except MethodUnavailableError as error:
            unavailable[name] = str(error)
            if required:
                rule, value = (
                    "be possible for this model and question",
                    f"{name}, which is not ({error})",
                )
                raise ArgumentError("methods", rule, value, "try all") from None
    return Attributions(scores, unavailable, [note for note in notes if note is not None])


def method_names(methods: str) -> list[str]:
    """Return the names of a comma-separated list, or of all methods for `all`."""
    if methods == "all":
        return list(METHODS)
    chosen = list(dict.fromkeys(part.strip() for part in methods.split(",") if part.strip()))
    for name in chosen or [methods]:
        if name not in METHODS:
            raise ArgumentError(
                "methods", f"be all, or some of {', '.join(METHODS)}", repr(name), "choose of these"
            )
    return chosen


def _of_outputs(rows: Float[np.ndarray, "outputs inputs"], questions: Questions) -> Scores:
    return rows[[question.output for question in questions]]


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().double().cpu().numpy()
    return found


def vector_gradients(
    scorer: InputScorer,
    questions: Questions,
    vectors: Float[Tensor, "inputs dim"] | Float[Tensor, "questions inputs dim"],
) -> Float[np.ndarray, "questions inputs dim"]:
    """Return the gradient of each question's value at some vectors of the inputs.

    Row q of a batch has the value of question q, so one pass gives all. Questions may share their
    vectors, or have their own.
    """
    found, size = [], scorer.rows_at_once
    with evaluating(scorer.model), torch.inference_mode(False), torch.enable_grad():
        for start in in_turn(range(0, len(questions), size)):
            some = questions[start : start + size]
            rows = vectors[start : start + size] if vectors.ndim == 3 else vectors
            leaves = rows.detach().clone().expand(len(some), -1, -1).clone().requires_grad_()
            chosen = row_values(scorer.logits(leaves), some).sum()
            (slopes,) = torch.autograd.grad(chosen, leaves)
            found.append(_array(slopes))
    return np.concatenate(found)
