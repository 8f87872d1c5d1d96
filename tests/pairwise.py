"""Pairwise test matrices: a cover of all pairs of parameter values by default, the rest in `long`.

A test that is marked `pairwise` is parametrised over the full product. By default it runs for a
subset in which each pair of values of two parameters still occurs; the others are marked `long`.
"""

from collections import defaultdict
from itertools import combinations

import pytest


def thin(items):
    """Mark as `long` what a pairwise cover of each `pairwise` test does not need."""
    groups = defaultdict(list)
    for item in items:
        if item.get_closest_marker("pairwise") and not item.get_closest_marker("gpu"):
            groups[item.parent.nodeid, item.originalname].append(item)
    for group in groups.values():
        chosen = cover([pairs(item) for item in group])
        for i, item in enumerate(group):
            if i not in chosen:
                item.add_marker(pytest.mark.long)


def pairs(item):
    """Pairs of parameter values of a test; one that is trivial covers itself alone."""
    trivial = item.get_closest_marker("pairwise").kwargs.get("trivial")
    if trivial is not None and trivial(item.callspec.params):
        return {"trivial"}
    # not `callspec.indices`, which count the tests of the product
    values = sorted((name, repr(value)) for name, value in item.callspec.params.items())
    return set(combinations(values, 2))


def cover(candidates):
    """Indices of candidates that together have all elements, chosen greedily."""
    chosen, missing = set(), set().union(*candidates)
    while missing:
        best = max(range(len(candidates)), key=lambda i: len(candidates[i] & missing))
        chosen.add(best)
        missing -= candidates[best]
    return chosen
