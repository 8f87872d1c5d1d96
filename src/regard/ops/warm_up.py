"""Deferred loading of compiled kernels, until a process decodes enough to be worth it.

Importing numba and reading its kernels from the cache takes about a second, which a single
prediction does not win back: `regard predict` of one word should not wait for it. Kernels whose
import is deferred ask here first.
"""

from typing import Final

#: tokens of a hypothesis that are expected where a search has not begun
TOKENS: Final = 20
#: tokens of hypotheses after which kernels have won back what loading them takes
ENOUGH: Final = 8_000

_decoded = 0


def is_warm(tokens: int = 0) -> bool:
    """Count tokens that will be decoded; return whether compiled kernels pay by now."""
    global _decoded
    _decoded = min(_decoded + tokens, ENOUGH)
    return _decoded == ENOUGH
