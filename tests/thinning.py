"""Fewer parameter sets of a test: enough of them by default, all of them in `make long`.

- A test that is marked `pairwise` is parametrised over the full product. It runs for a subset in
  which each pair of values of two parameters still occurs.
- A test that is marked `sample(n)` runs for `n` of its parameter sets. Tests begin at different
  ones, so that together they still run each set.
- With `--few`, as in `make check`, each test runs for one of its parameter sets, and not at all if
  that takes long by the record of `python -m benchmarks.tools.durations`.

What is left out is marked `long`.
"""

import json
import re
import zlib
from collections import defaultdict
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

#: parameter sets of a test with `--few`
FEW = 1
#: marks that a file of tests names, and those of them that all of its tests have
MARK = re.compile(r"\bmark\.(\w+)")
MARKS_OF_ALL = re.compile(r"^pytestmark = .*?\n\n", re.MULTILINE | re.DOTALL)
RECORD = Path(__file__).parents[1] / "benchmarks" / "results" / "tests.json"


def may_take(expression, text, always):
    """Whether `-m` may take a test of a file, by the marks that are named there.

    A test has those that it has always, those of `pytestmark`, and some of the others; any may have
    become `long` here.
    """
    always = always | set(MARK.findall("".join(MARKS_OF_ALL.findall(text))))
    others = ({"long", *MARK.findall(text)} - always) & set(re.findall(r"\w+", expression))
    sets = chain.from_iterable(combinations(others, n) for n in range(len(others) + 1))
    wanted = Expression.compile(expression)
    return any(wanted.evaluate(lambda name: name in always or name in some) for some in sets)  # noqa: B023


def thin(items, few=False):
    """Mark as `long` the parameter sets that a test can do without."""
    groups = defaultdict(list)
    known = few and RECORD.exists()
    not_quick = set(json.loads(RECORD.read_text())["not_quick"]) if known else set()
    for item in items:
        if item.nodeid.partition("[")[0] in not_quick:
            item.add_marker(pytest.mark.long)
        if hasattr(item, "callspec") and not item.get_closest_marker("gpu"):
            groups[item.parent.nodeid, item.originalname].append(item)
    for (_, name), group in groups.items():
        if group[0].get_closest_marker("pairwise"):
            leave_out(group, cover([pairs(item) for item in group]))
        if sample := group[0].get_closest_marker("sample"):
            leave_out(group, spread(name, len(usual(group)), sample.args[0]))
        if few:
            leave_out(group, spread(name, len(usual(group)), FEW))


def usual(group):
    """Items that are not marked `long`."""
    return [item for item in group if not item.get_closest_marker("long")]


def leave_out(group, chosen):
    """Mark as `long` what is not among the indices chosen."""
    for i, item in enumerate(usual(group)):
        if i not in chosen:
            item.add_marker(pytest.mark.long)


def spread(name, count, most):
    """Indices of at most `most` of `count` sets, at equal distances from where the name says."""
    first, most = zlib.crc32(name.encode()), min(most, count)
    return {(first + i * count // most) % count for i in range(most)}


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
