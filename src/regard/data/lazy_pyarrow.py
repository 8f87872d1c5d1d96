"""pyarrow, imported on first use: using a trained model does not need it.

`lazy_pyarrow.array` is `pyarrow.array`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return pyarrow's attribute of this name."""
    if name in ("compute", "ipc", "parquet", "types"):
        return import_module(f"pyarrow.{name}")
    return getattr(import_module("pyarrow"), name)
