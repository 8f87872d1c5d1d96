"""Estimators of scikit-learn: `Classifier` and `Regressor`, for texts and for numbers.

They work where scikit-learn's own do: in `cross_val_score`, `GridSearchCV` and `Pipeline`. A source
is a text; a row of a 2-D array, each column of which has a scale of its own; frames (n, frames,
features); or a picture (n, height, width, channels).

Example:
    >>> regard.sklearn.Classifier(steps=3, seed=0)
    Classifier(seed=0, steps=3)
"""

import json
import shutil
import weakref
from typing import Any, ClassVar, Self

import numpy as np

from regard import extras
from regard.api import fit
from regard.errors import ArgumentError

extras.require("sklearn", extra="sklearn", for_="regard.sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin  # noqa: E402
from sklearn.utils import column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["Classifier", "Regressor"]


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """A model with the interface of scikit-learn.

    Args:
        folder: the run folder, which must be new; if None, a temporary one that goes with the
            model.
        quiet: whether training shows nothing.
        settings: those of `regard.fit`: `minutes=0.5`, `preset="classifier-rnn"`, `seed=0`, ...
    """

    #: the setting by which targets are labels, or numbers
    _output: ClassVar[dict[str, Any]]

    def __init__(self, *, folder: str | None = None, quiet: bool = True, **settings: Any) -> None:
        self.set_params(folder=folder, quiet=quiet, **settings)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return folder, quiet and the settings that were given."""
        return {k: v for k, v in vars(self).items() if k[0] != "_" and k[-1] != "_"}

    def set_params(self, **params: Any) -> Self:
        """Change settings: any that the constructor takes."""
        self.__dict__.update(params)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return what scikit-learn is told of inputs: texts, and arrays of two or more axes."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = tags.input_tags.three_d_array = True
        tags.non_deterministic = "minutes" in self.get_params()
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Train a model on sources and their targets."""
        sources = _other_sources(X)
        if sources is None:
            sources, y = validate_data(self, X, y, ensure_min_samples=2)
        settings = {**self._output, **self.get_params()}
        folder = settings.pop("folder")
        self.model_ = fit(sources, self._targets(column_or_1d(y)), output=folder, **settings)
        if folder is None:
            weakref.finalize(self.model_, shutil.rmtree, self.model_.path.parent, True)
        return self

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y, np.float64)

    def _outputs(self, X: Any) -> list[Any]:
        check_is_fitted(self)
        sources = _other_sources(X)
        if sources is None:
            sources = validate_data(self, X, reset=False)
        return list(self.model_.predict(sources, attention=False))


class Classifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier, with any settings of `regard.fit`.

    Examples:
        >>> texts = [f"{n} {word}" for n in range(18) for word in ("good", "bad")]
        >>> model = regard.sklearn.Classifier(steps=3, size="tiny").fit(texts, [1, 0] * 18)
        >>> model.classes_.tolist(), model.predict_proba(texts).shape
        ([0, 1], (36, 2))
    """

    _output: ClassVar[dict[str, Any]] = {"tgt_tokenizer": "label"}

    def _targets(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) < 2:
            rule, fix = "have two classes or more", "add examples of another one"
            raise ArgumentError("y", rule, "of 1 class", fix)
        return y

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class of `classes_` for each source."""
        outputs, target = self._outputs(X), self.model_.tgt_tokenizer
        texts = [v if isinstance(v, str) else json.dumps(v) for v in self.classes_.tolist()]
        labels = [target.normalize(text) for text in texts]
        # a class of which all examples were held out has no probability
        rows = [[out.probabilities.get(label, 0.0) for label in labels] for out in outputs]
        return np.array(rows).reshape(-1, len(labels))

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each source."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])


class Regressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A model of numbers, with any settings of `regard.fit`.

    Examples:
        >>> texts = [f"{n} {word}" for n in range(18) for word in ("good", "bad")]
        >>> model = regard.sklearn.Regressor(steps=3, size="tiny").fit(texts, [1.5, 0.5] * 18)
        >>> model.predict(texts).shape
        (36,)
    """

    _output: ClassVar[dict[str, Any]] = {"numbers": True}

    def predict(self, X: Any) -> np.ndarray:
        """Return the number of each source."""
        return np.array([output.value for output in self._outputs(X)])


def _other_sources(X: Any) -> Any:
    """Return sources that are no rows of numbers: texts as a list, or arrays of three axes."""
    if getattr(X, "ndim", 0) > 2:
        return X
    if hasattr(X, "toarray") or getattr(getattr(X, "dtype", None), "kind", "O") in "biufc":
        return None
    cells = np.asarray(X, dtype=object)
    column = cells.ndim == 1 or cells.shape[1:] == (1,)
    flat = cells.ravel().tolist()
    return flat if column and flat and isinstance(flat[0], str) else None
