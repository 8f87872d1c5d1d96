"""`regard doctor`: what regard finds on this machine."""

import platform
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import torch
from torch import nn

from regard.cli.console import print_json, print_table, result_console
from regard.extras import install_command, is_installed
from regard.ops.additive_attention import PATHS as ADDITIVE
from regard.ops.attentive_rnn import PATHS as ATTENTIVE
from regard.ops.dot_product_attention import PATHS as DOT_PRODUCT
from regard.ops.monotonic_alignment import PATHS as MONOTONIC
from regard.ops.self_attentive_rnn import PATHS as SELF_ATTENTIVE
from regard.version import __version__

OPERATORS: Final[dict[str, Iterable[str]]] = {
    "additive_attention": ADDITIVE,
    "dot_product_attention": DOT_PRODUCT,
    "attentive_rnn": ATTENTIVE,
    "self_attentive_rnn": SELF_ATTENTIVE,
    "monotonic_alignment": MONOTONIC,
}


HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
#: what the presets are made of
LAYERS: Final[dict[str, Callable[[], nn.Module]]] = {
    "linear": lambda: nn.Linear(8, 8),
    "GRU": lambda: nn.GRU(8, 8, batch_first=True),
    "LSTM": lambda: nn.LSTM(8, 8, batch_first=True),
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
}


def doctor(*, as_json: bool) -> None:
    """Print versions, devices and backends."""
    if as_json:
        return print_json(dict(report()))
    return print_table(result_console(), ("name", "found"), report(), header=False)


def report() -> list[tuple[str, str]]:
    """Names and what was found, in the order in which they are read."""
    return [
        ("regard", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("triton", _installed("triton")),
        ("numba", _installed("numba")),
        ("cpu", f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"),
        ("cpu precisions", ", ".join(["32", *map(_cpu_precision, HALF)])),
        ("cuda", _cuda()),
        *((name, _usable(paths)) for name, paths in OPERATORS.items()),
    ]


def _cpu_precision(name: str) -> str:
    """A half precision, and the layers that this CPU has no kernels for in it."""
    lacking = [layer for layer, make in LAYERS.items() if not _trains(make, HALF[name])]
    return f"{name} but for {' and '.join(lacking)}" if lacking else name


def _trains(make: Callable[[], nn.Module], dtype: torch.dtype) -> bool:
    """Whether a layer runs forward and backward on this CPU under autocast."""
    layer, x = make(), torch.zeros(2, 3, 8)
    inputs = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
    try:
        with torch.autocast("cpu", dtype):
            found = layer(*inputs)
            (found[0] if isinstance(found, tuple) else found).float().sum().backward()
    except RuntimeError:
        return False
    return True


def _usable(paths: Iterable[str]) -> str:
    """The paths that can run here, then why others cannot."""
    lacks = {"triton": _triton_lacks(), "cpu": _cpu_lacks()}
    able = [name for name in paths if not lacks.get(name)]
    return "; ".join([", ".join(able), *(f"{n} {lacks[n]}" for n in paths if lacks.get(n))])


def _triton_lacks() -> str:
    if not torch.cuda.is_available():
        return "needs a GPU"
    return "" if is_installed("triton") else "needs triton"


def _cpu_lacks() -> str:
    return "" if is_installed("numba") else f"needs numba ({install_command('cpu')})"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    if not torch.cuda.is_available():
        return "none"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
