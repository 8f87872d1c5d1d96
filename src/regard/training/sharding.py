"""Fully sharded training: each process holds a part of every weight (FSDP).

Weights, gradients and the optimiser's state are split over the processes (ZeRO, Rajbhandari et al.,
2020, https://arxiv.org/abs/1910.02054), by torch's `fully_shard`. A unit's weights are whole only
while it computes. Evaluation, decoding and the model file need a whole model: `GatheredModel`
collects it from the shards.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import fields
from functools import cache
from typing import Any, Final, final

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import register_pytree_node

from regard.layers.conv import GatedConvolution
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.models import AnyModel
from regard.models.encoder_decoder import EncoderDecoder
from regard.state import State

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
