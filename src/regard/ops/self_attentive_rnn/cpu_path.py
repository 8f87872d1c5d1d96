"""The self-attentive recurrence by hand, with kernels for the CPU where a step looks back."""

from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.additive_attention.cpu_kernels import STEP
from regard.ops.self_attentive_rnn import cpu_kernels as kernels
from regard.ops.self_attentive_rnn import torch_path
from regard.ops.self_attentive_rnn.cells import Cell
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.looking import Kit, Look
from regard.ops.self_attentive_rnn.score import Score


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: Score,
    state: History,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """The `torch` path, which computes in float32, with another way to look back."""
    return torch_path.by_kit(
        CPU_KIT,
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


def _dots(tape: Tensor, vector: Tensor, end: int) -> Tensor:
    out = tape.new_empty(len(tape), end)
    kernels.dots(_array(tape), _array(vector), out.numpy())
    return out


def _mix(factors: Tensor, tape: Tensor, first: int) -> Tensor:
    out = tape.new_empty(len(tape), tape.shape[2])
    kernels.mix(factors.detach().numpy(), _array(tape), first, out.numpy())
    return out


@final
class _FactoredLook(Look):
    """`v . tanh(query + key)` by exponentials, of which those of the keys are kept.

    Attributes:
        F: exponentials of the first `filled` keys, and their sizes.
        sum_k, sum_v: what the way back adds up.
    """

    def __init__(self, keys: Tensor, v: Tensor) -> None:
        B, steps, width = keys.shape
        wide, many = -(-width // STEP) * STEP, -(-steps // 4) * 4
        self.v, self.keys, self.filled = v.detach(), _array(keys), 0
        self.F, self.sum_k = np.zeros((2, B, many, wide), np.float32)
        self.sizes = np.zeros((B, steps), np.int32)
        self.w = torch.nn.functional.pad(self.v * -2.0, (0, wide - width)).numpy()
        self.E, self.sum_v = np.zeros((1, wide), np.float32), np.zeros((3, wide), np.float32)

    def scores(self, query: Tensor, end: int) -> Tensor:
        """Without `sum_j v_j`, which a softmax does not see."""
        out = query.new_empty(len(query), end)
        kernels.additive_scores(*self._seen(query, end), self.w, self.E, out.numpy())
        return out

    def back(self, query: Tensor, d_scores: Tensor) -> Tensor:
        """From one step's scores to its query; keys and v have their part added up."""
        sums = query.new_empty(len(query), len(self.w))
        seen = self._seen(query, d_scores.shape[1])
        given = _array(d_scores), self.E, sums.numpy(), self.sum_k, self.sum_v
        kernels.additive_back(*seen, *given)
        return sums[:, : len(self.v)] * (4.0 * self.v)

    def key_gradients(self, first: int, last: int) -> Tensor:
        """Of some keys, as far as steps have been done."""
        return torch.from_numpy(self.sum_k)[:, first:last, : len(self.v)] * (4.0 * self.v)

    def v_gradient(self) -> Tensor:
        """`de` is the constant of `tanh = 1 - 2 r`."""
        sums = torch.from_numpy(self.sum_v)
        return sums[2, 0] - 2.0 * sums[0, : len(self.v)]

    def _seen(self, query: Tensor, end: int) -> tuple[Any, ...]:
        """Query and keys as the kernels take them."""
        if end > self.filled:
            bits = self.keys.view(np.int32)
            kernels.fill_keys(self.keys, bits, self.filled, end, self.F, self.sizes)
            self.filled = end
        q = _array(query)[:, None]
        return q, q.view(np.int32), self.keys, self.F, self.sizes


def _array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()


CPU_KIT = Kit(_dots, _mix, _FactoredLook)
