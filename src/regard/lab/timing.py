"""Layers of growing size: timed, and counted beside it."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab import families
from regard.lab.counting import longest_chain, multiply_adds, peak_bytes
from regard.lab.statistics import MIN_SIZES

Told = dict[str, str]
Size = dict[str, int]
Row = dict[str, Any]

#: runs of a point: enough for quartiles, and no more than a median needs
FEWEST, MOST = 3, 20
#: untimed runs before them, in which kernels are chosen and memory is found; one if it is slow
WARMUPS: Final = 2
SEED: Final = 0


def repeat(run: Callable[[], Any], device: torch.device, *, patience: float) -> list[float]:
    """Seconds of each of several runs, after some that warm up.

    Args:
        run: What is timed.
        device: Where it runs; a CUDA device is waited for.
        patience: Seconds after which no further run is begun, once there are `FEWEST`.
    """
    for _ in range(WARMUPS):
        if _seconds(run, device) > patience:
            break
    taken: list[float] = []
    while len(taken) < FEWEST or (len(taken) < MOST and sum(taken) < patience):
        taken.append(_seconds(run, device))
    return taken


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_sizes(
    *,
    family: Told,
    sizes: Sequence[Size],
    batch: int,
    backend: str,
    patience: float,
    room: int,
    device: torch.device,
) -> list[Row]:
    """Times and memory of a family's layer, forward and in training, at one size after another.

    Once five sizes are done, a size whose training runs take longer than `patience` is the last,
    and so is one of whose memory four times would be more than `room`: slow families stop at
    shorter sequences, and large ones leave others their memory.

    Args:
        family: As `Family.told` tells it.
        sizes: From small to large, each with a `length`, a `width` and options of the family.
        batch: How many sequences run at once.
        backend: As `ops.use_backend` takes it.
        patience: Seconds; see above. It is also how long a point is timed, at least.
        room: Bytes; see above.
        device: Where to run.
    """
    rows: list[Row] = []
    with ops.use_backend(backend):
        for size in sizes:
            layer, x = _layer(family, size, batch, device)
            try:
                row = _timed(layer, x, patience)
            except torch.OutOfMemoryError:
                break
            rows.append({**size, **row})
            slow = row["training"]["seconds"] > patience
            if len(rows) >= MIN_SIZES and (slow or row["training"]["bytes"] * 4 > room):
                break
    return rows


def count_sizes(*, family: Told, sizes: Sequence[Size], device: torch.device) -> list[Row]:
    """Multiply-adds, dependent products and parameters of a family's layer, for one sequence.

    Counted on the CPU on the definition, whatever `device` is: fused kernels hide what they do.
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


def _layer(family: Told, size: Size, batch: int, device: torch.device) -> tuple[nn.Module, Tensor]:
    options = {name: value for name, value in size.items() if name not in ("length", "width")}
    layer = families.seeded(family, size["width"], SEED, **options).to(device)
    chance = torch.Generator().manual_seed(SEED)
    x = torch.randn(batch, size["length"], size["width"], generator=chance).to(device)
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


def _timed(layer: nn.Module, x: Tensor, patience: float) -> Row:
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
