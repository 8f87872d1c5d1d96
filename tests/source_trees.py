"""The parsed sources of the package, shared by the tests that read them."""

import runpy
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
Package = runpy.run_path(str(ROOT / "benchmarks" / "tools" / "house.py"))["Package"]


@cache
def package():
    """Return the modules of the package with their trees and nodes, parsed once per process."""
    return Package(ROOT)
