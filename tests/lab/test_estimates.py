"""Intervals against tables of Student's t, fits against curves whose exponents are known."""

import math
import re

import pytest

from regard.lab.estimates import (
    crossing,
    difference,
    grouped_table,
    interval,
    listed,
    power_law,
    student_t,
)

SIZES = [64, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # from printed tables of Student's distribution, 95% two-sided
    [(1, 12.706), (2, 4.303), (9, 2.262), (120, 1.980)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, abs=5e-4)


def test_interval_of_three_values_by_hand():
    # mean 2, standard deviation 1, error 1 / sqrt(3), t(2) = 4.303
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.low == pytest.approx(2 - 4.3027 / math.sqrt(3), abs=1e-4)
    assert found.high == pytest.approx(2 + 4.3027 / math.sqrt(3), abs=1e-4)


def test_one_value_is_its_own_interval():
    found = interval([0.7])
    assert found.mean == found.low == found.high == 0.7


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 1.0, 2.0])
def test_an_exact_power_law_is_found(exponent):
    found = power_law(SIZES, [3 * x**exponent for x in SIZES])
    assert found.exponent.mean == pytest.approx(exponent, abs=1e-9)
    assert found.exponent.high - found.exponent.low < 1e-6
    assert found.includes(exponent, within=1e-9)
    assert not found.includes(exponent + 0.1)


def test_the_interval_of_an_exponent_by_hand():
    # log2 y = log2 x plus residuals that no line can take up, on five points: error
    # sqrt(sum r^2 / 3 / sum (x - mean)^2) = sqrt(4 / 3 / 10) of these, t(3) = 3.1824
    noise = [0.1, -0.1, 0.0, -0.1, 0.1]  # orthogonal to 1 and to (-2, -1, 0, 1, 2)
    found = power_law([2.0**i for i in range(5)], [2.0 ** (i + noise[i]) for i in range(5)])
    assert found.exponent.mean == pytest.approx(1)
    assert found.exponent.high - 1 == pytest.approx(3.1824 * 0.1 * math.sqrt(4 / 30), rel=1e-4)


def test_a_small_wobble_is_no_bend():
    wobble = [1.05, 0.95, 1.02, 0.97, 1.04, 0.99]
    found = power_law(SIZES, [w * x**2 for w, x in zip(wobble, SIZES, strict=True)])
    assert found.includes(2)
    assert str(found).startswith(f"{found.exponent.mean:.2f} [")


def test_a_sum_of_two_powers_is_none():
    found = power_law(SIZES, [x**2 + 512 * x for x in SIZES])
    assert found.last > 1.6
    assert re.fullmatch(rf"none: its slope goes from 1\.[0-3]\d to {found.last:.2f}", str(found))
    assert not found.includes(found.exponent.mean)


def test_points_that_scatter_are_none():
    found = power_law(SIZES, [1.0, 30.0, 2.0, 60.0, 4.0, 90.0])
    assert "scatter" in found.reason


def test_curves_cross_where_their_formulas_say():
    # x^2 = 300 x at 300, between two of the points
    assert crossing(SIZES, [x**2 for x in SIZES], [300 * x for x in SIZES]) == pytest.approx(300)


def test_curves_that_do_not_cross():
    assert crossing(SIZES, SIZES, [2 * x for x in SIZES]) is None
    assert crossing(SIZES, [2 * x for x in SIZES], SIZES) == pytest.approx(64)


def test_a_difference_is_taken_seed_by_seed() -> None:
    found = difference([5.0, 9.0], [4.0, 8.0])
    assert (found.mean, found.low, found.high) == (1, 1, 1)


def test_a_table_has_a_line_for_each_group_of_rows():
    rows = [{"a": 2, "n": 1}, {"a": 1, "n": 2}, {"a": 2, "n": 3}]
    made = grouped_table(
        "", rows, ("a",), {"a": lambda g: str(g[0]["a"]), "n": lambda g: str(len(g))}
    )
    assert (made.columns, made.rows) == (["a", "n"], [["2", "2"], ["1", "1"]])


@pytest.mark.parametrize(("names", "said"), [([], "none"), (["a"], "a"), ([*"abc"], "a, b and c")])
def test_names_are_listed_as_a_sentence_has_them(names, said):
    assert listed(names) == said
