"""Compile all CPU kernels into numba's cache, which tests share.

Without it, each process of the tests compiles the kernels that no other has finished yet.
"""

import importlib
from pathlib import Path

import regard

SOURCES = Path(regard.__file__).parent


def modules():
    """Yield the names of the modules that compile a kernel when they are imported."""
    for file in sorted(SOURCES.rglob("*kernels.py")):
        if "@kernel(" in file.read_text(encoding="utf-8"):
            yield ".".join(("regard", *file.relative_to(SOURCES).with_suffix("").parts))


if __name__ == "__main__":
    for name in modules():
        importlib.import_module(name)
