"""Links from maps, Pharaoh format, error rates: all by hand."""

import numpy as np
import pytest

from data.tools import shared
from regard.data import read_lines
from regard.errors import DataError
from regard.seeing.trace.view import (
    Gold,
    Quality,
    check_gold,
    diagonal,
    format_links,
    merge_units,
    parse_links,
    read_gold,
    strongest,
)


def links(text):
    return parse_links(text).possible


def test_pharaoh_is_read_with_sure_and_possible_links():
    gold = parse_links("0-0 1p2  3?1")
    assert gold.sure == {(0, 0)}
    assert gold.possible == {(0, 0), (1, 2), (3, 1)}
    assert parse_links("").possible == frozenset()
    assert format_links({(10, 0), (2, 3), (2, 1)}) == "2-1 2-3 10-0"


def test_words_may_be_counted_from_1():
    assert read_gold("g", ["a b\tc\t1-1 2p3"], first=1) == [Gold(links("0-0"), links("0-0 1-2"))]
    with pytest.raises(DataError, match="line 1: '0-1' names word 0"):
        read_gold("gold.txt", ["0-1"], first=1)


@pytest.mark.parametrize("line", ["0-", "0-1,2-3", "-1-0", "٣-٣"])
def test_what_is_no_link_is_refused_with_its_line(line):
    with pytest.raises(DataError, match=r"gold\.txt, line 2: .*is not a link"):
        read_gold("gold.txt", ["0-0", line])


def test_gold_of_another_file_is_refused():
    gold = [Gold(links("0-0"), links("0-0"))]
    with pytest.raises(DataError, match="each of the 2 pairs, but it has 1"):
        check_gold("g", gold, [(1, 1), (1, 1)])
    with pytest.raises(DataError, match=r"g, line 1: .*words 0 and 0.*1 source and 0 target"):
        check_gold("g", gold, [(1, 0)])
    check_gold("g", gold, [(1, 1)])


def test_the_error_rate_by_hand():
    # A = {a, b, c}, S = {a, d}, P = {a, d, b}: precision 2/3, recall 1/2, AER 1 - (1 + 2) / 5
    gold = Gold(links("0-0 3-3"), links("0-0 3-3 1-1"))
    found = Quality.of([links("0-0 1-1 2-2")], [gold])
    assert found.precision == pytest.approx(2 / 3)
    assert found.recall == pytest.approx(1 / 2)
    assert found.aer == pytest.approx(0.4)


def test_error_rates_are_of_the_whole_file_and_not_the_mean_of_its_pairs():
    one, two = links("0-0"), links("0-0 1-1 2-2")
    golds = [Gold(one, one), Gold(two, two)]
    assert Quality.of([one, frozenset()], golds).aer == pytest.approx(1 - 2 / 5)
    assert Quality.of([one, two], golds).aer == 0.0
    empty = Quality.of([frozenset()], [Gold(frozenset(), frozenset())])
    assert (empty.aer, empty.precision, empty.recall) == (0.0, 0.0, 0.0)


def test_the_diagonal():
    assert diagonal(3, 3) == links("0-0 1-1 2-2")
    assert diagonal(2, 4) == links("0-0 0-1 1-2 1-3")
    assert diagonal(5, 1) == links("2-0")
    assert diagonal(0, 3) == frozenset()


def test_each_target_word_is_linked_with_what_it_looked_at_most():
    # the last column is no word: `</s>` and the like
    weights = np.array([[0.2, 0.7, 0.1], [0.3, 0.1, 0.6], [0, 0, 0]], dtype=np.float32)
    assert strongest(weights) == {(1, 0)}


def test_columns_of_a_word_are_summed_and_rows_averaged():
    weights = np.array([[[0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.1, 0.6], [0, 0, 1, 0]]], np.float32)
    merged = merge_units(weights, [0, 0, None], [0, 1, 1, None])
    np.testing.assert_allclose(merged, [[[0.2, 0.3, 0.5]]], atol=1e-6)
    lone = merge_units(np.ones((1, 1, 1), np.float32), [1], [1])
    np.testing.assert_array_equal(lone, [[[0, 0, 0], [0, 1, 0]]])


def test_gold_of_the_hansards_is_read_as_it_is_published():
    rows = list(read_lines(shared("wordalign_gold/awesome.enfr.tsv.gz")))
    golds = read_gold("gold", rows, first=1)
    sizes = [tuple(len(side.split()) for side in row.split("\t")[:2]) for row in rows]
    check_gold("gold", golds, sizes)
    assert len(golds) == 447
    # Och and Ney (2003) count 4,038 sure and 13,400 possible links in these sentences
    assert sum(len(one.sure) for one in golds) == 4038
    assert sum(len(one.possible - one.sure) for one in golds) == 13400
