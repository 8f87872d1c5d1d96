"""What decides a result: the code that made it, its arguments, the machine's part in it."""

import ast
import hashlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

PACKAGE = "regard"
#: what says, lists and draws results, and has no part in them
APART = ("regard.lab", "regard.lab.experiment", "regard.lab.plots")


def fingerprint(
    compute: Callable[..., Any], arguments: dict[str, Any], device: torch.device
) -> str:
    """A text that changes with the code `compute` stands on, its arguments, device and torch."""
    digest = hashlib.blake2b(digest_size=16)
    for path in _sources(Path(inspect.getfile(compute))):
        digest.update(path.read_bytes())
    told = [compute.__qualname__, arguments, _device_name(device), torch.__version__]
    digest.update(json.dumps(told, sort_keys=True).encode())
    return digest.hexdigest()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _sources(start: Path) -> tuple[Path, ...]:
    """A file and all files of the package that it imports, directly or through others."""
    found, waiting = {start}, [start]
    while waiting:
        for path in _imported(waiting.pop()):
            if path not in found:
                found.add(path)
                waiting.append(path)
    return tuple(sorted(found))


def _imported(path: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from filter(None, map(_file, names))


@cache
def _file(name: str) -> Path | None:
    """Where a module of the package lies; None for what is elsewhere, apart, or no module."""
    if not name.startswith(f"{PACKAGE}.") or name in APART:
        return None
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name inside a module
        return None
    return Path(found.origin) if found and found.origin else None
