"""The models of a server, and what is done with them in its worker thread."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from regard import api
from regard.api.texts import text_given
from regard.data import Tokenizer, text_side
from regard.decoding import DecodingOptions, Streamed, stream
from regard.models import PRESETS, SequenceModel
from regard.seeing import Trace
from regard.seeing.storage import to_json
from regard.serve.batching import NotWantedError, Wanted
from regard.serve.errors import ServeError
from regard.serve.limits import Limits
from regard.version import __version__

Json = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What requests must have in common to be worked on together.

    Attributes:
        verb: `run` or `check`.
        model: by name.
        beam: width of the search; that of the run if None.
        kinds: which maps are wanted; all if None.
        max_len: the most tokens of an answer; as many as the source allows if None.
    """

    verb: str
    model: str
    beam: int | None = None
    kinds: tuple[str, ...] | None = None
    max_len: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """As `Model.predict` takes them."""
        asked = {"beam": self.beam, "kinds": self.kinds, "max_len": self.max_len}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class Question:
    """A source, and what the model is made to write if that is not left to it."""

    text: str
    target: str | None = None


class Models:
    """The models that a server has, by name."""

    def __init__(self, models: dict[str, api.Model]) -> None:
        self.by_name = models

    @staticmethod
    def load(runs: Sequence[Path], device: str = "auto") -> "Models":
        """Reads run folders; each is a model by the name of its folder."""
        loaded = [api.load(run, device=device) for run in runs]
        for run, model in zip(runs, loaded, strict=True):
            text_side(model.source, f"the live page, which is to show {run},")
        return Models(dict(zip(names(runs), loaded, strict=True)))

    def find(self, name: str | None) -> tuple[str, api.Model]:
        """A model by its name; the first if None."""
        name = next(iter(self.by_name)) if name is None else name
        if name not in self.by_name:
            raise ServeError(
                422,
                "unknown_model",
                f"model must be one of {', '.join(self.by_name)}, but it is not",
                "see /api/info",
            )
        return name, self.by_name[name]

    def work(self, task: Task, questions: list[Question], wanted: Wanted) -> list[Json]:
        """The traces for questions that have a task in common, as JSON."""
        model = self.by_name[task.model]
        with stoppable(model.module, wanted):
            if task.verb == "check":
                found = [model.check(q.text, q.target, **task.options) for q in questions]
            else:
                found = _answered(model, questions, task.options)
            return [to_json(trace) for trace in found]

    def info(self, limits: Limits) -> Json:
        """What a client may want to know of the server."""
        return {
            "version": __version__,
            "models": [_describe(name, model) for name, model in self.by_name.items()],
            "presets": {name: _summary(made) for name, made in PRESETS.items()},
            "limits": vars(limits),
        }


def source_length(model: api.Model, text: str) -> int:
    """Tokens of a source, `</s>` not counted."""
    (ids,) = model.source_ids([text])
    return len(ids) - 1


def source_tokens(model: api.Model, text: str) -> list[str]:
    """The tokens of a source as they are shown, `</s>` among them: what rows are of."""
    (ids,) = model.source_ids([text])
    return text_given(model.src_tokenizer, text, ids[:-1]).labels


def longest(length: int, limits: Limits) -> int | None:
    """The most tokens of an answer; None where a source of this length has fewer by itself."""
    options = DecodingOptions()
    natural = options.max_len_ratio * (length + 1) + options.max_len_extra
    return limits.tokens if natural > limits.tokens else None


def steps(model: api.Model, text: str, max_len: int | None) -> Generator[Streamed, None, None]:
    """The answer to a text, token by token."""
    ids = model.source_ids([text])
    options = model.begun(DecodingOptions(beam=1, max_len=max_len), ids)
    yield from stream(model.module, *model.on_device(ids), options)


@contextmanager
def stoppable(module: SequenceModel, wanted: Wanted) -> Iterator[None]:
    """Within it the model stops before its next step once nobody wants the answer."""

    def asked(*args: Any, **options: Any) -> Any:
        ask()
        return step(*args, **options)

    def ask(*_: Any) -> None:
        if not wanted():
            raise NotWantedError

    step = module.step
    hook = module.register_forward_pre_hook(ask)
    vars(module)["step"] = asked  # only the worker thread runs models, so nobody else meets it
    try:
        yield
    finally:
        del vars(module)["step"]
        hook.remove()


def _answered(
    model: api.Model, questions: Sequence[Question], options: dict[str, Any]
) -> list[Trace]:
    """The model's own answers as one batch, and what it is made to write as another."""
    free = [q.text for q in questions if q.target is None]
    forced = [(q.text, q.target) for q in questions if q.target is not None]
    own = iter(model.traces(free, **options) if free else ())
    made = iter(model.traces(*map(list, zip(*forced, strict=True)), **options) if forced else ())
    return [next(own if q.target is None else made) for q in questions]


def names(runs: Sequence[Path]) -> list[str]:
    """The folders' names; as much of their paths as it takes to tell them apart."""
    whole = [Path(os.path.abspath(run)).parts for run in runs]
    names: list[str] = []
    for i, parts in enumerate(whole):
        others = [other for j, other in enumerate(whole) if j != i]
        depth = next(
            (d for d in range(1, len(parts)) if all(parts[-d:] != o[-d:] for o in others)), None
        )
        name = "/".join(parts[-(depth or 1) :])
        names.append(name if depth else f"{name} {i + 1}")
    return names


_SIDES: Final = (("source", "src_tokenizer"), ("target", "tgt_tokenizer"))


def _describe(name: str, model: api.Model) -> Json:
    config = model.config
    sides = {side: _tokenizer(getattr(model, attribute)) for side, attribute in _SIDES}
    return {"name": name, "preset": config.preset, "size": config.size, "beam": config.beam} | sides


def _tokenizer(tokenizer: Tokenizer) -> Json:
    return {
        "tokenizer": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "features": len(tokenizer.features),
    }


def _summary(made: Callable[..., object]) -> str:
    return next(iter((made.__doc__ or "").splitlines()), "")
