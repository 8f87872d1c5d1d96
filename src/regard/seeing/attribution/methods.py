"""Attribution: how much each input mattered to an output, by several methods.

A weight says where a model looked, an attribution what mattered to it. Every method takes an
`InputScorer`, which is a model with one input and its outputs, and questions about outputs; it
returns one score per input for each question. `METHODS` is the table of them. None is right by
definition: `faithfulness` measures which one to trust on a model.

AttnLRP: layer-wise relevance propagation through attention, as rules of differentiation.

Achtibat et al. (2024, https://arxiv.org/abs/2402.05602) derive how relevance goes back through a
Transformer. Where a rule passes on the relevance `R = y g` of an output y, with g its gradient, it
can be written as another gradient g, so that all of it is one backward pass and a product with the
input at the end (section 3.3 and appendix A.2 of the paper):

- a linear layer, a sum and a softmax have their own gradients;
- an activation `y = f(x)` passes on what it gets: its slope is `f(x) / x`;
- a product of two factors that depend on the input, as in attention, gives each of them half;
- layer normalisation passes on what it gets: its standard deviation counts as a constant.

The rules replace torch's functions while the model runs, so that they hold for any module that
calls these functions, `F.scaled_dot_product_attention` included.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import ArgumentError
from regard.layers import ContentMemory, GatedConvolution, RNNStack, SelfAttentiveRNN
from regard.messages import message
from regard.models.protocol import evaluating
from regard.preemption import in_turn, preemptible
from regard.seeing.attribution.input_scorer import (
    Array,
    AttentionRecord,
    InputScorer,
    MethodUnavailableError,
    Question,
    row_logits,
    row_values,
    values,
)

#: layers for which the paper has no rule
WITHOUT_RULE: Final = (
    nn.RNNBase,
    nn.RNNCellBase,
    RNNStack,
    SelfAttentiveRNN,
    ContentMemory,
    GatedConvolution,
)


def check_layers(model: nn.Module) -> None:
    """Raise MethodUnavailableError if a layer of the model has no rule."""
    for module in model.modules():
        if isinstance(module, WITHOUT_RULE):
            kind = type(module).__name__
            raise MethodUnavailableError(message("check.why.only-transformers", layer=kind))


@contextmanager
def relevance_rules(model: nn.Module) -> Iterator[None]:
    """Let gradients of the model follow the rules inside the block; values are unchanged.

    Parameters require no gradient meanwhile: then a tensor requires one if it depends on the input.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        with _Rules():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


class _Rules(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return rule(func, *args, **(kwargs or {}))


def _part(x: Any, share: float) -> Any:
    """Return `x` with a share of its gradient."""
    return share * x + ((1 - share) * x).detach()


def _activation(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("inplace", None)
    return _with_slope(x, func(x, *args, **kwargs))


def _with_slope(x: Tensor, y: Tensor) -> Tensor:
    """Return `y` with the slope `y / x`; where x is 0, so is y, and no relevance arrives."""
    slope = torch.where(x == 0, 0.0, y / torch.where(x == 0, 1.0, x)).detach()
    linear = slope * x
    return linear + (y - linear).detach()


def _depends_on_input(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _product(func: Callable[..., Tensor], a: Any, b: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Give half of the relevance to each factor if both depend on the input."""
    if _depends_on_input(a) and _depends_on_input(b):
        a, b = _part(a, 0.5), _part(b, 0.5)
    return func(a, b, *args, **kwargs)


def _attention(
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Weights and values share the relevance, then queries and keys that of the weights."""
    ours = [_depends_on_input(part) for part in (query, key, value)]
    of_weights = 0.5 if ours[2] else 1.0
    of_each = of_weights / 2 if ours[0] and ours[1] else of_weights
    of_value = 0.5 if ours[0] or ours[1] else 1.0
    return func(_part(query, of_each), _part(key, of_each), _part(value, of_value), *args, **kwargs)


def _layer_norm(
    func: Callable[..., Tensor],
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(dim=axes, keepdim=True)
    deviation = (centred.pow(2).mean(dim=axes, keepdim=True) + eps).sqrt().detach()
    scaled = centred / deviation
    scaled = scaled if weight is None else scaled * weight
    return scaled if bias is None else scaled + bias


def _rms_norm(
    func: Callable[..., Tensor],
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    scaled = x / (x.pow(2).mean(dim=axes, keepdim=True) + least).sqrt().detach()
    return scaled if weight is None else scaled * weight


def _constant(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Treat the result as a constant: the deviation of a norm that is written out."""
    return func(*args, **kwargs).detach()


ACTIVATIONS: Final = (
    *(F.relu, torch.relu, Tensor.relu, F.tanh, torch.tanh, Tensor.tanh),
    *(F.gelu, F.silu, F.elu, F.leaky_relu, F.mish, F.relu6, F.hardswish),
)
PRODUCTS: Final = (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
)
#: rules by the function that they replace; each takes the function and its arguments
RULES: Final[dict[Callable[..., Any], Callable[..., Tensor]]] = {
    **dict.fromkeys(ACTIVATIONS, _activation),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys((torch.rsqrt, Tensor.rsqrt), _constant),
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}


Scores = Float[np.ndarray, "questions inputs"]
Questions = Sequence[Question]

#: replacements that are tried for an ablated input
DRAWS: Final = 16
#: points of the path of integrated gradients, doubled until the sum of the scores is right
PATH_POINTS: Final = (16, 32, 64, 128, 256)
#: largest difference between the sum of the scores and that of the outputs, in nats or as a share
COMPLETENESS: Final = 0.01


def ablation(
    scorer: InputScorer, questions: Questions, *, draws: int = DRAWS, seed: int = 0
) -> Scores:
    """Return the cost of each output, in nats, if an input is unknown.

    `log p(y_t | x) - log mean_z p(y_t | x with z in the place of x_i)`, where z are the
    replacements of x_i: the prediction difference of Robnik-Sikonja and Kononenko (2008,
    https://doi.org/10.1109/TKDE.2007.190734), which averages over the values of an unknown input.
    The input is replaced, not deleted: deletion would move all that follow it, and a model that
    counts would be charged for that. `unk` would be a vector that training has hardly seen. A
    difference of two logits is averaged as it is.
    """
    rng = np.random.default_rng(seed)
    chosen = [_draw(rng, ids, draws) for ids in scorer.replacements.others]
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


def input_gradient(scorer: InputScorer, questions: Questions) -> Scores:
    """Return gradient times input: the norm of `e_i * d log p(y_t | x) / d e_i`, number by number.

    Each product is the effect of setting one number of a token's vector to zero if the model were
    linear (Denil et al., 2014, https://arxiv.org/abs/1412.6815). Their norm is taken and not their
    sum, which tells little behind layer normalisation: a gradient through it is orthogonal to its
    input (Ali et al., 2022, https://arxiv.org/abs/2202.07304). Positional encodings are not part
    of the vector.
    """
    vectors = scorer.vectors()
    effects = vector_gradients(scorer, questions, vectors) * _array(vectors - scorer.origin())
    found: Array = np.linalg.norm(effects, axis=-1)
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
            along = _times(slopes, path).reshape(len(part), len(asked), -1)
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
    return (
        f"integrated gradients of {count} of {len(questions)} outputs do not sum to the difference "
        f"that they explain, even with {PATH_POINTS[-1]} points"
    )


def relevance(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the relevance that AttnLRP propagates from the logit of a token to each input.

    Layer-wise relevance propagation for Transformers (Achtibat et al., 2024,
    https://arxiv.org/abs/2402.05602), as gradient times input under changed rules of
    differentiation: see `seeing.attribution.relevance`.
    """
    check_layers(scorer.model)
    vectors = scorer.vectors()
    # hooks and gradients of the parameters are changed for all threads: no other work is let in
    with preemptible(lambda: None), relevance_rules(scorer.model):
        slopes = vector_gradients(scorer, questions, vectors, value=row_logits)
    return _times(slopes, vectors - scorer.origin())


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


def norms(scorer: InputScorer, questions: Questions) -> Scores:
    """Return the norms of what attention carries, as shares of a row, mean over layers.

    See `seeing.attribution.input_scorer` for the norms (Kobayashi et al., 2020).
    """
    found = scorer.attention()
    layers = found.cross_norms if found.cross else found.own_norms
    if layers is None:
        raise MethodUnavailableError(message("check.why.no-values"))
    rows = layers if found.cross else [found.at_outputs(layer) for layer in layers]
    sums = [np.maximum(row.sum(axis=1, keepdims=True), 1e-300) for row in rows]
    return _of_outputs(
        np.mean([row / total for row, total in zip(rows, sums, strict=True)], axis=0), questions
    )


class Method(NamedTuple):
    """An attribution method.

    Attributes:
        score: returns one score per input for each question.
        contrasts: whether it can compare two tokens; methods that read attention weights cannot,
            since these do not depend on which token is asked about.
        note: takes the scores too; returns a remark about them, or None.
        rows: returns the most rows that it runs, given the number of inputs and of outputs; a
            backward pass counts as two.
    """

    score: Callable[[InputScorer, Questions], Scores]
    contrasts: bool
    note: Callable[[InputScorer, Questions, Scores], str | None] = lambda *_: None
    rows: Callable[[int, int], int] = lambda inputs, outputs: 3 * outputs


#: methods by name
METHODS: Final[dict[str, Method]] = {
    "ablation": Method(ablation, True, rows=lambda inputs, _: 1 + DRAWS * inputs),
    "gradient": Method(gradient, True),
    "input-gradient": Method(input_gradient, True),
    "integrated-gradients": Method(
        integrated_gradients,
        True,
        _say_incomplete,
        lambda _, outputs: 4 + 3 * sum(PATH_POINTS) * outputs,
    ),
    "relevance": Method(relevance, True),
    "attention": Method(attention, False, rows=lambda *_: 2),
    "rollout": Method(rollout, False, rows=lambda *_: 2),
    "norms": Method(norms, False, rows=lambda *_: 2),
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


def _times(slopes: Float[np.ndarray, "rows inputs dim"], vectors: Tensor) -> Scores:
    found: Array = np.einsum("rid,id->ri", slopes, _array(vectors))
    return found


def vector_gradients(
    scorer: InputScorer,
    questions: Questions,
    vectors: Float[Tensor, "inputs dim"] | Float[Tensor, "questions inputs dim"],
    value: Callable[[Tensor, Questions], Tensor] = row_values,
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
            chosen = value(scorer.logits(leaves), some).sum()
            (slopes,) = torch.autograd.grad(chosen, leaves)
            found.append(_array(slopes))
    return np.concatenate(found)
