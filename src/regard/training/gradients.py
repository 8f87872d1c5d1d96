"""The gradient of a batch: step by step, or replayed from what a GPU has recorded."""

import contextlib
import warnings
from collections import Counter
from typing import Final, NamedTuple, final

import torch
from torch import Tensor, nn

from regard.data import Batch, BatchShape
from regard.training.fabric import Fabric

#: batches of a shape that are computed step by step before it is recorded: in the first one kernels
#: are compiled and libraries make their choices, and a shape that never comes again is not worth it
BEFORE: Final = 2
#: recordings at most; each takes some memory of the host
MOST: Final = 256


class _Recording(NamedTuple):
    """A graph with the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor


@final
class RecordedGradients:
    """Losses and gradients of batches that have one of a few shapes, on one GPU.

    A step of a small model has a thousand kernels that the GPU runs faster than the host can ask
    for them. So each shape is recorded once as a CUDA graph, which the host then asks for as a
    whole. Gradients lie in memory of their own, where every graph leaves them.

    Args:
        fabric: knows how to go backward.
        model: takes a batch, gives its loss.
    """

    def __init__(self, fabric: Fabric, model: nn.Module) -> None:
        self.fabric, self.model = fabric, model
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradients = [torch.zeros_like(p) for p in self.parameters]
        self.seen: Counter[BatchShape] = Counter()
        self.recordings: dict[BatchShape, _Recording] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(fabric.device)  # type: ignore[no-untyped-call]
        self.records = True

    def __call__(self, batch: Batch, scale: float) -> Tensor:
        """The loss of a batch times `scale`; its gradient is left with the parameters.

        Args:
            batch: one that has been padded to a shape, on the host.
            scale: what its summed loss is multiplied by.
        """
        shape = BatchShape(len(batch.src), batch.src.shape[1], batch.tgt_in.shape[1])
        sides = _sides(batch)
        self.seen[shape] += 1
        recording = self.recordings.get(shape)
        if recording is None:
            every = (*sides, batch.tgt_places.pin_memory())
            moved = [side.to(self.fabric.device, non_blocking=True) for side in every]
            inputs = (*moved, torch.full((), scale, device=self.fabric.device))
            if not self._worth_it(shape) or not self._record(shape, inputs):
                loss = self._compute(inputs)
                self._hand_over()
                return loss
            recording = self.recordings[shape]
        else:
            *held, _, factor = recording.inputs  # all places are kept, in every batch of a shape
            for there, side in zip(held, sides, strict=True):
                there.copy_(side, non_blocking=True)
            factor.fill_(scale)
        recording.graph.replay()
        self._hand_over()
        return recording.loss.clone()

    def _hand_over(self) -> None:
        """Gives each parameter its gradient, which an optimiser takes away again."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def _worth_it(self, shape: BatchShape) -> bool:
        return self.records and self.seen[shape] > BEFORE and len(self.recordings) < MOST

    def _compute(self, inputs: tuple[Tensor, ...]) -> Tensor:
        *sides, scale = inputs
        loss: Tensor = self.model(*sides, padded=True) * scale
        # where nothing is there to add to, nothing is added: that would be a kernel for each
        for parameter in self.parameters:
            parameter.grad = None
        self.fabric.backward(loss)
        found = zip(self.gradients, (p.grad for p in self.parameters), strict=True)
        new = [torch.zeros_like(there) if grad is None else grad for there, grad in found]
        torch._foreach_copy_(self.gradients, new)
        return loss.detach()

    def _record(self, shape: BatchShape, inputs: tuple[Tensor, ...]) -> bool:
        """Whether the shape is recorded now; where that fails, nothing is recorded any more."""
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._make_room()
        self.stream.wait_stream(now)
        try:
            with torch.cuda.stream(self.stream):
                graph.capture_begin(self.pool)
                try:
                    loss = self._compute(inputs)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.records = False
            self.recordings.clear()  # their memory is free for steps that are taken one by one
            torch.cuda.empty_cache()
            _free_generator()
            reason = str(error).partition("\n")[0]
            warnings.warn(f"steps are not replayed from CUDA graphs: {reason}", stacklevel=2)
            return False
        now.wait_stream(self.stream)
        self.recordings[shape] = _Recording(graph, inputs, loss)
        return True

    def _make_room(self) -> None:
        """Gives back what steps one by one have left unused, where it is much: graphs have memory
        of their own."""
        total = torch.cuda.get_device_properties(self.fabric.device).total_memory
        if torch.cuda.memory_reserved(self.fabric.device) > total // 2:
            torch.cuda.empty_cache()


def _free_generator() -> None:
    """Lets dropout draw again: a recording that fails leaves torch's generator in its midst, and
    only one that does not fail brings it out."""
    with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def _sides(batch: Batch) -> list[Tensor]:
    """What differs between batches of a shape, in memory that a GPU can read by itself."""
    sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
    return [side.pin_memory() for side in sides]
