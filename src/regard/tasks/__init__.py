"""Tasks: any input to any output.

Training, prediction, maps, checks, the server, jobs and the exporter ask a `Task`, never what sort
of data it has. To add an input or an output, write a class in a file of its own and name it in
`INPUTS` or `OUTPUTS`. A part says with which others it makes no sense, and why: see `refusal`.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from pydantic.fields import FieldInfo

from regard.atomic_files import read_checksummed
from regard.data import TOKENIZER_KINDS, Pair, SourceEncoder, TargetEncoder, Tokenizer
from regard.errors import ArgumentError
from regard.safe_read import PathLike
from regard.tasks.inputs.array import ArrayInput
from regard.tasks.inputs.base import TaskInput
from regard.tasks.inputs.frames import FrameInput
from regard.tasks.inputs.picture import PixelInput
from regard.tasks.inputs.series import SeriesInput
from regard.tasks.inputs.sound import SoundInput
from regard.tasks.inputs.story import StoryInput
from regard.tasks.inputs.text import NoInput, Source, TextInput
from regard.tasks.outputs.base import NumbersOutput, TaskOutput
from regard.tasks.outputs.forecast import Forecast, ForecastOutput
from regard.tasks.outputs.labels import LabelOutput, LabelSetOutput
from regard.tasks.outputs.number import NumberPrediction, ValueOutput
from regard.tasks.outputs.span import SpanOutput
from regard.tasks.outputs.tags import TagOutput
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import DataPlace, DevScores, Encoders, ScoreTable, Settings, TaskOptions
from regard.tasks.task import Task, TaskType

__all__ = [
    "INPUTS",
    "OUTPUTS",
    "DataPlace",
    "DevScores",
    "Encoders",
    "Forecast",
    "NumberPrediction",
    "NumbersOutput",
    "ScoreTable",
    "Source",
    "Task",
    "TaskOptions",
    "TaskType",
    "TextInput",
    "check_settings",
    "choose_task",
    "load_encoder",
    "open_task",
    "possible_tasks",
    "refusal",
    "source_kinds",
    "task_options",
]

#: in the order in which they are tried: text is what is left
INPUTS: Final[dict[str, type[TaskInput]]] = {
    "series": SeriesInput,
    "nothing": NoInput,
    "sound": SoundInput,
    "picture": PixelInput,
    "frames": FrameInput,
    "story": StoryInput,
    "text": TextInput,
}
#: in the order in which they are tried: tokens are what is left
OUTPUTS: Final[dict[str, type[TaskOutput]]] = {
    "forecast": ForecastOutput,
    "number": ValueOutput,
    "tags": TagOutput,
    "span": SpanOutput,
    "label": LabelOutput,
    "labels": LabelSetOutput,
    "tokens": TokenOutput,
}


def refusal(read: str, write: str) -> str:
    """Return why an input and an output, by their names, make no task; "" if they make one."""
    source, output = INPUTS[read], OUTPUTS[write]
    for only, other in ((source.facts.only, write), (output.only, read)):
        if only is not None and only[0] != other:
            return only[1]
    return output.refuses.get(read, "")


class TaskChoice(NamedTuple):
    """A task, and why its input was chosen, worded to follow "because"."""

    task: TaskType
    why: str


def _pairs() -> Iterator[TaskType]:
    for (one, source), (other, output) in product(INPUTS.items(), OUTPUTS.items()):
        if not refusal(one, other):
            yield TaskType(source, output)


def possible_tasks(settings: Settings) -> list[TaskType]:
    """Return the tasks that the settings leave open: at least one.

    A setting that only some tasks have leaves only these.
    """
    asked = settings.task_options.keys()
    owners = [pair for pair in _pairs() if asked <= pair.options]
    if not owners:
        rule = "be of one kind of data"
        kinds = task_options().items()
        owners_of = {n: " and ".join(kind for kind, own in kinds if n in own) for n in asked}
        value = ", ".join(f"{name} (of {names})" for name, names in owners_of.items())
        raise ArgumentError("settings", rule, value, "leave out those of other kinds")
    able = [pair for pair in owners if pair.output.is_possible(settings)] or owners
    found = [pair for pair in able if pair.input.is_possible(settings)]
    # what is impossible is best refused by the checks of frames, which name what a preset reads
    return found or [pair for pair in able if pair.input is FrameInput] or able


def task_options() -> dict[str, dict[str, FieldInfo]]:
    """Return the settings that only some inputs or outputs have, by its name and by theirs."""
    both: dict[str, type[TaskInput] | type[TaskOutput]] = {**INPUTS, **OUTPUTS}
    found = {name: dict(part.options_type.model_fields) for name, part in both.items()}
    return {name: fields for name, fields in found.items() if fields and name != "forecast"}


def source_kinds() -> list[str]:
    """Return the values of `src_tokenizer`: kinds of tokenisers, and of tables as sources."""
    tables = [one.encoder_type.kind for one in INPUTS.values() if issubclass(one, ArrayInput)]
    return [*(kind for kind in TOKENIZER_KINDS if kind != "label"), *reversed(tables)]


def output_of_options(names: Set[str]) -> type[TaskOutput]:
    """Return the first output of a task that has all of these settings, or the general one."""
    if not names:
        return TokenOutput
    fitting = (pair.output for pair in _pairs() if names <= pair.options)
    return next(
        (output for output in fitting if names & output.options_type.model_fields.keys()),
        TokenOutput,
    )


def check_settings(settings: Settings) -> None:
    """Raise ArgumentError if settings make no sense for any task that they leave open."""
    errors = []
    for task in reversed(possible_tasks(settings)):
        try:
            task.check_settings(settings)
            return
        except ArgumentError as error:
            errors.append(error)
    raise errors[0]


def choose_task(settings: Settings, first: Callable[[], Sequence[Pair]]) -> TaskChoice:
    """Choose the task of training data by the settings and, if these leave it open, by the data.

    Args:
        settings: of the run.
        first: reads the first pairs, their sources as they stand in the file.
    """
    for task in possible_tasks(settings):
        if why := task.input.recognise(settings, first):
            task.check_settings(settings)
            return TaskChoice(task, why)
    raise AssertionError("text is recognised if nothing else is")


def open_task(settings: Settings, source: SourceEncoder, target: TargetEncoder) -> Task:
    """Return the task of a run. Run folders do not name it: it follows from preset and encoders."""
    inputs = [one for one in INPUTS.values() if type(source) is one.encoder_type]
    read = next((one for one in inputs if one.is_possible(settings)), inputs[-1])
    outputs = [one for n, one in OUTPUTS.items() if one.fits(target) and not refusal(read.name, n)]
    output = next((one for one in outputs if one.is_possible(settings)), outputs[-1])
    reads = read(source, settings)
    return Task(settings, reads, output(target, reads, settings))


def load_encoder(path: PathLike) -> SourceEncoder:
    """Load the encoder of a run's sources; raises DataError if the file is damaged."""
    content = read_checksummed(path)
    by_kind = {
        one.encoder_type.kind: one.encoder_type
        for one in INPUTS.values()
        if one.encoder_type is not Tokenizer
    }
    # a damaged file may have anything here: text is what then refuses it
    found: SourceEncoder = by_kind.get(str(content.get("kind")), Tokenizer).from_json(
        Path(path), content
    )
    return found
