from itertools import combinations, product

from pairwise import cover

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
