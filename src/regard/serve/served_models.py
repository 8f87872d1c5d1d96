"""The models of a server, and what is done with them in its worker thread."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import api
from regard.data import FrameScaler, Tokenizer
from regard.decoding import DecodingOptions, Streamed, stream
from regard.models import PRESETS
from regard.preemption import in_turn, preemption_point
from regard.seeing import Trace
from regard.seeing.attribution import DRAWS, SHUFFLES
from regard.seeing.storage import to_json
from regard.serve.examples import example, reads
from regard.serve.http_errors import ServeError
from regard.serve.limits import Cost, Limits
from regard.version import __version__

Json = dict[str, Any]


@dataclass(frozen=True)
class BatchKey:
    """What requests must have in common to run as one batch.

    Attributes:
        verb: `run`, `stream` or `check`.
        model: by name.
        beam: width of the search; that of the run if None.
        kinds: which maps are wanted; all if None.
        max_len: the most tokens of an answer; as many as the source allows if None.
        only: tells the task from all others, for requests that run alone.
    """

    verb: str
    model: str
    beam: int | None = None
    kinds: tuple[str, ...] | None = None
    max_len: int | None = None
    only: object = None

    @property
    def options(self) -> dict[str, Any]:
        """As `Model.predict` takes them."""
        asked = {"beam": self.beam, "kinds": self.kinds, "max_len": self.max_len}
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True)
class WorkItem:
    """A source and what to do with it.

    Attributes:
        source: a text, or frames.
        target: what the model is made to write; its own answer if None.
        write: takes the tokens of a stream, one by one.
    """

    source: Any
    target: str | None = None
    write: Callable[[Streamed], None] | None = None


class Models:
    """The models that a server has, by name."""

    def __init__(self, models: dict[str, api.Model]) -> None:
        self.by_name = models
        for model in models.values():
            for part in model.module.modules():
                # a layer of a large model takes as long as a whole answer of a small one
                part.register_forward_pre_hook(lambda *_: preemption_point())

    @staticmethod
    def load(runs: Sequence[Path], device: str = "auto") -> "Models":
        """Reads run folders; each is a model by the name of its folder."""
        loaded = [api.load(run, device=device) for run in runs]
        return Models(dict(zip(names(runs), loaded, strict=True)))

    @property
    def features(self) -> int:
        """Numbers of the widest frame that a model reads; 0 if all read text."""
        sources = [model.source for model in self.by_name.values()]
        return max((s.features for s in sources if isinstance(s, FrameScaler)), default=0)

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

    def work(self, task: BatchKey, questions: list[WorkItem]) -> list[Json]:
        """The traces for questions that have a task in common, as JSON."""
        model = self.by_name[task.model]
        if task.verb == "check":
            found = [model.check(q.source, q.target, **task.options) for q in questions]
        else:
            for question in questions:
                if question.write is not None:
                    for step in in_turn(steps(model, question.source, task.max_len)):
                        question.write(step)
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


def source_length(model: api.Model, source: Any) -> int:
    """Positions that a model reads of a source, `</s>` not counted."""
    (row,) = model.source_ids([source])
    frames = model.source
    return frames.positions(len(row)) if isinstance(frames, FrameScaler) else len(row) - 1


def longest(length: int, limits: Limits) -> int | None:
    """The most tokens of an answer; None where a source of this length has fewer by itself."""
    return limits.tokens if _natural(length) > limits.tokens else None


def _natural(length: int) -> int:
    options = DecodingOptions()
    return int(options.max_len_ratio * (length + 1) + options.max_len_extra)


def cost(model: api.Model, task: BatchKey, length: int, forced: int | None) -> Cost:
    """Return the tokens that a request takes at most.

    Args:
        model: that answers.
        task: what is asked for.
        length: of the source.
        forced: tokens of the target, if one is given.
    """
    source = length + 1
    if forced is None:
        target, beam = task.max_len or _natural(length), task.beam or model.config.beam
    else:
        target, beam = forced + 1, 1
    # all are searched, and the best is scored once more for its alternatives
    work = 2 * source + (beam + 1) * target
    if task.verb == "stream":
        work += source + target
    if task.verb == "check":
        # a gradient takes a forward pass and a backward pass, which is as long as two
        passes = 1 + DRAWS * source + 3 * target + SHUFFLES
        work += passes * (source + target)
    return Cost(source, beam * target, work)


def steps(model: api.Model, source: Any, max_len: int | None) -> Iterator[Streamed]:
    """The answer to a source, token by token."""
    ids = model.source_ids([source])
    options = model.begun(DecodingOptions(beam=1, max_len=max_len), ids)
    return stream(model.module, *model.on_device(ids), options)


def _answered(
    model: api.Model, questions: Sequence[WorkItem], options: dict[str, Any]
) -> list[Trace]:
    """The model's own answers as one batch, and what it is made to write as another."""
    free = [q.source for q in questions if q.target is None]
    forced = [(q.source, q.target) for q in questions if q.target is not None]
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


def _describe(name: str, model: api.Model) -> Json:
    config, source = model.config, model.source
    return {
        "name": name,
        "preset": config.preset,
        "size": config.size,
        "beam": config.beam,
        "source": _frames(source) if isinstance(source, FrameScaler) else _tokenizer(source),
        "target": _tokenizer(model.tgt_tokenizer),
        "reads": reads(model),
        "example": example(model),
    }


def _tokenizer(tokenizer: Tokenizer) -> Json:
    return {
        "tokenizer": tokenizer.kind,
        "vocabulary": tokenizer.vocab_size,
        "features": len(tokenizer.features),
    }


def _frames(frames: FrameScaler) -> Json:
    return {"tokenizer": frames.kind, "numbers": frames.features, "stack": frames.stack}


def _summary(made: Callable[..., object]) -> str:
    return next(iter((made.__doc__ or "").splitlines()), "")
