import pytest

from regard.evaluation import score
from regard.evaluation.classification import confusion, set_report

# cat: 2 of 3 found, 1 wrong guess; dog: 1 of 2 found, 1 wrong guess; cow: 1 of 1
GOLD = ["cat", "cat", "cat", "dog", "dog", "cow"]
FOUND = ["cat", "cat", "dog", "dog", "cat", "cow"]


def test_a_row_of_the_confusion_is_a_class_of_the_references():
    found = confusion(FOUND, [[label] for label in GOLD])
    assert found.labels == ("cat", "dog", "cow")  # by the number of examples
    counts = {("cat", "cat"): 2, ("cat", "dog"): 1, ("dog", "dog"): 1, ("dog", "cat"): 1}
    assert found.counts == counts | {("cow", "cow"): 1}
    assert found.mistakes() == [("cat", "dog", 1), ("dog", "cat", 1)]
    cat, dog, cow = found.rows()
    assert cat == ("cat", pytest.approx(2 / 3), pytest.approx(2 / 3), pytest.approx(2 / 3), 3, 3)
    assert dog == ("dog", 0.5, 0.5, 0.5, 2, 2)
    assert cow == ("cow", 1.0, 1.0, 1.0, 1, 1)


def test_a_set_of_labels_is_compared_with_the_reference_that_it_equals():
    rows = set_report(["b", "a\nc"], [["a", "b"], ["a"]]).rows
    assert [(r.label, r.f1, r.support) for r in rows] == [("a", 1, 1), ("b", 1, 1), ("c", 0, 0)]


def test_macro_f1_is_the_mean_over_classes():
    found = score("macro-f1", FOUND, GOLD)
    assert found.value == pytest.approx((2 / 3 + 1 / 2 + 1) / 3)
    assert found.higher_is_better
    assert score("accuracy", FOUND, GOLD).value == pytest.approx(4 / 6)
