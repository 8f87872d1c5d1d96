from itertools import combinations, product

import pytest

from pairwise import cover, thin

AXES = {"backend": 2, "dtype": 4, "mask": 5, "weights": 2}


def test_a_cover_has_every_pair_of_values_and_is_far_smaller_than_the_product():
    everything = [
        set(combinations(zip(AXES, values, strict=True), 2))
        for values in product(*map(range, AXES.values()))
    ]
    chosen = cover(everything)
    assert set().union(*(everything[i] for i in chosen)) == set().union(*everything)
    assert 4 * 5 <= len(chosen) <= 24 < len(everything)


def test_what_is_the_same_every_time_runs_once():
    assert cover([{"trivial"}, {1, 2}, {"trivial"}, {2, 3}]) == {0, 1, 3}


@pytest.mark.pairwise(trivial=lambda params: params["size"] == 7)
@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("kind", ["even", "odd", "any"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_marked_test_is_thinned(request, sign, kind, size):
    own = [item for item in request.session.items if item.originalname == request.node.originalname]
    thin(own)
    chosen = [item.callspec.params for item in own if not item.get_closest_marker("long")]
    assert {(p["kind"], p["size"]) for p in chosen if p["size"] != 7} == {
        (kind, size) for kind in ("even", "odd", "any") for size in (2, 3)
    }
    assert {(p["kind"], p["sign"]) for p in chosen if p["size"] != 7} == {
        (kind, sign) for kind in ("even", "odd", "any") for sign in (1, -1)
    }
    assert sum(p["size"] == 7 for p in chosen) <= 1
    assert len(chosen) < 18
