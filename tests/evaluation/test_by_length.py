import pytest

from evaluation.test_metrics import SEVERAL, SYSTEM
from regard.evaluation import by_length, score

LENGTHS = [6, 5, 2, 2, 9]


def test_rows_are_the_scores_of_their_sources():
    rows = by_length(["bleu", "per", "exact"], LENGTHS, SYSTEM, SEVERAL, buckets=2)
    short, long = rows
    assert [(r.shortest, r.longest, r.count) for r in rows] == [(2, 5, 3), (6, 9, 2)]
    for row, places in ((short, [1, 2, 3]), (long, [0, 4])):
        system, gold = [SYSTEM[i] for i in places], [SEVERAL[i] for i in places]
        for name, value in row.values.items():
            assert value == pytest.approx(score(name, system, gold).value)
