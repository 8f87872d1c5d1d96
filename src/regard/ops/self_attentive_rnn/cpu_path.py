"""The self-attentive recurrence by kernels on the CPU, which take some rows through all steps."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.additive_attention.cpu_parts import STEP
from regard.ops.additive_attention.cpu_threads import share
from regard.ops.recurrence.cells import Cell
from regard.ops.recurrence.scores import ScoreFunction
from regard.ops.register import check_first_order
from regard.ops.self_attentive_rnn import cpu_kernels as kernels
from regard.ops.self_attentive_rnn import torch_path
from regard.ops.self_attentive_rnn.by_hand_back import Weights
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.manual_autograd import longer

#: rows that the way back needs of the gates of a step, per unit of the hidden state
KEPT = {"rnn": 0, "gru": 4, "lstm": 6}
# Products of a step and two numbers that are worth one more thread.
WORTH_A_THREAD = 1 << 18


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """The `torch` path, which computes in float32, with other steps."""
    return torch_path.by_steps(
        Recurrence.apply,
        inputs,
        recurrent_weight,
        score,
        state,
        cell=cell,
        recurrent_bias=recurrent_bias,
        query_inputs=query_inputs,
        lengths=lengths,
        need_weights=need_weights,
    )


class Recurrence(torch.autograd.Function):
    """All steps, and all steps back; arguments and results are those of `by_hand.py`."""

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        scale: float,
        real: Tensor,
        inputs: Tensor,
        query_inputs: Tensor | None,
        context: Tensor,
        hidden: Tensor,
        keys: Tensor,
        memory: Tensor | None,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
        """Tapes of hidden states, keys and memories; contexts; weights, (batch, length, steps)."""
        w = Weights(*weights)  # type: ignore[arg-type]
        (B, L), H, S = inputs.shape[:2], hidden.shape[2], keys.shape[2]
        new = inputs.new_empty
        tapes = kernels.Tapes(
            inputs=inputs.contiguous(),
            query_inputs=new(B, 0, S) if query_inputs is None else query_inputs.contiguous(),
            real=real[:, :0] if bool(real.all()) else real,
            hidden=longer(hidden, L),
            keys=longer(keys, L),
            memory=new(B, 0, H) if memory is None else longer(memory, L),
            contexts=torch.cat([context[:, None], new(B, L, H)], dim=1),
            maps=inputs.new_zeros(B, L, hidden.shape[1] + L),
            gates=new(B, L, KEPT[cell] * H),
            queries=new(B, L, S),
        )
        _run(kernels.forward, scale, _across(w), tapes)
        ctx.cell, ctx.scale = cell, scale
        unused = new(0, 0, 0)
        ctx.save_for_backward(*tapes._replace(inputs=unused, query_inputs=unused), *w)
        known = None if memory is None else tapes.memory
        return tapes.hidden, tapes.keys, known, tapes.contexts[:, 1:].clone(), tapes.maps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The kernel leaves what it takes to make the gradients of weights, in one product each."""
        check_first_order()
        tapes, w = kernels.Tapes(*ctx.saved_tensors[:10]), Weights(*ctx.saved_tensors[10:])
        flow = _flow(tapes, w, grads)
        _run(kernels.backward, ctx.scale, w, tapes, flow)
        return (None, None, None, *_gradients(ctx, tapes, w, flow))


def _across(w: Weights) -> Weights:
    """The way forward multiplies by the transposes."""
    query, key = (None if x is None else x.T for x in (w.query, w.key))
    return Weights(w.recurrent.T, w.bias, query, key, w.v)


def _flow(tapes: kernels.Tapes, w: Weights, grads: tuple[Tensor | None, ...]) -> kernels.Flow:
    d_hidden, d_keys, d_memory, d_contexts, d_maps = grads
    (B, L, steps), H, S = tapes.maps.shape, tapes.hidden.shape[2], tapes.keys.shape[2]
    gates = len(w.recurrent)

    def start(grad: Tensor | None, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if grad is None else grad.contiguous()

    wide = 0 if w.v is None else _up(S, STEP)
    d_inputs = tapes.hidden.new_empty(B, L, gates)
    return kernels.Flow(
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
        sum_k=tapes.keys.new_zeros(B, _up(steps, 4) if wide else 0, wide),
        sum_v=tapes.keys.new_zeros(B, wide),
    )


def _own(grad: Tensor) -> Tensor:
    """To be written to by a kernel, which takes no strides."""
    return grad.clone(memory_format=torch.contiguous_format)


def _gradients(
    ctx: Any, tapes: kernels.Tapes, w: Weights, flow: kernels.Flow
) -> tuple[Tensor | None, ...]:
    """Of inputs, history and weights."""
    is_lstm, (_, L, steps), S = ctx.cell == "lstm", tapes.maps.shape, tapes.keys.shape[2]
    before = steps - L
    past, hidden = tapes.maps[:, :, :before].mT, tapes.hidden[:, before:]
    if w.v is None:
        d_keys = flow.scores[:, :, :before].mT @ tapes.queries * ctx.scale
    else:
        d_keys = flow.sum_k[:, :before, :S] * (4.0 * w.v)
    # the lstm cell computes its gates from the new mixture, the others from the last context
    contexts = tapes.contexts[:, :-1]
    mixed = tapes.maps @ tapes.hidden if is_lstm else contexts
    return (
        flow.inputs,
        flow.queries if is_lstm else None,
        flow.into,
        flow.hidden[:, :before] + past @ flow.mixed,
        flow.keys[:, :before] + d_keys,
        flow.memory[:, :before] + past @ flow.recalled if is_lstm else None,
        _product(flow.gates, mixed),
        None if w.bias is None else flow.gates.sum(dim=(0, 1)),
        None if w.query is None else _product(flow.queries, contexts if is_lstm else hidden),
        None if w.key is None else _product(flow.keys[:, before:], hidden),
        None if w.v is None else -2.0 * flow.sum_v[:, :S].sum(dim=0),
    )


def _product(d: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weight, over all rows and steps."""
    return d.flatten(0, 1).T @ x.flatten(0, 1)


def _run(kernel: Any, scale: float, w: Weights, tapes: kernels.Tapes, *more: kernels.Flow) -> None:
    """A kernel, by as many threads as there is work for."""
    (B, L, steps), H, S = tapes.maps.shape, tapes.hidden.shape[2], tapes.keys.shape[2]
    gates = w.recurrent.numel() // H
    threads = max(1, min(torch.get_num_threads(), B, B * L * gates * H // WORTH_A_THREAD))
    # as many groups for each thread as for the others
    groups = threads * -(-B // (threads * kernels.GROUP))
    size = -(-B // groups)
    arrays = (_weights(w, gates), *(type(each)(*map(_array, each)) for each in (tapes, *more)))
    scratch = [_scratch(H, gates, steps, S, w.v is not None) for _ in range(threads)]

    def run(thread: int, first: int, last: int) -> None:
        kernel(first, last, size, scale, *arrays, scratch[thread])

    share(run, -(-B // size), threads)


def _weights(w: Weights, gates: int) -> kernels.Weights:
    none, zeros = np.zeros((0, 0), np.float32), np.zeros(gates, np.float32)
    features = np.zeros(0, np.float32)
    if w.v is not None:
        more = _up(len(w.v), STEP) - len(w.v)
        features = torch.nn.functional.pad(w.v.detach() * -2.0, (0, more)).numpy()
    return kernels.Weights(
        _array(w.recurrent),
        zeros if w.bias is None else _array(w.bias),
        none if w.query is None else _array(w.query),
        none if w.key is None else _array(w.key),
        features,
    )


def _scratch(H: int, gates: int, steps: int, S: int, additive: bool) -> kernels.Scratch:
    wide, many = (_up(S, STEP), _up(steps, 4)) if additive else (0, 0)
    rows = kernels.GROUP

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
        E=zeros(1, wide),
        F=zeros(rows, many, wide),
        sizes=np.zeros((rows, steps if additive else 0), np.int32),
        sum_q=zeros(wide),
        step=zeros(wide),
    )


def _array(x: Tensor) -> Any:
    x = x.detach().contiguous()
    return (x.view(torch.uint8) if x.dtype == torch.bool else x).numpy()


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
