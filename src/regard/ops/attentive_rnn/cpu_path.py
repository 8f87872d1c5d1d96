"""The attentive recurrence on the CPU: products by torch, everything else by compiled kernels."""

from typing import Any, Final, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.ops.attentive_rnn import cpu_kernels as kernels
from regard.ops.attentive_rnn.manual_autograd import (
    AutocastMatrix,
    CellSteps,
    StepParts,
)
from regard.ops.attentive_rnn.reference import AttentiveOutput
from regard.ops.attentive_rnn.torch_path import run_function
from regard.ops.cpu_runtime import VECTOR, array, round_up, run_shared

#: elements of a step (pairs of row and key, times features) that are worth one more thread
ELEMENTS_PER_THREAD: Final = 1 << 18


def attentive_rnn(*args: Any, **options: Any) -> AttentiveOutput:
    """The `torch` path, with the steps of this file."""
    return run_function(PARTS, *args, **options)


@final
class KernelSteps(CellSteps):
    """The steps of any cell: sums of products in place, then one kernel."""

    #: hidden-sized vectors saved per step, by the number of gates
    SAVED: Final = {1: 0, 3: 4, 4: 6}

    def __init__(
        self,
        inputs: Tensor,
        hidden: Tensor,
        context: AutocastMatrix,
        own: AutocastMatrix,
        bias: Tensor | None,
        memory: Tensor | None = None,
    ) -> None:
        super().__init__(inputs, hidden, context, own, bias)
        length, batch, gates = inputs.shape
        size = hidden.shape[1]
        self.is_gru, new = gates == 3 * size, inputs.new_empty
        self.u = new(batch, gates) if self.is_gru else self.bias[None]
        self.saved = new(length, batch, self.SAVED[gates // size] * size)
        tape = new(0, batch, size)
        if memory is not None:
            self.memory = tape = torch.empty_like(self.hidden)
            tape[0] = self.d_memory = memory
        tapes = (self.inputs, self.u, self.saved, tape, self.hidden)
        self.arrays = tuple(map(array, tapes))
        self.threads = _threads(batch * gates)

    def forward(self, t: int, context: Tensor) -> Tensor:
        """See `CellSteps`."""
        gates, hidden = self.inputs[t].addmm_(context, self.context.weight.T), self.hidden[t]
        if self.is_gru:
            torch.addmm(self.bias, hidden, self.own.weight.T, out=self.u)
        else:
            gates.addmm_(hidden, self.own.weight.T)

        def run(_: int, first: int, last: int) -> None:
            kernels.cell_forward(first, last, t, *self.arrays)

        run_shared(run, len(context), self.threads)
        return self.hidden[t + 1]

    def backward(self, t: int, d: Tensor, d_inputs: Tensor, d_own: Tensor) -> tuple[Tensor, Tensor]:
        """See `CellSteps`."""
        into, d_memory = torch.empty_like(d), d if self.memory is None else self.d_memory
        given = (array(d), array(d_memory), self.arrays[2], self.arrays[4])
        found = (array(d_inputs), array(d_own), array(into))

        def run(_: int, first: int, last: int) -> None:
            kernels.cell_backward(first, last, t, *given, *found)

        run_shared(run, len(d), self.threads)
        to_context = self.context.backward(d_inputs[t])
        if self.is_gru:
            return to_context, into.addmm_(d_own[t], self.own.weight)
        if self.memory is not None:
            self.d_memory = into
        return to_context, self.own.backward(d_inputs[t])


@final
class KernelAttention:
    """Attention by kernels, with the methods of `MemoryAttention` that steps call.

    Scores are additive if there is a `v`, else products.
    """

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        length: int,
        *,
        scale: float = 1.0,
        v: Tensor | None = None,
    ) -> None:
        self.keys, self.values = keys, values
        self.weights = values.new_empty(length, *mask.shape)
        (batch, kv_len, width), self.scale, self.v = keys.shape, scale, v
        wide, many = (0, 0) if v is None else (round_up(width, VECTOR), round_up(kv_len, 4))
        table = keys.new_zeros(batch, many, wide)
        sizes = np.zeros((batch, kv_len if many else 0), np.int32)
        w = keys.new_zeros(0) if v is None else F.pad(v.detach() * -2.0, (0, wide - width))
        self.source = kernels.AttendedSource(
            array(keys), array(values), array(mask), array(table), sizes, array(w)
        )
        if v is not None:
            kernels.prepare(self.source)
        self.threads = _threads(batch * kv_len * (width + values.shape[2]) // 2)
        self.scratch = [self._new_scratch(wide) for _ in range(self.threads)]
        self.sum_k = self.sum_v = keys

    def _new_scratch(self, wide: int) -> kernels.StepScratch:
        E, sum_q, step = (np.zeros((rows, wide), np.float32) for rows in (1, 1, 1))
        return kernels.StepScratch(E, sum_q[0], step[0], self.source.F, self.source.sizes)

    def start_back(self) -> None:
        """See `MemoryAttention`."""
        batch, many, wide = self.source.F.shape
        self.sum_k = self.values.new_zeros(batch, many, wide)
        self.sum_v = self.values.new_zeros(batch, wide)

    def forward(self, t: int, query: Tensor, context: Tensor) -> None:
        """See `MemoryAttention`."""
        asked, out = array(query), (array(self.weights[t]), array(context))

        def run(thread: int, first: int, last: int) -> None:
            scratch = self.scratch[thread]
            kernels.attend(first, last, self.scale, asked, self.source, scratch, *out)

        run_shared(run, len(query), self.threads)

    def backward(self, t: int, query: Tensor, d_context: Tensor, d_scores: Tensor) -> Tensor:
        """See `MemoryAttention`."""
        d_query = torch.empty_like(query)
        tensors = (self.weights[t], d_context, d_scores, self.sum_k, self.sum_v, d_query)
        asked, rest = array(query), tuple(map(array, tensors))

        def run(thread: int, first: int, last: int) -> None:
            scratch = self.scratch[thread]
            kernels.attend_backward(first, last, self.scale, asked, self.source, scratch, *rest)

        run_shared(run, len(query), self.threads)
        return d_query

    def key_gradients(self, queries: Tensor, d_scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `MemoryAttention`."""
        if self.v is None:
            mixed = torch.bmm(d_scores.permute(1, 2, 0), queries.transpose(0, 1))
            return mixed.mul_(self.scale), None
        kv_len, width = self.keys.shape[1:]
        d_keys = self.sum_k[:, :kv_len, :width] * (4.0 * self.v)
        return d_keys, self.sum_v[:, :width].sum(dim=0).mul_(-2.0)


PARTS: Final = StepParts(
    cells={"rnn": KernelSteps, "gru": KernelSteps, "lstm": KernelSteps},
    dot=KernelAttention,
    additive=KernelAttention,
)


def _threads(elements: int) -> int:
    """As many as torch may use, and as there is work for."""
    return max(1, min(torch.get_num_threads(), elements // ELEMENTS_PER_THREAD))
