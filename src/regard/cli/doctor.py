"""What regard finds on this machine."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from regard.ops.additive_attention import PATHS as ADDITIVE
from regard.ops.attentive_rnn import PATHS as ATTENTIVE
from regard.ops.dot_product_attention import PATHS as DOT_PRODUCT
from regard.ops.self_attentive_rnn import PATHS as SELF_ATTENTIVE
from regard.version import __version__


def report() -> list[tuple[str, str]]:
    """Names and what was found, in the order in which they are read."""
    return [
        ("regard", __version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("triton", _installed("triton")),
        ("cpu", f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"),
        ("cuda", _cuda()),
        ("additive_attention", ", ".join(ADDITIVE)),
        ("dot_product_attention", ", ".join(DOT_PRODUCT)),
        ("attentive_rnn", ", ".join(ATTENTIVE)),
        ("self_attentive_rnn", ", ".join(SELF_ATTENTIVE)),
    ]


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cuda() -> str:
    if not torch.cuda.is_available():
        return "none"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
