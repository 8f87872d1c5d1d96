"""Optimisation: gradients of batches, CUDA graphs, optimiser steps and averaged weights.

Retain the memory that a training step frees, for the next step of the process.

The tensors of a step are large, so that glibc's `malloc` asks the system for each of them and hands
it back at once: the system clears every page again, a step later, before a kernel writes to it.
"""

import ctypes
import math
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.data import BatchShape, EncodedPairs, collate
from regard.data.batches import Batch
from regard.device import reset_cuda_generator
from regard.errors import ArgumentError
from regard.layers import RNNStack, SelfAttentiveRNN
from regard.layers.conv import GatedConvolution
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.models import AnyModel
from regard.training.distributed import (
    Fabric,
    FabricModule,
    GatheredModel,
    Processes,
    own_part,
    sharded_like,
    whole,
)
from regard.training.epochs import BatchShapes, BatchShare

# parameters of `mallopt`, from <malloc.h>
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
#: bytes of a request that is always a mapping of its own, and bytes that stay unused at the end of
#: the heap, while a model trains; the second is the largest that `mallopt` takes
KEPT: Final = {MMAP_THRESHOLD: 1 << 30, TRIM_THRESHOLD: (1 << 31) - 1}
#: the same afterwards: glibc's own limits once large blocks were freed
USUAL: Final = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20}


@contextmanager
def retain_freed_memory(device: str) -> Iterator[None]:
    """Keep freed memory inside the block, if a CPU trains and the C library is glibc.

    Afterwards it goes back to the system. Numbers do not change.

    Args:
        device: type of the device that trains.
    """
    libc = _glibc() if device == "cpu" else None
    if libc is None:
        yield
        return
    _set(libc, KEPT)
    try:
        yield
    finally:
        _set(libc, USUAL)
        libc.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it has both functions; others have an allocator of their own."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "mallopt") and hasattr(libc, "malloc_trim") else None


def _set(libc: ctypes.CDLL, values: dict[int, int]) -> None:
    for parameter, value in values.items():
        libc.mallopt(parameter, value)


#: steps between checks for non-finite gradients on a GPU: `.item()` synchronises, and NaNs persist
CHECK_EVERY: Final = 50
#: tokens of the batch by which the time of a step is measured
PROBE_TOKENS: Final = 512
#: added to the norm of gradients by torch before it divides by it
CLIP_EPS: Final = 1e-6
#: batches of a shape that run eagerly before it is recorded: the first one compiles kernels and
#: lets libraries choose theirs, and a shape that does not recur is not worth recording
EAGER_BATCHES: Final = 2
#: maximum number of CUDA graphs; each takes some host memory
MAX_GRAPHS: Final = 256
#: share of the learning rate for weights that begin fitted to the data
FITTED_RATE: Final = 0.1
#: layers that keep their inputs alone if activations are recomputed
RECOMPUTED: Final = (
    TransformerEncoderLayer,
    TransformerDecoderLayer,
    GatedConvolution,
    RNNStack,
    SelfAttentiveRNN,
)


@final
class ExponentialMovingAverage:
    """An exponential moving average of a module's weights, kept beside them.

    After step t it is `d average + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`, so
    that it soon forgets the initial weights.

    Args:
        module: its weights are averaged; the average starts as a copy of them.
        decay: the limit of `d`.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        named: dict[str, Tensor] = dict(module.named_parameters())  # a shared one comes once
        self.names, self.weights = list(named), list(named.values())
        self.average = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        mean, weights = ([own_part(t) for t in ts] for ts in (self.average, self.weights))
        torch._foreach_lerp_(mean, weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the module the average inside the block, and its own weights back after it.

        Values are copied, since cuDNN expects weights to stay where they are in memory.
        """
        with torch.no_grad():
            own = [weight.clone() for weight in self.weights]
            torch._foreach_copy_(self.weights, self.average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, own)

    def state(self) -> dict[str, Tensor]:
        """Return the average by the names of its weights."""
        return dict(zip(self.names, self.average, strict=True))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` has returned."""
        for name, mean in zip(self.names, self.average, strict=True):
            mean.copy_(state[name])


class _Recording(NamedTuple):
    """A CUDA graph with its static inputs and output."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor


@final
class CudaGraphGradients:
    """Losses and gradients of batches of few shapes, replayed from CUDA graphs on one GPU.

    A step of a small model launches a thousand kernels that the GPU runs faster than the host can
    launch them. Each shape is therefore recorded once as a CUDA graph. Gradients have static
    buffers, which all graphs write to.

    Args:
        fabric: runs the backward pass.
        model: maps a batch to its loss.
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
        """Return the loss of a batch times `scale`, and leave its gradient with the parameters.

        Args:
            batch: padded to a shape, on the host.
            scale: factor on its summed loss.
        """
        shape = BatchShape(len(batch.src), batch.src.shape[1], batch.tgt_in.shape[1])
        given = _objective_inputs(batch)
        self.seen[shape] += 1
        recording = self.recordings.get(shape)
        if recording is None:
            device = self.fabric.device
            moved = [side.pin_memory().to(device, non_blocking=True) for side in given]
            inputs = (*moved, torch.full((), scale, device=device))
            recurs = self.seen[shape] > EAGER_BATCHES and len(self.recordings) < MAX_GRAPHS
            if not (self.records and recurs and self._record(shape, inputs)):
                loss = self._compute(inputs)
                self._assign_gradients()
                return loss
            recording = self.recordings[shape]
        else:
            *held, factor = recording.inputs
            for there, side in zip(held, given, strict=True):
                if side is not batch.tgt_places:  # which all batches of a shape share
                    there.copy_(side.pin_memory(), non_blocking=True)
            factor.fill_(scale)
        recording.graph.replay()
        self._assign_gradients()
        return recording.loss.clone()

    def _assign_gradients(self) -> None:
        """Set `.grad` of each parameter, which the optimiser's `zero_grad` removes."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient

    def _compute(self, inputs: tuple[Tensor, ...]) -> Tensor:
        *sides, scale = inputs
        loss: Tensor = self.model(*sides, padded=True) * scale
        # with no gradient to add to, autograd launches no addition for each parameter
        for parameter in self.parameters:
            parameter.grad = None
        self.fabric.backward(loss)
        found = zip(self.gradients, (p.grad for p in self.parameters), strict=True)
        new = [torch.zeros_like(there) if grad is None else grad for there, grad in found]
        torch._foreach_copy_(self.gradients, new)
        return loss.detach()

    def _record(self, shape: BatchShape, inputs: tuple[Tensor, ...]) -> bool:
        """Record a shape and return whether that succeeded; after a failure none is recorded."""
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._release_unused_memory()
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
            self.recordings.clear()  # their memory is free for eager steps
            torch.cuda.empty_cache()
            reset_cuda_generator()
            reason = str(error).partition("\n")[0]
            warnings.warn(f"steps are not replayed from CUDA graphs: {reason}", stacklevel=2)
            return False
        now.wait_stream(self.stream)
        self.recordings[shape] = _Recording(graph, inputs, loss)
        return True

    def _release_unused_memory(self) -> None:
        """Empty the cache of eager steps if it is large: graphs have a memory pool of their own."""
        total = torch.cuda.get_device_properties(self.fabric.device).total_memory
        if torch.cuda.memory_reserved(self.fabric.device) > total // 2:
            torch.cuda.empty_cache()


@final
class Learner:
    """A model with its optimiser: computes gradients and takes steps.

    Args:
        module: the model.
        objective: the model with its loss, wrapped by Fabric.
        optimizer: wrapped by Fabric; None if no step is taken. A group may have a `share` of the
            learning rate.
        processes: those that train the model.
        max_norm: gradients are clipped to this norm.
        average: follows the weights; it is then what is evaluated and written.
        shapes: batch shapes to replay from CUDA graphs; None computes each step eagerly.
        gathered: the whole model, if `module` is sharded.
    """

    def __init__(
        self,
        module: AnyModel,
        objective: FabricModule,
        optimizer: torch.optim.Optimizer | None,
        processes: Processes,
        *,
        max_norm: float,
        average: ExponentialMovingAverage | None = None,
        shapes: BatchShapes | None = None,
        gathered: GatheredModel | None = None,
    ) -> None:
        self.module, self.objective, self._optimizer = module, objective, optimizer
        self.processes, self.max_norm = processes, max_norm
        self.average, self.shapes, self.gathered = average, shapes, gathered
        self.graphs = None if shapes is None else CudaGraphGradients(processes.fabric, objective)
        self._loss, self._losses = torch.zeros((), device=processes.device), 0

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser, which a dry run does without."""
        assert self._optimizer is not None
        return self._optimizer

    def backward(self, batches: Sequence[BatchShare]) -> Tensor:
        """Leave the gradient of some batches with the parameters; return their loss per token."""
        loss = self._gradient(batches)
        self._loss += loss
        self._losses += 1
        return loss

    def take_losses(self) -> tuple[float, int]:
        """Return the sum of the losses of all processes since the last call, and their number."""
        total, count = float(self.processes.total(self._loss)), self._losses
        self._loss, self._losses = torch.zeros_like(self._loss), 0
        return total, count

    def _gradient(self, batches: Sequence[BatchShare]) -> Tensor:
        fabric, world = self.processes.fabric, self.processes.count
        tokens = sum(batch.global_tgt_tokens for batch in batches)
        if self.graphs is not None and self.shapes is not None:
            (share,) = batches
            shape = self.shapes.of_batch(share.pairs, share.rows)
            return self.graphs(collate(share.pairs, share.rows, shape), 1 / tokens)
        total = torch.zeros((), device=fabric.device)
        for i, share in enumerate(batches):
            batch = collate(share.pairs, share.rows).to(fabric.device, non_blocking=True)
            # shards are summed after each batch, since whole gradients would be kept between them
            more = i + 1 < len(batches) and not self.processes.shards
            with fabric.no_backward_sync(self.objective, enabled=more):
                # gradients are averaged over processes: each scales its own sum by `world`
                loss = self.objective(*_objective_inputs(batch)) * (world / tokens)
                fabric.backward(loss * share.weight)
            total += loss.detach() * share.weight / world
        return total

    def clip(self) -> Tensor | None:
        """Clip the gradients, and return the norm that they had."""
        on_cpu = self.processes.device.type == "cpu" and not self.processes.shards
        if on_cpu and self.processes.loss_scaler is None:
            groups = self.optimizer.param_groups
            return clip_on_cpu([p for group in groups for p in group["params"]], self.max_norm)
        norm = self.processes.fabric.clip_gradients(
            self.objective, self.optimizer, max_norm=self.max_norm, error_if_nonfinite=False
        )
        return None if norm is None else whole(norm)

    def step(self, number: int, rate: float) -> None:
        """Take the step of this number, counted from 1, with a learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(number)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Give the model the weights that are evaluated and written, inside the block.

        All processes must enter it: shards are gathered.
        """
        if self.gathered is not None:
            average = {} if self.average is None else self.average.state()
            return self.gathered.filled(self.module, average)
        return nullcontext() if self.average is None else self.average.in_place()

    def state(self) -> dict[str, Tensor]:
        """Return the weights, their average and the optimiser's state, for a checkpoint.

        All processes must call it if weights are sharded, and only the first gets the tensors.
        """
        tensors = {f"model.{name}": t for name, t in self.module.state_dict().items()}
        if self.average is not None:
            tensors |= {f"ema.{name}": t for name, t in self.average.state().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": t for name, t in slots.items()}
        if not self.processes.shards:
            return tensors
        found = {}
        for name, tensor in tensors.items():  # one after the other, for lack of room
            gathered = whole(tensor)
            if self.processes.is_first:
                found[name] = gathered.cpu()
        return found

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` has returned; raises RuntimeError, ValueError or KeyError if it is
        of another model."""
        own, named = self.module.state_dict(), dict(self.module.named_parameters())
        model = with_prefix(tensors, "model.")
        self.module.load_state_dict({n: sharded_like(t, own.get(n)) for n, t in model.items()})
        if self.average is not None:
            average = with_prefix(tensors, "ema.")
            self.average.load_state({n: sharded_like(t, named[n]) for n, t in average.items()})
        numbered = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        state = self.optimizer.state_dict()
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in with_prefix(tensors, "optimizer.").items():
            index, name = key.split(".", 1)
            weight = numbered[int(index)] if int(index) < len(numbered) else None
            pattern = weight if weight is not None and weight.shape == value.shape else None
            slots.setdefault(int(index), {})[name] = sharded_like(value, pattern)
        self.optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, by the rest of their names."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def check_finite(norm: Tensor, step: int, peak_rate: float) -> None:
    """Raise ArgumentError if the norm of the gradients is not finite; waits for the device."""
    if not math.isfinite(norm.item()):
        rule = "leave gradients finite"
        value = f"{peak_rate:g}, and by step {step} their norm is {norm.item()}"
        raise ArgumentError("lr", rule, value, "lower it, or raise warmup, and go on with --resume")


def clip_on_cpu(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Clip gradients to a norm, and return the norm that they had, as `clip_grad_norm_` does.

    That multiplies every gradient, also by 1. Here the norm can be read at no cost, and gradients
    that are short enough are left alone.
    """
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if not (max_norm / (norm + CLIP_EPS)).item() >= 1:  # written so that NaN is not left alone
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def parameter_groups(
    module: nn.Module,
    weight_decay: float,
    tables: Sequence[Tensor],
    tables_rate: float,
    fitted: Sequence[Tensor] = (),
) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups: matrices decay; biases, norms and other vectors do not.

    Weights that are frozen are in none.

    Args:
        module: the model.
        weight_decay: of matrices.
        tables: embeddings that start from word vectors.
        tables_rate: their share of the learning rate. If it is 0 they get no gradient either, so
            that clipping does not count it.
        fitted: weights that begin fitted to the data; they learn slowly, and do not decay.
    """
    apart = {id(table) for table in (*tables, *fitted)}
    others = [p for p in module.parameters() if p.requires_grad and id(p) not in apart]
    matrices = [p for p in others if p.ndim > 1]
    vectors = [p for p in others if p.ndim <= 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if tables:
        for table in tables:
            table.requires_grad_(tables_rate > 0)
        groups.append({"params": tables, "weight_decay": weight_decay, "share": tables_rate})
    if fitted:
        groups.append({"params": list(fitted), "weight_decay": 0.0, "share": FITTED_RATE})
    return groups


def recompute_layers(module: nn.Module, preset: str) -> None:
    """Make the layers of a model recompute their activations in the backward pass.

    A layer then keeps its inputs alone, and its forward pass runs twice (Chen et al., 2016,
    https://arxiv.org/abs/1604.06174). Raises ArgumentError if the model has no layer that can.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, RECOMPUTED)]
    if not layers:
        rule = f"be false for the preset {preset}, none of whose layers can be recomputed"
        raise ArgumentError("recompute", rule, "true", "leave it out")
    for layer in layers:
        layer.forward = _recomputing(layer)  # type: ignore[method-assign]


def _recomputing(layer: nn.Module) -> Callable[..., Any]:
    """Return the forward pass of a layer, checkpointed if it is to be differentiated."""
    forward = layer.forward

    def run(*args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and layer.training:
            return checkpoint(forward, *args, use_reentrant=False, **options)
        return forward(*args, **options)

    return run


def check_precision(
    objective: FabricModule, corpus: EncodedPairs, fabric: Fabric, precision: str
) -> None:
    """Raise ArgumentError if this CPU cannot train the model in half precision.

    Some chips lack a kernel for one of the layers, which only shows in a call: one example goes
    through the model and back. Weights, gradients and random states stay as they are.
    """
    if precision == "32" or fabric.device.type != "cpu":
        return
    try:
        _try_batch(objective, collate(corpus, np.arange(1)), fabric)
    except RuntimeError as error:
        rule = "be one that this CPU has kernels for"
        value = f"{precision}, and torch says: {str(error).splitlines()[0]}"
        raise ArgumentError("precision", rule, value, "give precision=32") from None


def seconds_per_token(objective: FabricModule, corpus: EncodedPairs, fabric: Fabric) -> float:
    """Return the seconds that a CPU takes for a token of a small batch, forward and backward.

    Weights, gradients and random states stay as they are.
    """
    rows = np.random.default_rng(1).permutation(len(corpus.src_lengths))
    sizes = np.cumsum(corpus.src_lengths[rows] + corpus.tgt_lengths[rows] + 1)
    rows = rows[: int(np.searchsorted(sizes, PROBE_TOKENS)) + 1]
    batch = collate(corpus, rows)
    for _ in range(2):  # the first compiles kernels
        began = time.monotonic()
        _try_batch(objective, batch, fabric)
    return (time.monotonic() - began) / int(sizes[len(rows) - 1])


def _try_batch(objective: FabricModule, batch: Batch, fabric: Fabric) -> None:
    """Compute gradients, and leave weights, gradients and random states as they are."""
    try:
        with torch.random.fork_rng(devices=[]):
            fabric.backward(objective(*_objective_inputs(batch)))
    finally:
        objective.zero_grad(set_to_none=True)


def _objective_inputs(batch: Batch) -> tuple[Tensor, ...]:
    inputs = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out, batch.tgt_places)
    return inputs if batch.links is None else (*inputs, batch.links)
