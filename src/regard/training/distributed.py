"""The processes of a run, one per GPU, and what they agree on; Lightning Fabric joins them.

Fully sharded training: each process holds a part of every weight (FSDP).

Weights, gradients and the optimiser's state are split over the processes (ZeRO, Rajbhandari et al.,
2020, https://arxiv.org/abs/1910.02054), by torch's `fully_shard`. A unit's weights are whole only
while it computes. Evaluation, decoding and the model file need a whole model: `GatheredModel`
collects it from the shards.
"""

import atexit
import contextlib
import logging
import os
import secrets
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import register_pytree_node

from regard import device as devices
from regard.errors import ArgumentError, RegardError
from regard.layers.conv import GatedConvolution
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.models import AnyModel
from regard.models.encoder_decoder import EncoderDecoder
from regard.state import State

if TYPE_CHECKING:
    from lightning_fabric import Fabric
    from lightning_fabric.wrappers import _FabricModule as FabricModule
else:  # it takes seconds to import, with torch's compiler, and a dry run does without
    Fabric = FabricModule = Any


#: layers whose weights are read by their own methods alone
LAYERS: Final = (TransformerEncoderLayer, TransformerDecoderLayer, GatedConvolution)


def shard(objective: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a model with its loss in place, over the first dimension of a mesh, and return it.

    Weights that no unit holds are gathered for the whole step: those of embeddings and output
    layers that share a table, and of parts that read each other's weights.
    """
    # not above: it takes long to import, and few runs are sharded
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    _register_states()
    # outputs of units may be views, which nothing here changes in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for unit in units(objective):
        fully_shard(unit, mesh=mesh["data_parallel"])
        if hasattr(unit, "start"):
            register_fsdp_forward_method(unit, "start")
    fully_shard(objective, mesh=mesh["data_parallel"])
    return objective


def units(objective: nn.Module) -> list[nn.Module]:
    """Return the modules whose weights are gathered together, inner ones first."""
    owners: dict[int, list[str]] = {}
    for name, weight in objective.named_parameters(remove_duplicate=False):
        owners.setdefault(id(weight), []).append(name)
    found = [m for m in objective.named_modules() if isinstance(m[1], LAYERS)]
    for name, module in objective.named_modules():
        if isinstance(module, EncoderDecoder):
            found += [(f"{name}.encoder", module.encoder), (f"{name}.decoder", module.decoder)]

    def owns_all(name: str, module: nn.Module) -> bool:
        """Return whether no weight has a name outside of the module."""
        inside = f"{name}."
        return all(n.startswith(inside) for w in module.parameters() for n in owners[id(w)])

    return [module for name, module in found if owns_all(name, module)]


@cache
def _register_states() -> None:
    """Let FSDP find the tensors in the states that units take and return."""
    kinds = [State]
    for kind in kinds:
        kinds += kind.__subclasses__()
    for kind in kinds[1:]:
        _register(kind)


def _register(kind: type[State]) -> None:
    names = [field.name for field in fields(kind)]

    def flatten(state: Any) -> tuple[list[Any], None]:
        return [getattr(state, name) for name in names], None

    def unflatten(values: Iterable[Any], _: None) -> State:
        return kind(**dict(zip(names, values, strict=True)))

    register_pytree_node(kind, flatten, unflatten)


def is_sharded(tensor: Any) -> bool:
    """Return whether a tensor is a `DTensor`."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Any) -> Tensor:
    """Return a tensor gathered from all processes, which must all call this."""
    gathered: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return gathered


def own_part(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds; it shares its memory."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def sharded_like(tensor: Tensor, pattern: Any) -> Tensor:
    """Return a tensor that every process has whole, sharded as another one is."""
    if not is_sharded(pattern) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    place = (pattern.device_mesh, pattern.placements)
    return distribute_tensor(tensor.to(pattern.device), *place, src_data_rank=None)


@final
class GatheredModel:
    """A whole copy of a model that is to be sharded, for what shards cannot do.

    It has weights inside `filled` alone, and only in the first process.

    Args:
        module: the model, not sharded yet.
        is_first: whether this is the first process.
    """

    def __init__(self, module: AnyModel, *, is_first: bool) -> None:
        self.module, self.is_first = deepcopy(module), is_first
        self._release()

    @contextmanager
    def filled(self, sharded: nn.Module, average: Mapping[str, Tensor]) -> Iterator[None]:
        """Give the copy its weights inside the block; all processes must enter it.

        Args:
            sharded: the model in training.
            average: weights that take the place of those of the same names.
        """
        weights = {**dict(sharded.named_parameters()), **average}
        for name, own in self.module.named_parameters():
            gathered = whole(weights[name].detach())
            if self.is_first:
                own.data = gathered
        buffers = dict(sharded.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.data = buffers[name].detach().clone()
        for part in self.module.modules():
            if isinstance(part, nn.RNNBase) and self.is_first:
                part.flatten_parameters()
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        for weight in self.module.parameters():
            weight.data = weight.data.new_empty(0)


__all__ = ["Fabric", "FabricModule", "Processes", "is_first_process", "make_fabric"]

#: key in torchrun's store of the port and the token of the first process's own
STORE_KEY: Final = "regard/store"
#: until a store that does not answer counts as closed,
SHORT_WAIT: Final = timedelta(seconds=3)
#: and until the processes of a run give up to wait for each other
LONG_WAIT: Final = timedelta(minutes=30)
#: for what has no limit of time; torch knows no infinite one
NO_LIMIT: Final = timedelta(days=10_000)

PRECISIONS: Final[dict[str, Any]] = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


@final
class Processes:
    """The processes that train one model, seen from one of them.

    Args:
        fabric: launched, for the device, the precision and the number of processes.

    Attributes:
        shards: whether each process holds a part of the weights, and not all of them.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.device, self.rank, self.count = fabric.device, fabric.global_rank, fabric.world_size
        self.is_first = fabric.is_global_zero
        self.shards = type(fabric.strategy).__name__ == "ModelParallelStrategy"

    def total(self, mine: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.count == 1:
            return mine
        return torch.as_tensor(self.fabric.all_reduce(mine, reduce_op="sum"))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return flag if self.count == 1 else bool(self.total(torch.tensor(float(flag))) > 0)

    def of_first(self, number: float) -> float:
        """Return the number that the first process has."""
        mine = torch.tensor(number if self.is_first else 0.0, dtype=torch.float64)
        return number if self.count == 1 else float(self.total(mine))

    def stack(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return each tensor of all processes, stacked in the order of their ranks."""
        if self.count == 1:
            return {name: tensor[None] for name, tensor in tensors.items()}
        found: list[dict[str, Tensor]] = [{}] * self.count
        dist.all_gather_object(found, {n: t.cpu() for n, t in tensors.items()})
        return {name: torch.stack([each[name] for each in found]) for name in tensors}

    @contextlib.contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run the block in the first process, and in the others once it has ended there.

        They wait without a limit of time: encoding may take longer than messages of training may.
        If the block fails in a process, all others raise RegardError.
        """
        if self.count == 1:
            yield
            return
        group = dist.new_group(backend="gloo", timeout=NO_LIMIT)
        for is_turn_of_first in (True, False):
            succeeded = False
            try:
                if self.is_first == is_turn_of_first:
                    yield
                succeeded = True
            finally:
                all_succeeded = self._count_successes(succeeded, group) == self.count
            if not all_succeeded:
                raise RegardError(
                    f"all {self.count} processes of a run must prepare its data, but one has "
                    f"failed or was lost: mend what its own message says, and start them again."
                )
        dist.destroy_process_group(group)

    def _count_successes(self, succeeded: bool, group: Any) -> int:
        """Wait for all processes; returns how many have succeeded, or 0 if one is lost."""
        total = torch.tensor(int(succeeded))
        with contextlib.suppress(RuntimeError):  # as gloo says that a connection is closed
            dist.all_reduce(total, group=group)
            return int(total)
        return 0

    @property
    def loss_scaler(self) -> Any:
        """The gradient scaler of fp16; None in other precisions."""
        return getattr(self.fabric._precision, "scaler", None)


def check_alone(what: str) -> None:
    """Raise ArgumentError if torchrun has started this process beside others."""
    if (count := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        fix = "run it without torchrun"
        raise ArgumentError(what, "run in one process", f"in {count}", fix)


def is_first_process() -> bool:
    """Return whether this process owns the run folder; torchrun numbers the others from 1."""
    return int(os.environ.get("RANK", 0)) == 0


def world_size() -> int:
    """Return the number of processes of the run, as torchrun states it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def restart_number() -> int:
    """Return how often torchrun has restarted the processes of this run."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def launch_id() -> str:
    """Return torchrun's name of this launch, which restarts keep; "" if it has none."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name


def join_processes(device: torch.device) -> None:
    """Make the process group of this start, if torchrun keeps one store for all starts.

    Addresses of lost processes stay in torchrun's store, and gloo and NCCL would wait for them
    after a restart. So the first process opens a store of its own, and torchrun's only tells the
    others where that is: one that does not answer is of an earlier start.
    """
    if world_size() == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    host, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])
    known = TCPStore(host, int(os.environ["MASTER_PORT"]), is_master=False)
    if rank == 0:
        store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        token = secrets.token_hex(8)
        store.set("token", token)
        known.set(STORE_KEY, f"{store.port} {token}")
    else:
        store = _store_of_first(known, host)
    on_gpu = device.type == "cuda"
    if on_gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        atexit.register(dist.destroy_process_group)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=world_size(),
        device_id=device if on_gpu else None,
    )


def _store_of_first(known: Store, host: str) -> TCPStore:
    """Return the store that the first process has opened in this start."""
    began = time.monotonic()
    while True:
        port, token = known.get(STORE_KEY).decode().split()
        with contextlib.suppress(OSError, RuntimeError):  # an earlier one is closed
            socket.create_connection((host, int(port)), SHORT_WAIT.total_seconds()).close()
            store = TCPStore(host, int(port), is_master=False, timeout=SHORT_WAIT)
            if store.get("token").decode() == token:
                store.set_timeout(LONG_WAIT)
                return store
        if time.monotonic() - began > LONG_WAIT.total_seconds():
            raise RegardError(
                f"the first process of a run must be reachable by all others, but it does not "
                f"answer at {host}: check the network, and start them again."
            )
        time.sleep(0.2)


@final
class DryFabric:
    """The part of Fabric for a dry run: one process, which computes gradients and takes no step."""

    global_rank, world_size, is_global_zero, strategy = 0, 1, True, None

    def __init__(self, device: torch.device, precision: str) -> None:
        self.device, self.precision = device, precision

    def launch(self) -> None:
        """Do nothing: this process is the only one."""

    def autocast(self) -> torch.autocast:
        """Return a context that computes in the precision of the run."""
        half = torch.float16 if self.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, half, enabled=self.precision != "32")

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Move a model to the device, and let it compute in the precision of the run."""
        module.forward = self.autocast()(module.forward)
        return module.to(self.device)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()  # type: ignore[no-untyped-call]


def make_fabric(
    device_name: str, precision: str, strategy: str = "auto", *, dry: bool = False
) -> tuple[Fabric, str]:
    """Return a fabric, not launched yet, and the precision that `auto` stands for.

    Args:
        device_name: cpu, cuda or auto.
        precision: 32, bf16, fp16 or auto.
        strategy: of several processes: `fsdp` shards the weights, `ddp` and `auto` replicate them.
        dry: whether no step will be taken.
    """
    device = devices.pick(device_name)
    precision = best_precision(device) if precision == "auto" else precision
    world, local = world_size(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    plan: Any = "ddp" if world > 1 else "auto"
    if strategy == "fsdp" and precision == "fp16":
        rule = "be 32 or bf16 with strategy=fsdp, since shards have no common scale of the loss"
        raise ArgumentError("precision", rule, "fp16", "give precision=bf16, or strategy=ddp")
    if dry and world == 1:
        return cast("Fabric", DryFabric(device, precision)), precision
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.precision import MixedPrecision
    from lightning_fabric.strategies.model_parallel import ModelParallelStrategy

    plugin = None
    if precision != "32":
        plugin = MixedPrecision(PRECISIONS[precision], device.type)
        # ids of words and target numbers are exact: operations convert what they take in half
        plugin.convert_input = lambda data: data  # type: ignore[method-assign]
    if strategy == "fsdp" and world > 1:
        plan = ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)
    # the run announces its precision itself
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=device.type,
        devices=local if world > 1 or device.index is None else [device.index],
        num_nodes=max(1, world // local),
        strategy=plan,
        plugins=plugin,
    )
    return fabric, precision


def best_precision(device: torch.device) -> str:
    """Return bf16 if the chip has units for it, else fp16 on a GPU and 32 on a CPU."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return "bf16" if torch.cpu._is_amx_tile_supported() else "32"
