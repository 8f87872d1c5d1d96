"""Estimators of scikit-learn."""

import pickle
import warnings

import numpy as np
import pytest

from api.test_tables import GOOD, TEXTS

sklearn = pytest.importorskip("sklearn")

from regard.errors import ArgumentError  # noqa: E402
from regard.sklearn import Classifier, Regressor  # noqa: E402

FAST = {"steps": 20, "size": "tiny", "device": "cpu", "report": False}
#: checks of scikit-learn that cannot hold, and why
EXPECTED = {
    "check_no_attributes_set_in_init": "any setting may be given, and is an attribute then",
    "check_methods_subset_invariance": "sums of other batches round otherwise in 32 bits",
    "check_regressors_train": "few steps learn too little; test_rows_of_numbers_are_learned",
}


@pytest.mark.long
def test_texts_in_cross_validation_a_search_and_a_pipeline():
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    made = Classifier(**FAST | {"steps": 40})
    scores = cross_val_score(made, np.array(TEXTS), np.array(GOOD), cv=2)
    assert scores.mean() > 0.8
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    made.set_params(preset="classifier-rnn")
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


def test_a_single_class_is_refused_in_a_sentence():
    with pytest.raises(
        ArgumentError, match="y must have two classes or more, but it is of 1 class"
    ):
        Classifier(**FAST).fit(TEXTS, [1] * len(TEXTS))


@pytest.mark.slow
def test_rows_of_numbers_are_learned():
    rows = np.random.default_rng(0).normal(size=(200, 5))
    found = Regressor(**FAST | {"steps": 60, "lr": 0.005}).fit(rows, rows @ [3, -2, 1, 0, 0])
    assert found.n_features_in_ == 5
    assert found.score(rows, rows @ [3, -2, 1, 0, 0]) > 0.5
    with pytest.raises(ValueError, match="expecting 5 features"):
        found.predict(rows[:, :4])


@pytest.mark.long
@pytest.mark.parametrize("kind", [Classifier, Regressor])
def test_checks_of_scikit_learn(kind):
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = kind(lr=0.03 if kind is Classifier else 0.005, **FAST)
        found = check_estimator(made, expected_failed_checks=EXPECTED)
    assert sum(check["status"] == "passed" for check in found) > 40
