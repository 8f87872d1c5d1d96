import pytest

from regard.evaluation import score
from regard.evaluation.classification import Span, are_span_tags, span_rows, spans


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        # IOB1: a span begins with I, and B is only between two of one type
        ("I-PER I-PER B-PER O", [("PER", 0, 2), ("PER", 2, 3)]),
        ("I-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        # IOBES and BILOU
        ("B-PER I-PER E-PER S-PER", [("PER", 0, 3), ("PER", 3, 4)]),
        ("B-PER L-PER U-LOC U-LOC", [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 3, 4)]),
        ("B-PER E-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3), ("PER", 3, 4)]),
        ("B-PER E-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),
        ("S-PER I-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("I-PER S-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        # without types
        ("B I O I", [("", 0, 2), ("", 3, 4)]),
        ("", []),
    ],
)
def test_spans_are_those_of_the_shared_tasks(tags, expected):
    assert spans(tags.split()) == [Span(*one) for one in expected]


MARKS = ("O B-PER I-PER", "B-PER", "O I-PER", "B I O", "O B-PER E-PER S-PER")
OTHERS = ("NOUN VERB", "O", "B C D", "I-PER NOUN", "S-", "E S O")


@pytest.mark.parametrize("tags", [*MARKS, *OTHERS])
def test_tags_that_mark_spans_are_recognised(tags):
    assert are_span_tags(tags.split()) is (tags in MARKS)


GOLD = ["B-PER I-PER O B-LOC", "B-PER O O", "O O"]
# one person is right, one is too short, a place is right and one is made up
FOUND = ["B-PER I-PER O B-LOC", "O O O", "B-LOC O"]


def test_f1_of_spans_by_hand():
    # 2 of 3 predicted spans are right, and 2 of 3 true ones are found
    assert score("span-f1", FOUND, GOLD).value == pytest.approx(2 / 3)
    assert score("span-f1", ["B-PER O O"], ["B-PER I-PER O"]).value == 0
    assert score("span-f1", ["O O"], [["B-PER O", "O O"]]).value == 0  # nothing to find


def test_results_by_type():
    per, loc = span_rows(FOUND, [[gold] for gold in GOLD])
    assert per == ("PER", 1.0, 0.5, pytest.approx(2 / 3), 2, 1)
    assert loc == ("LOC", 0.5, 1.0, pytest.approx(2 / 3), 1, 2)
