import pytest

from regard.lab.comparing import difference, spread
from regard.lab.statistics import Interval


def test_a_difference_is_taken_seed_by_seed() -> None:
    found = difference([5.0, 9.0], [4.0, 8.0])
    assert (found.mean, found.low, found.high) == (1, 1, 1)


def test_models_with_different_seeds_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        difference([1.0, 2.0], [1.0])


def test_an_interval_is_told_with_its_unit() -> None:
    assert spread(Interval(97.12, 96.0, 98.25), 1, "%") == "97.1% (96.0 to 98.2)"
