import pytest

from evaluation.test_metrics import GOLD, SEVERAL, SYSTEM
from regard.errors import ArgumentError
from regard.evaluation import by_length, score

LENGTHS = [6, 5, 2, 2, 9]


def test_rows_are_the_scores_of_their_sources():
    short, middle, long = by_length(
        ["bleu", "per", "exact"], LENGTHS, SYSTEM, SEVERAL, buckets=[2, 6]
    )
    assert [(r.shortest, r.longest, r.count) for r in (short, middle, long)] == [
        (2, 2, 2),
        (5, 6, 2),
        (9, 9, 1),
    ]
    for row, places in ((short, [2, 3]), (middle, [0, 1]), (long, [4])):
        system, gold = [SYSTEM[i] for i in places], [SEVERAL[i] for i in places]
        for name, value in row.values.items():
            assert value == pytest.approx(score(name, system, gold).value)


@pytest.mark.plain
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: by_length(["per"], [1, 2], SYSTEM, GOLD),
            ["src_lengths must", "each of the 5", "a list of 2"],
        ),
        (
            lambda: by_length(["per"], LENGTHS, SYSTEM, GOLD, buckets=0),
            ["buckets must", "at least 1", "0"],
        ),
        (lambda: by_length(["pre"], LENGTHS, SYSTEM, GOLD), ["metric must", "'pre'", "mean per"]),
    ],
)
def test_wrong_calls(call, words):
    with pytest.raises(ArgumentError) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)
