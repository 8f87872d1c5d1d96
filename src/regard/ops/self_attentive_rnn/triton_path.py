# mypy: disable-error-code="no-untyped-call"
"""The self-attentive recurrence on the GPU: one launch for all steps, one for all steps back.

The kernels compute in float32. A product of a query's and a key's matrix is folded into one matrix
for the query, so that the keys are the hidden states themselves.
"""

from typing import Any, Final, NamedTuple, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.ops.backend import check_first_order
from regard.ops.recurrence.scores import GATES, AdditiveScore, Cell, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.reference import History, RecurrenceOptions, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.triton_kernels import backward_kernel, forward_kernel
from regard.ops.triton_launch import CooperativePlan, aligned, cooperative_plan, on

#: hidden-sized vectors saved per step for the backward pass: r z n u; i f g o, recalled, mixed
SAVED: Final = {"rnn": 0, "gru": 4, "lstm": 6}
# Numbers of one tape that a program holds at once, of which more do not fit into its registers;
# half as many where a step attends to several tapes.
ELEMENTS = {"forward": 8192, "backward": 4096}
# Slices of the features of a product that are multiplied side by side.
SLICES = 4
# Steps of the backward pass that add to the gradients of all earlier steps at once; a window of
# the interpreter is so short that tests have several.
WINDOW, INTERPRETED_WINDOW = 32, 2
# Numbers of a tape of gradients that a program holds while a window adds to it.
WINDOW_ELEMENTS = 4096


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    **options: Unpack[RecurrenceOptions],
) -> SelfAttentiveOutput:
    """The steps of the definition, from an empty history."""
    assert isinstance(score, DotScore | AdditiveScore)
    dtype, cell, bias = inputs.dtype, options["cell"], options["recurrent_bias"]
    real = reference.real_steps(inputs, options["lengths"])
    inputs, query_inputs = reference.without_padding(inputs, options["query_inputs"], real)
    steps = real.sum(dim=(1, 2), dtype=torch.int32)
    with torch.autocast(inputs.device.type, enabled=False):
        folded = _fold(score, query_inputs)
        hidden, contexts, memory, maps = SelfAttentiveKernels.apply(
            inputs.float(),
            folded.inputs,
            state.context.float(),
            recurrent_weight.float(),
            None if bias is None else bias.float(),
            folded.query,
            folded.key,
            folded.v,
            steps,
            cell,
            folded.scale,
            options["need_weights"],
        )
        key_weight = score.key_weight
        keys = hidden if key_weight is None else F.linear(hidden, key_weight.float())
    return SelfAttentiveOutput(
        hidden=hidden.where(real, 0.0).to(dtype),
        context=contexts[:, 1:].where(real, 0.0).to(dtype),
        weights=maps.where(real, 0.0)[:, None].to(dtype) if options["need_weights"] else None,
        state=History(
            context=contexts[:, -1].to(dtype),
            hidden=hidden.to(dtype),
            keys=keys.to(dtype),
            memory=memory.to(dtype) if cell == "lstm" else None,
            real=real[:, :, 0],
        ),
    )


class _FoldedScore(NamedTuple):
    """A score as the kernels take it: queries are `inputs + query h`, or `inputs + scale h`."""

    inputs: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None
    scale: float


def _fold(score: DotScore | AdditiveScore, inputs: Tensor | None) -> _FoldedScore:
    """Fold the matrices of a product into one, so that keys are hidden states."""
    Q, K = (None if w is None else w.float() for w in (score.query_weight, score.key_weight))
    inputs = None if inputs is None else inputs.float()
    if isinstance(score, AdditiveScore):
        return _FoldedScore(inputs, Q, K, score.v.float(), 1.0)
    if inputs is not None:
        inputs = score.scale * (inputs if K is None else inputs @ K)
    if Q is None and K is None:
        return _FoldedScore(inputs, None, None, None, score.scale)
    if K is None:
        assert Q is not None
        return _FoldedScore(inputs, score.scale * Q, None, None, 1.0)
    return _FoldedScore(inputs, score.scale * (K.T if Q is None else K.T @ Q), None, None, 1.0)


class SelfAttentiveArguments(NamedTuple):
    """Arguments of the kernels; the matrices are those of `_FoldedScore`."""

    inputs: Tensor
    query_inputs: Tensor | None
    context: Tensor
    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None
    lengths: Tensor
    cell: Cell
    scale: float
    need_weights: bool


class SelfAttentiveTapes(NamedTuple):
    """States, of contexts the one before the first step in front; and what goes back needs."""

    hidden: Tensor
    contexts: Tensor
    memory: Tensor
    kept: Tensor
    keys: Tensor
    queries: Tensor
    scores: Tensor
    stats: Tensor


class SelfAttentiveKernels(torch.autograd.Function):
    """All steps of the recurrence."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Hidden states, contexts (the one before the first in front), memories, and weights."""
        a = SelfAttentiveArguments(*inputs)
        tapes = _forward(a)
        ctx.set_materialize_grads(False)
        ctx.rest = a[9:]
        # the inputs of the steps are not needed
        ctx.save_for_backward(*a._replace(inputs=a.context, query_inputs=None)[:9], *tapes)
        return *tapes[:3], _maps(a, tapes) if a.need_weights else None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of the gates' inputs, the queries' inputs, the context, and of all weights."""
        check_first_order()
        saved = ctx.saved_tensors  # once: checkpointing recomputes them at the first access
        a, tapes = SelfAttentiveArguments(*saved[:9], *ctx.rest), SelfAttentiveTapes(*saved[9:])
        return *_backward(a, tapes, *grads), None, None, None, None


def _plan(a: SelfAttentiveArguments, like: Tensor, direction: str) -> CooperativePlan:
    (B, T), H = like.shape[:2], a.recurrent.shape[1]
    several = a.cell == "lstm" or a.v is not None
    plan = cooperative_plan(
        like,
        B,
        T,
        {"H": H, "S": H if a.key is None else a.key.shape[0]},
        padded=("H", "S"),
        elements=ELEMENTS[direction] >> several,
        max_parts=16,
        slices=SLICES,
        STAGES=3,
        K_STAGES=3,
    )
    interpreted = like.device.type != "cuda"
    # tiles of half the width where whole ones would leave half of the multiprocessors idle
    tiles = -(-B // 16) * -(-H // 16)
    plan.numbers["COLUMNS"] = 8 if interpreted or 2 * tiles <= plan.grid[0] else 16
    if direction == "backward":
        widest = max(plan.numbers["HP"], plan.numbers["SP"])
        plan.numbers["WINDOW"] = INTERPRETED_WINDOW if interpreted else WINDOW
        plan.numbers["BLOCK_W"] = max(1, min(16, WINDOW_ELEMENTS // widest))
    return plan


def _forward(a: SelfAttentiveArguments) -> SelfAttentiveTapes:
    (B, T, _), H = a.inputs.shape, a.recurrent.shape[1]
    S, is_lstm = H if a.key is None else a.key.shape[0], a.cell == "lstm"

    def empty(there: bool, *shape: int) -> Tensor:
        return a.inputs.new_empty(shape if there else (0,))

    tapes = hidden, contexts, memory, saved, keys, queries, scores, stats = SelfAttentiveTapes(
        empty(True, B, T, H),
        empty(True, B, T + 1, H),
        empty(is_lstm, B, T, H),
        empty(SAVED[a.cell] > 0, B, T, SAVED[a.cell] * H),
        empty(a.key is not None, B, T, S),
        empty(is_lstm or a.query is not None, B, T, S),
        empty(True, B, T, T),
        empty(True, B, T, 2),
    )
    contexts[:, 0] = a.context
    # no step writes the scores of later steps, and for `lstm` none writes the last step's key
    scores.zero_()
    if is_lstm and a.key is not None:
        keys[:, -1] = 0.0
    with on(a.inputs):
        plan = _plan(a, a.inputs, "forward")
        parts = a.inputs.new_empty(B * plan.parts * plan.numbers["HP"] * (1 + is_lstm))
        waits = torch.zeros(B + 1, dtype=torch.int32, device=a.inputs.device)
        given = (a.inputs, a.query_inputs, a.recurrent, a.bias, a.query, a.key, a.v, a.lengths)
        forward_kernel[plan.grid](
            *(a.inputs if x is None else aligned(x) for x in given),
            hidden, contexts, memory, saved, hidden if a.key is None else keys,
            queries if queries.numel() else hidden, scores, stats,
            parts, a.inputs.new_empty(2 * B * plan.parts), waits[1:], waits,
            a.scale, B, T, plan.parts, GATES=GATES[a.cell], HAS_BIAS=a.bias is not None,
            HAS_QUERY=a.query is not None, ADDITIVE=a.v is not None,
            **plan.numbers, **plan.options,
        )  # fmt: skip
    return tapes


def _maps(a: SelfAttentiveArguments, tapes: SelfAttentiveTapes) -> Tensor:
    """The weights, (batch, length, length): the softmax of the scores, zero where none is."""
    scores, stats = tapes.scores, tapes.stats
    steps = torch.arange(scores.shape[1], device=scores.device)
    seen = steps < steps[:, None] + (a.cell != "lstm")
    seen = seen & (steps < a.lengths[:, None, None])
    return torch.exp(scores - stats[..., :1]).mul_(stats[..., 1:]).where(seen, 0.0)


def _backward(
    a: SelfAttentiveArguments,
    tapes: SelfAttentiveTapes,
    d_hidden: Tensor | None,
    d_contexts: Tensor | None,
    d_memory: Tensor | None,
    d_maps: Tensor | None,
) -> tuple[Tensor | None, ...]:
    hidden, (B, T, H), is_lstm = tapes.hidden, tapes.hidden.shape, a.cell == "lstm"
    S = H if a.key is None else a.key.shape[0]

    def copied(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.contiguous().clone()

    d_hidden, d_memory = copied(d_hidden, hidden), copied(d_memory, tapes.memory)
    d_contexts = torch.zeros_like(tapes.contexts) if d_contexts is None else d_contexts
    d_keys = torch.zeros_like(tapes.keys)
    d_queries, d_gates = hidden.new_empty(B, T, S), hidden.new_empty(B, T, GATES[a.cell] * H)
    d_new = hidden.new_empty(B, T, H) if a.cell == "gru" else d_gates
    into = hidden.new_zeros(B, H)
    with on(hidden):
        plan = _plan(a, hidden, "backward")
        d_v = hidden.new_zeros(B * plan.parts if a.v is not None else 0, plan.numbers["SP"])
        waits = torch.zeros(B + 1, dtype=torch.int32, device=hidden.device)
        window = plan.numbers["WINDOW"]
        given = (
            *(None if x is None else x.T for x in (a.recurrent, a.query, a.key)),
            *(a.v, a.lengths, hidden, tapes.contexts, tapes.memory, tapes.kept),
            hidden if a.key is None else tapes.keys,
            tapes.queries if tapes.queries.numel() else hidden,
            *(tapes.scores, tapes.stats),
        )
        backward_kernel[plan.grid](
            *(hidden if x is None else aligned(x) for x in given),
            d_hidden, d_contexts[:, 1:].contiguous(), d_memory,
            hidden if d_maps is None else d_maps.contiguous(),
            d_keys, d_queries, d_gates, d_new, d_v,
            into, torch.empty_like(into), torch.empty_like(into),
            hidden.new_empty(B, window, T), hidden.new_empty(B, window, H),
            hidden.new_empty((B, window, H) if is_lstm else 0),
            hidden.new_empty(B * plan.parts * plan.numbers["SP"]), waits[1:], waits,
            a.scale, B, T, plan.parts, GATES=GATES[a.cell], HAS_QUERY=a.query is not None,
            ADDITIVE=a.v is not None, HAS_D_MAPS=d_maps is not None,
            **plan.numbers, **plan.options,
        )  # fmt: skip
    before = tapes.contexts[:, :-1]
    if is_lstm:
        into = into.masked_fill(a.lengths[:, None] > 0, 0.0)
        into += d_queries[:, 0] * a.scale if a.query is None else d_queries[:, 0] @ a.query
    d_inputs = torch.cat([d_gates[..., : 2 * H], d_new], dim=-1) if a.cell == "gru" else d_gates
    queried = before if is_lstm else hidden
    return (
        d_inputs,
        d_queries if is_lstm else None,
        into + d_contexts[:, 0],
        _product(d_gates, tapes.kept[..., 5 * H :] if is_lstm else before),
        None if a.bias is None else d_gates.sum(dim=(0, 1)),
        None if a.query is None else _product(d_queries, queried),
        None if a.key is None else _product(d_keys, hidden),
        None if a.v is None else d_v.sum(dim=0)[:S],
    )


def _product(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps."""
    return d.flatten(0, 1).T @ x.flatten(0, 1)
