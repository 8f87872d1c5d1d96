"""Tables, arrays and label types: `fit`, `predict` and `score` as people write them."""

import random

import numpy as np
import pyarrow as pa
import pytest

import regard
from regard.api.tables import choose_named
from regard.errors import ArgumentError, DataError

SMALL = {"size": "tiny", "quiet": True, "device": "cpu", "report": False, "steps": 40}
WORDS = {True: ["superb", "lovely"], False: ["dull", "awful"]}


def examples(count=120, seed=1):
    draw = random.Random(seed)
    good = [draw.random() < 0.5 for _ in range(count)]
    words = ["the", "film", "plot", "was", "and", "a"]
    texts = [
        " ".join([*draw.choices(words, k=draw.randint(2, 5)), draw.choice(WORDS[one])])
        for one in good
    ]
    return texts, good


TEXTS, GOOD = examples()
COLUMNS = {"row": list(range(len(TEXTS))), "review": TEXTS, "stars": [int(g) + 1 for g in GOOD]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(COLUMNS)
    path = tmp_path_factory.mktemp("tables") / "run"
    return regard.fit(frame, target="stars", source="review", output=path, **SMALL)


def libraries():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    datasets = pytest.importorskip("datasets")
    yield pandas.DataFrame(COLUMNS, index=range(5, 5 + len(TEXTS)))
    yield polars.DataFrame(COLUMNS)
    yield pa.table(COLUMNS)
    yield datasets.Dataset.from_dict(COLUMNS)


@pytest.mark.slow
def test_a_table_is_answered_by_one_of_its_library_with_labels_of_their_type(model):
    assert model.classes_.tolist() == [1, 2]
    assert model.classes_.dtype.kind == "i"
    expected = [int(out.text) for out in model(TEXTS)]
    shares = [out.probabilities[out.text] for out in model(TEXTS)]
    for table in libraries():
        found = model.predict(table)
        assert type(found) is type(table)
        assert list(found["answer"]) == expected if not isinstance(found, pa.Table) else True
        assert [float(s) for s in np.asarray(found["confidence"])] == pytest.approx(shares)
    frame = next(libraries())
    found = model(frame, nbest=2)
    assert list(found.index) == list(frame.index)
    assert found["answer"].dtype == frame["stars"].dtype
    (other,) = found["alternatives"].iloc[0]
    assert other["answer"] == 3 - found["answer"].iloc[0]
    assert other["confidence"] + found["confidence"].iloc[0] == pytest.approx(1)
    assert len(model.predict(frame.head(0))) == 0


@pytest.mark.slow
def test_a_score_is_the_share_of_right_labels_in_any_form(model):
    frame = next(libraries())
    right = np.mean(
        [int(out.text) == stars for out, stars in zip(model(TEXTS), COLUMNS["stars"], strict=True)]
    )
    assert model.score(frame) == pytest.approx(right)
    for texts, stars in ((TEXTS, COLUMNS["stars"]), (pa.array(TEXTS), frame["stars"] * 1.0)):
        assert model.score(texts, stars) == pytest.approx(right)
    with pytest.raises(ArgumentError, match="text must be a string, or several"):
        model(np.array("one text"))
    assert [out.text for out in model(pa.chunked_array([TEXTS]))] == [o.text for o in model(TEXTS)]
    assert right > 0.9
    # types of labels are kept with the run
    assert regard.load(model.path, device="cpu").classes_.tolist() == [1, 2]
    with pytest.raises(ArgumentError, match="X and y must be of one length"):
        model.score(TEXTS, [1])


@pytest.mark.slow
def test_sources_and_targets_apart():
    brief = {**SMALL, "steps": 1}
    model = regard.fit(np.array(TEXTS), np.array(GOOD), **brief)
    assert model.classes_.tolist() == [False, True]
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (60, 8, 8), dtype=np.uint8)
    model = regard.fit(pictures, [i % 3 for i in range(60)], **brief)
    assert str(model.task) == "picture to label"
    assert len(list(model.predict(pictures))) == 60
    frames = draw.normal(size=(60, 5, 3))
    model = regard.fit(frames, frames.mean(axis=(1, 2)), **brief)
    assert str(model.task) == "frames to number"
    assert model.score(frames, frames.mean(axis=(1, 2))) <= 1
    with pytest.raises(AttributeError, match="classes_"):
        _ = model.classes_


def test_lists_of_tokens_are_read_where_answers_are_asked():
    rows = [
        {"tokens": list("abc")[: 1 + i % 3], "tags": list("XYX")[: 1 + i % 3]} for i in range(90)
    ]
    model = regard.fit(rows, target="tags", **{**SMALL, "steps": 1})
    table = pa.table({"tokens": [row["tokens"] for row in rows[:3]]})
    found = [row["answer"].split() for row in model.predict(table).to_pylist()]
    assert [len(tags) for tags in found] == [1, 2, 3]


def test_names_that_are_numbers_are_no_places():
    rows = [{1: text, 0: stars} for text, stars in zip(TEXTS, COLUMNS["stars"], strict=True)]
    table = pa.table({"1": TEXTS, "0": COLUMNS["stars"]})
    for given, roles in ((rows, {"source": 1, "target": 0}), (table, {})):
        model = regard.fit(given, **roles, **{**SMALL, "steps": 1})
        assert model.config.columns == ("1", "0")
        assert model.task.labels == ("1", "2")
        assert len(model.predict(table)) == model.evaluate(rows).pairs == len(TEXTS)


def test_columns_that_are_not_there_or_not_clear_are_named():
    rows = [{"a": "x", "b": "y", "c": 1}] * 3
    with pytest.raises(ArgumentError, match="target must be one of the columns, a, b, c"):
        regard.fit(rows, target="d")
    with pytest.raises(DataError, match="a, b, c, and which is the source is not clear: name it"):
        regard.fit(rows, target="c")
    forms = [{"lemma": f"go{i}", "form": f"went{i}", "tag": "AB"[i % 2]} for i in range(9)]
    assert choose_named(forms, None, "form") == ("lemma", "form")
    with pytest.raises(ArgumentError, match="a column must be left out beside y"):
        regard.fit(["x"], [1], target="d")
    with pytest.raises(ArgumentError, match="target must be one of the columns, x, y"):
        regard.fit([("x", "y")], target="d")
