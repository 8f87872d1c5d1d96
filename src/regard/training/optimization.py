"""Optimisation: learning rates, gradients, averaged weights."""

import contextlib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.data import Batch, BatchShape, EncodedPairs, SourceEncoder, Tokenizer, collate
from regard.errors import ArgumentError
from regard.kinds import open_kind
from regard.models import SequenceModel
from regard.training.config import Config
from regard.training.defaults import WARMUP, warmup_factor
from regard.training.distributed import Fabric, FabricModule
from regard.training.losses import Objective
from regard.training.pretrained_embeddings import embeddings, start_from_vectors

#: (step, warm-up steps, share of the budget that is spent) -> factor on the highest rate
Factor = Callable[[int, int, float], float]


def _constant(step: int, warmup: int, spent: float) -> float:
    return 1.0


def _linear(step: int, warmup: int, spent: float) -> float:
    return max(0.01, 1 - spent)


def _cosine(step: int, warmup: int, spent: float) -> float:
    return max(0.01, 0.5 * (1 + math.cos(math.pi * min(1.0, spent))))


def _inverse_sqrt(step: int, warmup: int, spent: float) -> float:
    # flat for as long again as ten warm-ups, so that short runs are not starved
    flat = 10 * max(warmup, 1)
    return math.sqrt(flat / max(step, flat))


SCHEDULES: Final[dict[str, Factor]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "inverse-sqrt": _inverse_sqrt,
}


def learning_rate(
    schedule: str, highest: float, *, step: int, warmup: int | None, spent: float
) -> float:
    """The rate of a step, counted from 1; it rises over `warmup` steps and then follows."""
    steps = WARMUP if warmup is None else warmup
    rise = warmup_factor(warmup, step, spent)
    return highest * rise * SCHEDULES[schedule](step, steps, spent)


@final
class ExponentialMovingAverage:
    """The exponential moving average of a module's weights, kept beside them.

    After step t it is `d average + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`, so
    that it does not remember for long what the weights were before they had learned anything.

    Args:
        module: whose weights are followed; they begin as their own average.
        decay: how much of the average is kept at a step, in the end.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        named: dict[str, Tensor] = dict(module.named_parameters())  # a shared one comes once
        self.names, self.weights = list(named), list(named.values())
        self.average = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the average towards the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.average, self.weights, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the average in the block, and its own weights after it, to the last bit.

        Values are copied: layers of the GPU's libraries want their weights to stay where they lie.
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
        """For a checkpoint."""
        return dict(zip(self.names, self.average, strict=True))

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Puts back what `state` has given."""
        for name, mean in zip(self.names, self.average, strict=True):
            mean.copy_(state[name])


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
class CudaGraphGradients:
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


class Learner(NamedTuple):
    """The model, the same wrapped with its loss, and what changes its weights."""

    module: SequenceModel
    model: FabricModule
    optimizer: torch.optim.Optimizer


def make_learner(
    config: Config,
    fabric: Fabric,
    src: SourceEncoder,
    tgt: Tokenizer,
    say: Callable[[str], None],
    *,
    resumed: bool,
) -> Learner:
    """A model with the weights that a run begins with; `resumed` if a checkpoint brings others."""
    torch.manual_seed(config.seed)
    module = open_kind(config, src, tgt).build_model()
    if not resumed:
        start_from_vectors(config, module, src, tgt, say)
    optimizer = torch.optim.AdamW(_groups(module, config), lr=0.0, betas=(0.9, 0.98), fused=True)
    # each process drops its own features
    torch.manual_seed(config.seed + 7919 * fabric.global_rank)
    objective = Objective(module, config.label_smoothing, config.rdrop)
    model, wrapped = fabric.setup(objective, optimizer)
    return Learner(module, model, wrapped)


def check_precision(
    model: FabricModule, corpus: EncodedPairs, fabric: Fabric, precision: str
) -> None:
    """Raise ArgumentError if this CPU cannot train the model in half precision.

    Some chips lack a kernel for one of the layers, which only shows when it is called: one pair
    goes through the model and back. Weights, gradients and random states stay as they are.
    """
    if precision == "32" or fabric.device.type != "cpu":
        return
    batch = collate(corpus, np.arange(1))
    try:
        with torch.random.fork_rng(devices=[]):
            sides = (batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out)
            fabric.backward(model(*sides, batch.tgt_places))
    except RuntimeError as error:
        raise ArgumentError(
            "precision",
            "be one that this CPU has kernels for",
            f"{precision}, and torch says: {str(error).splitlines()[0]}",
            "give precision=32",
        ) from None
    finally:
        model.zero_grad(set_to_none=True)


def can_record(config: Config, fabric: Fabric, precision: str) -> bool:
    """Whether steps can be replayed from graphs: one GPU has the whole batch, and no loss is scaled
    by what the host learns of it."""
    alone = fabric.device.type == "cuda" and fabric.world_size == 1 and config.accumulate == 1
    return config.graphs and alone and precision != "fp16"


def _groups(module: SequenceModel, config: Config) -> list[dict[str, Any]]:
    """Matrices decay; biases, norms and other vectors do not.

    Tables that started from word vectors have a share of the learning rate. Without any, they have
    no gradient either, so that clipping does not see what is never used.
    """
    tables = [e.table.weight for e in embeddings(config, module).values()]
    apart = {id(table) for table in tables}
    matrices = [p for p in module.parameters() if p.ndim > 1 and id(p) not in apart]
    vectors = [p for p in module.parameters() if p.ndim <= 1]
    decay = config.weight_decay
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    if tables:
        for table in tables:
            table.requires_grad_(config.vectors_rate > 0)
        groups.append({"params": tables, "weight_decay": decay, "share": config.vectors_rate})
    return groups
