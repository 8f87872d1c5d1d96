from itertools import product
from types import SimpleNamespace

import pytest

from thinning import may_take, thin

SIZES, KINDS, SIGNS = (2, 3, 7), ("even", "odd", "any"), (1, -1)


class Item:
    """As much of a test as thinning looks at."""

    def __init__(self, mark, **params):
        self.parent, self.originalname = SimpleNamespace(nodeid="tests/test_x.py"), "test_x"
        self.callspec, self.marks = SimpleNamespace(params=params), [mark]
        self.nodeid = f"tests/test_x.py::test_x[{params}]"

    def get_closest_marker(self, name):
        return next((mark.mark for mark in self.marks if mark.mark.name == name), None)

    def add_marker(self, mark):
        self.marks.append(mark)


def chosen(items, few=False):
    thin(items, few)
    return [item.callspec.params for item in items if not item.get_closest_marker("long")]


def test_a_pairwise_test_runs_for_every_pair_of_values():
    mark = pytest.mark.pairwise(trivial=lambda params: params["size"] == 7)
    items = [
        Item(mark, size=size, kind=kind, sign=sign)
        for size, kind, sign in product(SIZES, KINDS, SIGNS)
    ]
    found = chosen(items)
    assert sum(p["size"] == 7 for p in found) == 1
    found = [p for p in found if p["size"] != 7]
    assert {(p["kind"], p["size"]) for p in found} == set(product(KINDS, SIZES[:2]))
    assert {(p["kind"], p["sign"]) for p in found} == set(product(KINDS, SIGNS))
    assert len(found) < 12


def test_a_file_is_left_out_if_no_test_of_it_can_be_taken():
    slow, plain = (
        "pytestmark = pytest.mark.slow\n\nx = 1\n",
        "@pytest.mark.plain\ndef test_x(): ...",
    )
    both = slow + "@pytest.mark.long\n"
    taken = {
        (wanted, text): may_take(wanted, text, set())
        for wanted in ("slow or plain", "not slow", "not plain", "slow and not long", "long")
        for text in ("x = 1", slow, plain, both)
    }
    assert {pair for pair, found in taken.items() if not found} == {
        ("slow or plain", "x = 1"),
        ("not slow", slow),
        ("not slow", both),
        ("slow and not long", "x = 1"),
        ("slow and not long", plain),
    }
    assert may_take("plain and not slow", "x = 1", {"plain"})
    assert not may_take("not plain", "x = 1", {"plain"})
