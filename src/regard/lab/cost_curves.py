"""Measure the cost of layers at growing sizes, and read the results as curves over one size."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab.estimates import MIN_SIZES, Numbers, PowerLaw, crossing, power_law
from regard.lab.experiment import Data
from regard.lab.layers import FamilySpec, build_seeded
from regard.lab.op_counters import longest_chain, multiply_adds, peak_bytes

LayerSize = dict[str, int]
CostRow = dict[str, Any]

#: timed runs of a point: enough for quartiles, and no more than a median needs
MIN_RUNS, MAX_RUNS = 3, 20
#: untimed runs before them, which select kernels and allocate memory; one if it is slow
WARMUPS: Final = 2
SEED: Final = 0
#: exponents are fitted to the largest sizes: at small ones the overhead of calls hides them
FITTED: Final = 5


def repeat(run: Callable[[], Any], device: torch.device, *, patience: float) -> list[float]:
    """Return the seconds of several runs, after warming up.

    Args:
        run: what is timed.
        device: device that it runs on; a CUDA device is synchronised.
        patience: seconds after which no further run is started, once there are `MIN_RUNS`.
    """
    for _ in range(WARMUPS):
        if _seconds(run, device) > patience:
            break
    taken: list[float] = []
    while len(taken) < MIN_RUNS or (len(taken) < MAX_RUNS and sum(taken) < patience):
        taken.append(_seconds(run, device))
    return taken


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


def time_sizes(
    *,
    family: FamilySpec,
    sizes: Sequence[LayerSize],
    batch: int,
    backend: str,
    patience: float,
    room: int,
    device: torch.device,
) -> list[CostRow]:
    """Return time and memory of a family's layer, forward and in training, at growing sizes.

    After `MIN_SIZES` sizes, the first size whose training runs take longer than `patience`, or
    need more than a quarter of `room`, is the last: slow families stop at shorter sequences, and
    large ones leave memory to others.

    Args:
        family: from `Family.spec`.
        sizes: from small to large, each with a `length`, a `width` and options of the family.
        batch: number of sequences.
        backend: as for `ops.use_backend`.
        patience: seconds; also the least time that a point is timed for.
        room: bytes.
        device: device to run on.
    """
    rows: list[CostRow] = []
    with ops.use_backend(backend):
        for size in sizes:
            layer, x = _layer(family, size, batch, device)
            try:
                row = _time(layer, x, patience)
            except torch.OutOfMemoryError:
                break
            rows.append({**size, **row})
            slow = row["training"]["seconds"] > patience
            if len(rows) >= MIN_SIZES and (slow or row["training"]["bytes"] * 4 > room):
                break
    return rows


def _time(layer: nn.Module, x: Tensor, patience: float) -> CostRow:
    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def training() -> None:
        layer(inputs).sum().backward()
        layer.zero_grad()
        inputs.grad = None

    inputs = x.clone().requires_grad_()
    row = {}
    for name, run in (("forward", forward), ("training", training)):
        taken = repeat(run, x.device, patience=patience)
        low, middle, high = statistics.quantiles(taken, n=4, method="inclusive")
        row[name] = {
            "seconds": middle, "low": low, "high": high, "runs": len(taken),
            "bytes": peak_bytes(run, x.device),
        }  # fmt: skip
    return row


def count_sizes(
    *, family: FamilySpec, sizes: Sequence[LayerSize], device: torch.device
) -> list[CostRow]:
    """Return multiply-adds, dependent products and parameters of a layer for one sequence.

    They are counted on the CPU on the definition, since fused kernels hide what they compute.
    """
    del device
    rows = []
    with ops.use_backend("reference"):
        for size in sizes:
            layer, x = _layer(family, size, 1, torch.device("cpu"))
            with torch.no_grad():
                products = multiply_adds(partial(layer, x))
            chain = longest_chain(layer(x.requires_grad_()))
            parameters = sum(p.numel() for p in layer.parameters())
            rows.append({**size, "operations": products, "chain": chain, "parameters": parameters})
    return rows


def _layer(
    family: FamilySpec, size: LayerSize, batch: int, device: torch.device
) -> tuple[nn.Module, Tensor]:
    options = {name: value for name, value in size.items() if name not in ("length", "width")}
    layer = build_seeded(family, size["width"], SEED, **options).to(device)
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(batch, size["length"], size["width"], generator=generator).to(device)
    with torch.no_grad():
        shape = layer(x[:, :1]).shape
    if shape != x[:, :1].shape:
        raise ArgumentError(
            family["name"],
            "return vectors of the shape it takes, (batch, length, width)",
            f"{tuple(shape)} for {tuple(x[:, :1].shape)}",
            "project them back to the width",
        )
    return layer, x


@dataclass(frozen=True)
class CostCurve:
    """Values over sizes, with the quartiles of their runs if they were timed."""

    x: Sequence[int]
    y: Numbers
    low: Numbers
    high: Numbers

    def law(self) -> PowerLaw | None:
        """Return the power law of the largest sizes, or None if fewer than five were measured."""
        if len(self.x) < MIN_SIZES:
            return None
        # a layer without any product has a chain of length 0, which has no logarithm
        return power_law(self.x[-FITTED:], [max(y, 1e-9) for y in self.y[-FITTED:]])


def counted(data: Data, family: str, sweep: str, what: str) -> CostCurve:
    """Return `operations`, `chain` or `parameters` over `length`, `width` or `kernel_size`."""
    rows: list[CostRow] = data["counts"][family][sweep]
    values = [row[what] for row in rows]
    return CostCurve([row[sweep] for row in rows], values, values, values)


def timed(data: Data, family: str, path: str, sweep: str, mode: str = "training") -> CostCurve:
    """Return seconds of the `fast` or the `reference` path, `forward` or in `training`."""
    rows: list[CostRow] = data["runs"][family][path][sweep]
    y, low, high = ([row[mode][key] for row in rows] for key in ("seconds", "low", "high"))
    return CostCurve([row[sweep] for row in rows], y, low, high)


def peak_memory(
    data: Data, family: str, path: str, sweep: str, mode: str = "training"
) -> CostCurve:
    """Return the peak memory in bytes."""
    rows: list[CostRow] = data["runs"][family][path][sweep]
    values = [row[mode]["bytes"] for row in rows]
    return CostCurve([row[sweep] for row in rows], values, values, values)


def crossover(rising: CostCurve, other: CostCurve) -> float | None:
    """Return the size from which one curve stays above another, within their common sizes."""
    both = [x for x in rising.x if x in other.x]
    ups, downs = ([curve.y[curve.x.index(x)] for x in both] for curve in (rising, other))
    return crossing(both, ups, downs)


def format_law(law: PowerLaw | None) -> str:
    """Format an exponent with its interval, or the reason why there is none."""
    return "none: too few sizes" if law is None else str(law)


def format_size(value: float | None, largest: int) -> str:
    """Format the size of a crossover with two digits, or say that there is none."""
    if value is None:
        return f"not up to {largest:,}"
    digits = max(0, math.floor(math.log10(value)) - 1)
    return f"{round(value, -digits):,.0f}"
