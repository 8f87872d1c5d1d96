"""Numbers as targets: of texts and of tables of vectors."""

import numpy as np
import pytest

import regard
from regard.errors import ArgumentError, DataError

TINY = {"embed": 8, "hidden": 8, "layers": 1}
QUICK = {"numbers": True, "device": "cpu", "report": False, "quiet": True}
WORTH = {"good": 20.0, "bad": -20.0, "the": 0.0, "film": 0.0}


def rated(count=40, seed=1):
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(list(WORTH), draw.integers(2, 6))) for _ in range(count)]
    return [(text, f"{50 + sum(map(WORTH.get, text.split())):g}") for text in texts]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learned what each word is worth."""
    output = tmp_path_factory.mktemp("numbers") / "run"
    settings = {"steps": 150, "lr": 0.01, "src_tokenizer": "space", "dropout": 0.0}
    regard.fit(rated(400), "classifier-rnn", output=output, **settings, **TINY, **QUICK)
    return regard.load(output)


@pytest.mark.slow
def test_a_model_learns_numbers_in_their_own_unit(trained):
    assert str(trained.task) == "text to number"
    table = trained.evaluate(rated(100, seed=2))
    assert table.columns == ("mse", "mae", "r2", "pearson")
    (name, own), (baseline, mean) = table.rows
    assert (name, baseline) == ("classifier-rnn", "mean of training")
    assert own[2] > 0.9
    assert mean[2] < 0.1
    values = [found.value for found in trained.predict(["good good film", "bad bad film"])]
    assert values[0] - values[1] == pytest.approx(80, abs=15)


def test_a_check_names_what_the_number_depends_on(trained):
    trace = trained.check("the good film")
    assert int(trace.derived["change"][0].argmax()) == 1
    assert "good (+" in trace.checks["sentences"][0]
    for one in (trace, trained.trace("the film"), trained("the film").trace):
        assert (one.model, one.decoded.mode) == (trained.info, "one pass")
    for name in ("target", "methods", "versus"):
        with pytest.raises(ArgumentError, match=f"{name} must be left out"):
            trained.check("the good film", **{name: "all"})


def test_vectors_have_numbers_as_well(tmp_path):
    draw = np.random.default_rng(4)
    tables = [draw.normal(size=(draw.integers(2, 6), 3)).astype(np.float32) for _ in range(40)]
    pairs = [(table, str(1e12 + float(table[:, 0].sum()))) for table in tables]
    output = tmp_path / "run"
    regard.fit(pairs, "classifier-rnn", output=output, steps=2, stack=2, **TINY, **QUICK)
    model = regard.load(output)
    found = next(iter(model.predict([tables[0]])))
    assert float(found.text) == pytest.approx(found.value, rel=0, abs=0.01)
    assert found.trace.source.backdrop is not None
    assert len(found.as_json()["attention"]) == -(-len(tables[0]) // 2)


@pytest.mark.parametrize("target", ["three", "nan", "inf", "", "1_0"])
def test_a_target_that_is_no_number_is_named(target, tmp_path):
    file = tmp_path / "pairs.tsv"
    lines = [f"{text}\t{number}" for text, number in rated(20)]
    file.write_text("\n".join([*lines[:3], f"the film\t{target}", *lines[3:]]) + "\n")
    with pytest.raises(DataError, match="line 4"):
        regard.fit(file, output=tmp_path / "run", steps=1, **QUICK)
