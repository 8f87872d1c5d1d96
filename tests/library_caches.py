"""Objects that libraries build anew for each call, built once for each test process.

A user's process calls these once, where it hardly matters; a test process does a thousand times.
"""

import importlib.metadata
from functools import cache

import typer.testing


def cache_commands() -> None:
    """Let typer build the commands of an app once.

    They hold no state: options are parsed into a context, and help is translated as it is printed.
    """
    typer.main.get_command = typer.testing._get_command = cache(typer.main.get_command)


def cache_entry_points() -> None:
    """Let each `Fabric` find the plugins of installed packages without reading all metadata again.

    Before lightning_fabric is imported, which takes the function by its name.
    """
    importlib.metadata.entry_points = cache(importlib.metadata.entry_points)


def cache_onnx_registry() -> None:
    """Let torch's exporter build its table of ONNX functions once, and not for each graph.

    Nothing is added to it, since regard has no operators of its own.
    """
    # imports onnxscript, which takes a second
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))
