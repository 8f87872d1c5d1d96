"""Everything that the loop needs and that a checkpoint does not hold."""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from regard import device as devices
from regard.data import Corpus, EncodedPairs, SourceEncoder, Tokenizer
from regard.data.dev_set import DevSet
from regard.models import SequenceModel
from regard.training.config import Config
from regard.training.defaults import has_stalled
from regard.training.distributed import Fabric, FabricModule
from regard.training.epochs import Epochs
from regard.training.optimization import CudaGraphGradients, ExponentialMovingAverage, learning_rate
from regard.training.progress import Progress
from regard.training.run_folder import RunFolder

if TYPE_CHECKING:
    from regard.training.reporting import HtmlReport, TensorBoardWriter

PRECISIONS: Final = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

#: highest learning rates that small sweeps on dev sets liked; see `lr` in the config
RATES: Final = {"transformer": 1e-3, "conv": 1e-3}
RATE: Final = 3e-3


class BatchShare(NamedTuple):
    """What this process gets of a batch.

    Attributes:
        pairs: what the rows are taken from.
        rows: their numbers.
        weight: 1, or 0 for a stand-in where there are fewer pairs than processes.
        global_tgt_tokens: target tokens of the whole batch, `eos` included.
        global_tokens: source and target tokens of the whole batch.
    """

    pairs: EncodedPairs
    rows: Int[np.ndarray, " rows"]
    weight: float
    global_tgt_tokens: int
    global_tokens: int


class DevMetric(NamedTuple):
    """What decides which evaluation is the best."""

    name: str
    higher_is_better: bool

    def better(self, a: float, b: float) -> bool:
        """Whether `a` is better than `b`."""
        return a > b if self.higher_is_better else a < b


@dataclass
class Task:
    """A model, its data, and the means to train it."""

    config: Config
    folder: RunFolder
    fabric: Fabric
    model: FabricModule
    module: SequenceModel
    optimizer: torch.optim.Optimizer
    corpus: Corpus
    epochs: Epochs
    dev: DevSet
    src_tokenizer: SourceEncoder
    tgt_tokenizer: Tokenizer
    metric: DevMetric
    schedule: str
    lr: float
    steps: int
    eval_every: int
    losses: Tensor
    ema: ExponentialMovingAverage | None = None
    recorded: CudaGraphGradients | None = None
    loss_count: int = 0
    events: "TensorBoardWriter | None" = None
    report: "HtmlReport | None" = None

    def shares(self, progress: Progress) -> dict[str, float]:
        """The share of each limit that is used up, by the name of its setting."""
        config, shares = self.config, {"steps": progress.step / self.steps}
        if config.epochs is not None:
            done = progress.epoch + progress.batch / max(
                1, len(self.epochs[progress.epoch].batches)
            )
            shares["epochs"] = done / config.epochs
        if config.minutes is not None:
            shares["minutes"] = progress.seconds / (60 * config.minutes)
        return shares

    def spent(self, progress: Progress) -> float:
        """The share of the budget that is used up, of whichever limit is nearest."""
        return max(self.shares(progress).values())

    def is_over(self, progress: Progress) -> bool:
        """Whether the budget is spent, or nothing has improved for long."""
        spent = self.spent(progress)
        return spent >= 1 or has_stalled(self.config, progress, spent)

    def rate(self, progress: Progress) -> float:
        """The learning rate of the step that was taken last."""
        return learning_rate(
            self.schedule,
            self.lr,
            step=progress.step,
            warmup=self.config.warmup,
            spent=self.spent(progress),
        )

    def judged(self) -> AbstractContextManager[None]:
        """In this block the model has the weights that are judged and written."""
        return nullcontext() if self.ema is None else self.ema.in_place()

    def next_batches(self, progress: Progress) -> list[BatchShare]:
        """This process's shares of the next `accumulate` batches; moves the position on."""
        shares = []
        for _ in range(self.config.accumulate):
            pairs, batches = self.epochs[progress.epoch]
            if progress.batch >= len(batches):  # a run that began where batches were smaller
                progress.epoch, progress.batch = progress.epoch + 1, 0
                pairs, batches = self.epochs[progress.epoch]
            shares.append(self._share(pairs, batches[progress.batch]))
            progress.batch += 1
            if progress.batch == len(batches):
                progress.epoch, progress.batch = progress.epoch + 1, 0
        return shares

    def _share(self, pairs: EncodedPairs, rows: Int[np.ndarray, " rows"]) -> BatchShare:
        targets = int(pairs.tgt_lengths[rows].sum()) + len(rows)
        tokens = targets + int(pairs.src_lengths[rows].sum())
        mine = rows[self.fabric.global_rank :: self.fabric.world_size]
        if len(mine):
            return BatchShare(pairs, mine, 1.0, targets, tokens)
        return BatchShare(pairs, rows[:1], 0.0, targets, tokens)

    def settle_losses(self, progress: Progress) -> None:
        """Moves the losses of the last steps, of all processes, from the device to the progress."""
        total = self.losses
        if self.fabric.world_size > 1:
            total = torch.as_tensor(self.fabric.all_reduce(total, reduce_op="sum"))
        before, count = progress.losses
        progress.losses = (before + float(total), count + self.loss_count)
        self.losses, self.loss_count = torch.zeros_like(self.losses), 0

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set in any process; all of them get the same answer."""
        if self.fabric.world_size == 1:
            return flag
        total = self.fabric.all_reduce(torch.tensor(float(flag)), reduce_op="sum")
        return bool(torch.as_tensor(total) > 0)

    def by_one_clock(self, seconds: float) -> float:
        """What the clock of the first process says, where the rate and the end depend on it: all of
        them must take the same steps."""
        if self.fabric.world_size == 1 or self.config.minutes is None:
            return seconds
        mine = torch.tensor(seconds if self.fabric.is_global_zero else 0.0, dtype=torch.float64)
        return float(torch.as_tensor(self.fabric.all_reduce(mine, reduce_op="sum")))

    def of_every_rank(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each tensor of all processes, stacked."""
        if self.fabric.world_size == 1:
            return {name: tensor[None] for name, tensor in tensors.items()}
        gathered = {n: torch.as_tensor(self.fabric.all_gather(t)) for n, t in tensors.items()}
        return {name: tensor.cpu() for name, tensor in gathered.items()}

    def scaler_state(self) -> dict[str, Any] | None:
        """The state of fp16's loss scaling; None for the other precisions."""
        scaler = getattr(self.fabric._precision, "scaler", None)
        return None if scaler is None else scaler.state_dict()

    def load_scaler_state(self, state: dict[str, Any] | None) -> None:
        """Puts back what `scaler_state` has given."""
        scaler = getattr(self.fabric._precision, "scaler", None)
        if scaler is not None and state is not None:
            scaler.load_state_dict(state)


def make_fabric(config: Config) -> tuple[Fabric, str]:
    """The fabric for a config's device and precision, and the precision in our words."""
    device = devices.pick(config.device)
    precision = config.precision if config.precision != "auto" else best_precision(device)
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    # we announce the precision in our own words
    logging.getLogger(Fabric.__module__.split(".")[0]).setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=device.type,
        devices=local if world > 1 or device.index is None else [device.index],
        num_nodes=max(1, world // local),
        strategy="ddp" if world > 1 else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
    )
    return fabric, precision


def best_precision(device: torch.device) -> str:
    """bf16 where the chip has units for it, else 32 bits."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return "bf16" if torch.cpu._is_amx_tile_supported() else "32"
