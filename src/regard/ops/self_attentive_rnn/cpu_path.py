"""The self-attentive recurrence by CPU kernels, which take some rows through all steps."""

from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.backend import check_first_order
from regard.ops.cpu_runtime import array, run_shared
from regard.ops.recurrence.scores import AdditiveScore, Cell, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import cpu_kernels as kernels
from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.reference import History, RecurrenceOptions, SelfAttentiveOutput

#: hidden-sized vectors saved per step for the backward pass
SAVED = {"rnn": 0, "gru": 4, "lstm": 6}
# Multiplications that are worth one more thread.
ELEMENTS_PER_THREAD = 1 << 18


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    **options: Unpack[RecurrenceOptions],
) -> SelfAttentiveOutput:
    """All steps by one differentiable function, in float32."""
    assert isinstance(score, DotScore | AdditiveScore)
    dtype, need_weights = inputs.dtype, options["need_weights"]
    real = reference.real_steps(inputs, options["lengths"])
    inputs, query_inputs = reference.without_padding(inputs, options["query_inputs"], real)
    all_real = torch.cat([state.real, real[:, :, 0]], dim=1)
    tensors = (
        inputs,
        query_inputs,
        *(state.context, state.hidden, state.keys, state.memory),
        *(recurrent_weight, options["recurrent_bias"], score.query_weight, score.key_weight),
        score.v if isinstance(score, AdditiveScore) else None,
    )
    # sums over the steps lose too much in half precision
    with torch.autocast("cpu", enabled=False):
        hidden, keys, memory, contexts, maps = SelfAttentiveCpuFunction.apply(  # type: ignore[no-untyped-call]
            options["cell"],
            score.scale if isinstance(score, DotScore) else 1.0,
            all_real,
            *(None if tensor is None else tensor.float() for tensor in tensors),
        )
    return SelfAttentiveOutput(
        hidden=hidden[:, state.hidden.shape[1] :].where(real, 0.0).to(dtype),
        context=contexts.where(real, 0.0).to(dtype),
        weights=maps.where(real, 0.0)[:, None].to(dtype) if need_weights else None,
        state=History(
            context=contexts[:, -1].to(dtype),
            hidden=hidden.to(dtype),
            keys=keys.to(dtype),
            memory=None if memory is None else memory.to(dtype),
            real=all_real,
        ),
    )


class RecurrentWeights(NamedTuple):
    """Weights of the recurrence and of its score function, whose `v` is None for products."""

    recurrent: Tensor
    bias: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None


class SelfAttentiveCpuFunction(torch.autograd.Function):
    """All steps of the recurrence.

    The tapes are allocated once, and the backward pass walks them from the end: the gradient of h_p
    is complete when step p is reached, since only later steps attend to it.
    """

    @staticmethod
    def forward(
        ctx: Any, cell: Cell, scale: float, real: Tensor, *tensors: Any
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Tapes of hidden states, keys and memories; contexts; weights, (batch, length, steps).

        Args:
            ctx: of autograd.
            cell: "rnn", "gru" or "lstm".
            scale: of a score that is a product.
            real: False at padding, (batch, steps).
            tensors: inputs, those of queries, context and tapes of the history, weights.
        """
        inputs, query_inputs, context, hidden, keys, memory, *weights = tensors
        w = RecurrentWeights(*weights)
        (B, L), H, S = inputs.shape[:2], hidden.shape[2], keys.shape[2]
        new = inputs.new_empty
        tapes = kernels.KernelTapes(
            inputs=inputs.contiguous(),
            query_inputs=new(B, 0, S) if query_inputs is None else query_inputs.contiguous(),
            real=real[:, :0] if bool(real.all()) else real,
            hidden=longer(hidden, L),
            keys=longer(keys, L),
            memory=new(B, 0, H) if memory is None else longer(memory, L),
            contexts=torch.cat([context[:, None], new(B, L, H)], dim=1),
            maps=inputs.new_zeros(B, L, hidden.shape[1] + L),
            gates=new(B, L, SAVED[cell] * H),
            queries=new(B, L, S),
        )
        _run(kernels.forward, scale, _transposed(w), tapes)
        ctx.cell, ctx.scale = cell, scale
        unused = new(0, 0, 0)
        ctx.save_for_backward(*tapes._replace(inputs=unused, query_inputs=unused), *w)
        known = None if memory is None else tapes.memory
        return tapes.hidden, tapes.keys, known, tapes.contexts[:, 1:].clone(), tapes.maps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the weights are one product each, after the kernel."""
        check_first_order()
        saved = ctx.saved_tensors  # once: checkpointing recomputes them at the first access
        tapes, w = kernels.KernelTapes(*saved[:10]), RecurrentWeights(*saved[10:])
        d = _start_gradients(tapes, w, grads)
        _run(kernels.backward, ctx.scale, w, tapes, d)
        return (None, None, None, *_gradients(ctx, tapes, w, d))


def longer(tape: Tensor, length: int) -> Tensor:
    """A tape with room for more steps."""
    room = tape.new_empty(tape.shape[0], tape.shape[1] + length, *tape.shape[2:])
    room[:, : tape.shape[1]] = tape
    return room


def weight_gradient(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a matrix, summed over all rows and steps."""
    return d.flatten(0, 1).T @ x.flatten(0, 1)


def _transposed(w: RecurrentWeights) -> RecurrentWeights:
    """The forward pass multiplies by the transposes."""
    query, key = (None if x is None else x.T for x in (w.query, w.key))
    return RecurrentWeights(w.recurrent.T, w.bias, query, key, w.v)


def _start_gradients(
    tapes: kernels.KernelTapes, w: RecurrentWeights, grads: tuple[Tensor | None, ...]
) -> kernels.KernelGradients:
    d_hidden, d_keys, d_memory, d_contexts, d_maps = grads
    (B, L, steps), H, S = tapes.maps.shape, tapes.hidden.shape[2], tapes.keys.shape[2]
    gates = len(w.recurrent)

    def start(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.contiguous()

    wide = 0 if w.v is None else S
    d_inputs = tapes.hidden.new_empty(B, L, gates)
    return kernels.KernelGradients(
        hidden=start(d_hidden, tapes.hidden),
        keys=torch.zeros_like(tapes.keys) if d_keys is None else _own(d_keys),
        memory=start(d_memory, tapes.memory),
        contexts=start(d_contexts, tapes.contexts[:, 1:]),
        scores=torch.zeros_like(tapes.maps) if d_maps is None else _own(d_maps),
        mixed=tapes.hidden.new_empty(B, L, H),
        recalled=tapes.hidden.new_empty(B, L if tapes.memory.shape[1] else 0, H),
        inputs=d_inputs,
        gates=torch.empty_like(d_inputs) if gates == 3 * H else d_inputs,
        queries=torch.empty_like(tapes.queries),
        into=tapes.hidden.new_zeros(B, H),
        sum_k=tapes.keys.new_zeros(B, steps if wide else 0, wide),
        sum_v=tapes.keys.new_zeros(B, wide),
    )


def _own(grad: Tensor) -> Tensor:
    """A copy for a kernel to write to, which takes no strides."""
    return grad.clone(memory_format=torch.contiguous_format)


def _gradients(
    ctx: Any, tapes: kernels.KernelTapes, w: RecurrentWeights, d: kernels.KernelGradients
) -> tuple[Tensor | None, ...]:
    """Gradients of inputs, history and weights."""
    is_lstm, (_, L, steps) = ctx.cell == "lstm", tapes.maps.shape
    before = steps - L
    past, hidden = tapes.maps[:, :, :before].mT, tapes.hidden[:, before:]
    if w.v is None:
        d_keys = d.scores[:, :, :before].mT @ tapes.queries * ctx.scale
    else:
        d_keys = d.sum_k[:, :before] * (4.0 * w.v)
    # the lstm cell computes its gates from the new mixture, the others from the last context
    contexts = tapes.contexts[:, :-1]
    mixed = tapes.maps @ tapes.hidden if is_lstm else contexts
    return (
        d.inputs,
        d.queries if is_lstm else None,
        d.into,
        d.hidden[:, :before] + past @ d.mixed,
        d.keys[:, :before] + d_keys,
        d.memory[:, :before] + past @ d.recalled if is_lstm else None,
        weight_gradient(d.gates, mixed),
        None if w.bias is None else d.gates.sum(dim=(0, 1)),
        None if w.query is None else weight_gradient(d.queries, contexts if is_lstm else hidden),
        None if w.key is None else weight_gradient(d.keys[:, before:], hidden),
        None if w.v is None else -2.0 * d.sum_v.sum(dim=0),
    )


def _run(
    kernel: Any,
    scale: float,
    w: RecurrentWeights,
    tapes: kernels.KernelTapes,
    *more: kernels.KernelGradients,
) -> None:
    """Run a kernel by as many threads as there is work for."""
    (B, L), H, S = tapes.maps.shape[:2], tapes.hidden.shape[2], tapes.keys.shape[2]
    gates = w.recurrent.numel() // H
    threads = max(1, min(torch.get_num_threads(), B, B * L * gates * H // ELEMENTS_PER_THREAD))
    # as many groups for each thread as for the others
    groups = threads * -(-B // (threads * kernels.GROUP))
    size = -(-B // groups)
    arrays = (_weights(w, gates), *(type(each)(*map(array, each)) for each in (tapes, *more)))
    scratch = [_scratch(H, gates, S, w.v is not None) for _ in range(threads)]

    def run(thread: int, first: int, last: int) -> None:
        kernel(first, last, size, scale, *arrays, scratch[thread])

    run_shared(run, -(-B // size), threads)


def _weights(w: RecurrentWeights, gates: int) -> kernels.KernelWeights:
    none, zeros = np.zeros((0, 0), np.float32), np.zeros(gates, np.float32)
    features = np.zeros(0, np.float32) if w.v is None else array(w.v * -2.0)
    return kernels.KernelWeights(
        array(w.recurrent),
        zeros if w.bias is None else array(w.bias),
        none if w.query is None else array(w.query),
        none if w.key is None else array(w.key),
        features,
    )


def _scratch(H: int, gates: int, S: int, additive: bool) -> kernels.Scratch:
    wide, rows = S if additive else 0, kernels.GROUP

    def zeros(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    return kernels.Scratch(
        context=zeros(rows, H),
        hidden=zeros(rows, H),
        mixed=zeros(rows, H),
        recalled=zeros(rows, H),
        asker=zeros(rows, H),
        gates=zeros(rows, gates),
        query=zeros(rows, S),
        key=zeros(rows, S),
        sum_q=zeros(wide),
        step=zeros(wide),
    )
