"""The rule by which a path of an operator is accepted, and the cases on which it is asked.

A path may err twice as much as plain torch does at the same type, both measured against the
definition in float64, in its outputs and in every gradient. So nobody picks a tolerance.
A new path is put to the rule by adding its name to the list `BACKENDS` of its operator's test.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import torch
from torch import Tensor

from regard import masks
from regard.errors import BackendError

#: takes the named inputs, returns the outputs that are compared
Op = Callable[..., Iterable[Tensor]]

RUNS_ON: Final = {"torch": ("cpu", "cuda"), "cpu": ("cpu",), "triton": ("cuda",)}
DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MASKS: Final = ("none", "padding", "causal", "arbitrary", "all-masked row")


def breaches(path: Op, definition: Op, inputs: Mapping[str, Tensor]) -> list[str]:
    """What breaks the rule, in words; an empty list if nothing does.

    Args:
        path: the implementation on trial.
        definition: the reference, which is plain torch at the type of the inputs, and the truth
            in float64.
        inputs: what is differentiated; the trial gets these very tensors, strides and all.
    """
    dtype = next(iter(inputs.values())).dtype
    truth = outputs_and_gradients(definition, inputs, torch.float64)
    plain = outputs_and_gradients(definition, inputs, dtype)
    trial = outputs_and_gradients(path, inputs, dtype)
    assert trial.keys() == plain.keys(), f"the path returns {list(trial)}, not {list(plain)}"
    found = []
    for name, tensor in trial.items():
        if tensor.dtype != plain[name].dtype or tensor.shape != plain[name].shape:
            found.append(f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
            continue
        error = _distance(tensor, truth[name])
        limit = 2 * _distance(plain[name], truth[name]) + _tiny(dtype, truth[name])
        if not error <= limit:  # so worded that NaN is a breach
            found.append(f"{name} is {error:.2e} off, and may be {limit:.2e}")
    return found


def refuses_to_differentiate_again(path: Op, inputs: Mapping[str, Tensor]) -> list[str]:
    """What is wrong, in words, unless gradients of gradients raise."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    total = sum(y.square().sum() for y in path(**leaves))
    try:
        torch.autograd.grad(total, list(leaves.values()), create_graph=True)
    except BackendError:
        return []
    return ["gradients have a graph, without what the kernels owe to it"]


def accept(path: Op, definition: Op, inputs: Mapping[str, Tensor]) -> None:
    """Raises unless `path` keeps the rule."""
    found = breaches(path, definition, inputs)
    if found:
        raise AssertionError("the path breaks the rule: " + "; ".join(found))


def outputs_and_gradients(
    op: Op, inputs: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Every output of `op`, and the gradient of every input under one fixed random cotangent."""
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in inputs.items()}
    outputs = list(op(**leaves))
    generator = torch.Generator().manual_seed(1)
    given = next(iter(inputs.values())).dtype  # rounded alike in all runs
    cotangents = [
        torch.randn(y.shape, generator=generator).to(given).to(y.device, y.dtype) for y in outputs
    ]
    gradients = torch.autograd.grad(
        outputs, list(leaves.values()), cotangents, materialize_grads=True
    )
    return {
        **{f"output {i}": y.detach() for i, y in enumerate(outputs)},
        **{f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)},
    }


def where(*backends: str) -> list[object]:
    """Parameters (backend, device): each backend on each device that it runs on."""
    import pytest  # not above: the benchmarks use the rule too, and need no pytest

    on_cuda = [
        pytest.mark.gpu,
        # the thread of the first backward pass finds no context, and makes one
        pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    ]
    return [
        pytest.param(name, device, marks=on_cuda if device == "cuda" else [])
        for name in backends
        for device in RUNS_ON[name]
    ]


def mask_of(
    kind: str, batch: int, heads: int, q_len: int, kv_len: int, device: str = "cpu"
) -> Tensor | None:
    """A mask of each kind in `MASKS`; only the last has a query that may see nothing."""
    if kind == "none":
        return None
    if kind == "padding":
        lengths = torch.arange(batch, device=device) % kv_len + 1
        return masks.padding(lengths, kv_len)
    if kind == "causal":
        return masks.causal(q_len, kv_len, device=torch.device(device))
    generator = torch.Generator().manual_seed(2)
    mask = torch.rand(batch, heads, q_len, kv_len, generator=generator) < 0.6
    mask[..., 0] |= ~mask.any(dim=-1)
    if kind == "all-masked row":
        mask[0, :, q_len // 2] = False
    return mask.to(device)


def strided(tensor: Tensor) -> Tensor:
    """The same values with holes between them, contiguous along no axis."""
    holes = tensor.new_zeros(*tensor.shape[:-1], 2 * tensor.shape[-1])
    holes[..., ::2] = tensor
    return holes[..., ::2]


def transposed(tensor: Tensor) -> Tensor:
    """The same values, the first and the last axis swapped in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


LAYOUTS: Final = {"strided": strided, "transposed": transposed}


def _distance(a: Tensor, b: Tensor) -> float:
    return (a.double() - b).abs().max().item()


def _tiny(dtype: torch.dtype, truth: Tensor) -> float:
    """A few roundings of the largest number, since torch is exact by luck in some cases.

    One query with one key has no gradient: torch's sums cancel exactly, those of a kernel that
    adds in another order to within some roundings. Half-precision kernels add in float32, so that
    the last rounding is all that they need. In float64 the definition is the truth itself.
    """
    roundings = 1 if dtype.itemsize == 2 else 64
    size = max(1.0, truth.abs().max().item())
    return roundings * size * torch.finfo(dtype).eps / 2
