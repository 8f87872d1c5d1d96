"""Values that inputs and outputs share: settings of a run, places of data, encoders and scores."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from regard.data import SourceEncoder, TargetEncoder
from regard.data.error_hints import BadLines, Columns, ErrorHints
from regard.errors import ArgumentError

Say = Callable[[str], None]
Advance = Callable[[float], None]


#: the settings of a run, `regard.training.Config`, which stands above this room
Settings = Any


class TaskOptions(BaseModel):
    """Settings that only one input or output has: a field with a default and a description each.

    They are settings of a run like any other, as in `regard train series.csv horizon=96`. Two of
    them may have a setting of the same name if it means the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, settings: Settings) -> Any:
        """Return those of a run that are of this type."""
        given = settings.task_options
        return cls(**{name: given[name] for name in given.keys() & cls.model_fields.keys()})


class Encoders(NamedTuple):
    """Encoders learned from training examples; `tokenizer.src.json` and `tokenizer.tgt.json`."""

    source: SourceEncoder
    target: TargetEncoder


class DataPlace(NamedTuple):
    """A place that examples are read from.

    Attributes:
        source: a file, or examples given in Python.
        tgt_file: the targets, if they are another file.
        hints: how errors name the settings.
        folder: base of relative file names among the sources.
        encoder: of the sources, once it is learned.
    """

    source: Any
    tgt_file: str | None
    hints: ErrorHints
    folder: Path
    encoder: SourceEncoder | None = None


class SourceFiles(NamedTuple):
    """Files of sources without targets.

    Attributes:
        files: "-" is stdin.
        columns: those of pairs, of which the target may be missing; None finds the source.
        max_chars: the most characters of a line.
        bad: counts unusable sources, or raises the first.
        check: raises DataError for a source that does not fit the model.
    """

    files: Sequence[str]
    columns: Columns | None
    max_chars: int
    bad: BadLines
    check: Callable[..., None]


class DevScores(NamedTuple):
    """Results on the dev set.

    Attributes:
        metrics: values by name, the dev loss among them.
        health: statistics of attention, if there are any.
        outputs: the outputs as text, in the order of the dev set; empty if none are compared.
        errors: standard errors of metrics by name, if outputs are compared.
    """

    metrics: dict[str, float]
    health: Any = None
    outputs: Sequence[str] = ()
    errors: Mapping[str, float] = {}


class ScoreTable(NamedTuple):
    """Scores of a model on a file, each row beside a baseline.

    Attributes:
        examples: how many examples were counted, worded as a title.
        columns: names of the scores.
        rows: the name of a model or baseline, and its scores; NaN where it has none.
        notes: sentences about how they were computed.
    """

    examples: str
    columns: tuple[str, ...]
    rows: list[tuple[str, tuple[float, ...]]]
    notes: tuple[str, ...] = ()


#: settings of frames alone
FRAMES_ONLY: Final = ("stack", "scale_vectors")


def default_of(settings: Settings, name: str) -> Any:
    """Return the default value of a setting."""
    return type(settings).model_fields[name].default


def refuse_settings(
    settings: Settings, names: Iterable[str], rule: str, fix: str = "leave it out"
) -> None:
    """Raise ArgumentError for the first setting that has another value than its default.

    Args:
        settings: of a run.
        names: of those that make no sense.
        rule: worded to follow "must", as in "be left out where sources are vectors".
        fix: the next step.
    """
    for name in names:
        value, default = getattr(settings, name), default_of(settings, name)
        if value != default and (value or default):  # features=False are none
            shown = ",".join(value) if isinstance(value, tuple) else value
            raise ArgumentError(name, rule, repr(shown), fix)
