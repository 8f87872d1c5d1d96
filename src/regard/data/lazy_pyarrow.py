"""pyarrow by another name, loaded when it is first asked for: who uses a model does not need it.

`arrow.array` is `pyarrow.array`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """What pyarrow has by this name."""
    if name in ("parquet", "types"):
        return import_module(f"pyarrow.{name}")
    return getattr(import_module("pyarrow"), name)
