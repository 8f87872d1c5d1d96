"""Estimators of scikit-learn."""

import pickle
import warnings

import numpy as np
import pytest

from api.test_tables import GOOD, TEXTS

sklearn = pytest.importorskip("sklearn")

from regard.sklearn import Classifier, Regressor  # noqa: E402

FAST = {"steps": 20, "size": "tiny", "device": "cpu", "report": False}
#: checks of scikit-learn that cannot hold, and why
EXPECTED = {}


def test_parameters_are_those_that_were_given():
    from sklearn.base import clone

    made = Classifier(minutes=0.5, preset="classifier-rnn", seed=0)
    assert made.get_params() == {
        "folder": None,
        "quiet": True,
        "minutes": 0.5,
        "preset": "classifier-rnn",
        "seed": 0,
    }
    copy = clone(made).set_params(hidden=16)
    assert (copy.hidden, copy.minutes) == (16, 0.5)
    assert "hidden" not in made.get_params()
    assert repr(made) == "Classifier(minutes=0.5, preset='classifier-rnn', seed=0)"


@pytest.mark.slow
def test_texts_in_cross_validation_a_search_and_a_pipeline():
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    made = Classifier(**FAST | {"steps": 40})
    scores = cross_val_score(made, np.array(TEXTS), np.array(GOOD), cv=2)
    assert scores.mean() > 0.8
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    search = GridSearchCV(make_pipeline(lower, made), {"classifier__steps": [1, 40]}, cv=2)
    search.fit(TEXTS, GOOD)
    assert search.best_params_ == {"classifier__steps": 40}
    shares = search.predict_proba(TEXTS[:3])
    assert shares.sum(axis=1) == pytest.approx(np.ones(3))
    assert search.predict(TEXTS[:3]).dtype == bool


@pytest.mark.slow
def test_a_pickled_model_answers_without_its_folder():
    made = Regressor(**FAST).fit(TEXTS, np.array(GOOD) * 2.5)
    path = made.model_.path
    expected, content = made.predict(TEXTS[:5]), pickle.dumps(made)
    del made
    assert not path.exists()
    assert pickle.loads(content).predict(TEXTS[:5]) == pytest.approx(expected)


@pytest.mark.long
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_checks_of_scikit_learn(kind):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(kind(**FAST), expected_failed_checks=EXPECTED)
