"""The models of a server: batching of their requests, their cost, and what clients are told."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import api
from regard.decoding import DecodingOptions, Streamed, stream
from regard.errors import RegardError
from regard.kinds.text_source import describe_tokenizer
from regard.models import PRESETS
from regard.preemption import in_turn, preemption_point
from regard.seeing import Trace
from regard.seeing.attribution import DRAWS
from regard.seeing.shuffled_attention import SHUFFLES
from regard.seeing.storage import to_json
from regard.serve.http_errors import ServeError
from regard.serve.limits import Cost, Limits
from regard.training import RunFolder
from regard.version import __version__

Json = dict[str, Any]


@dataclass(frozen=True)
class BatchKey:
    """Properties that requests must have in common to run as one batch.

    Attributes:
        verb: `run`, `stream` or `check`.
        model: name of the model.
        beam: beam width; that of the run if None.
        kinds: kinds of the maps to return; all if None.
        max_len: most tokens of a prediction; None if the source does not allow more anyway.
        only: a unique object for a request that must run alone.
    """

    verb: str
    model: str
    beam: int | None = None
    kinds: tuple[str, ...] | None = None
    max_len: int | None = None
    only: object = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of `Model.predict`."""
        given = {"beam": self.beam, "kinds": self.kinds, "max_len": self.max_len}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class WorkItem:
    """One request in a batch.

    Attributes:
        source: a text, or frames.
        target: text that the model is forced to write; None for its own prediction.
        on_token: called with each token of a stream.
    """

    source: Any
    target: str | None = None
    on_token: Callable[[Streamed], None] | None = None


class Models:
    """The models of a server, by name."""

    def __init__(self, models: dict[str, api.Model]) -> None:
        self.by_name = models
        for model in models.values():
            for part in model.module.modules():
                # one layer of a large model takes as long as a whole prediction of a small one
                part.register_forward_pre_hook(lambda *_: preemption_point())

    @staticmethod
    def load(runs: Sequence[Path], device: str = "auto") -> "Models":
        """Load run folders; each model is named after its folder."""
        loaded = [api.load_run(run, device=device) for run in runs]
        return Models(dict(zip(names(runs), loaded, strict=True)))

    @property
    def frame_size(self) -> int:
        """Numbers of the widest frame that a model reads, or 0 if all read text."""
        return max(model.kind.sources.frame_size for model in self.by_name.values())

    def find(self, name: str | None) -> tuple[str, api.Model]:
        """Return the name and the model called `name`, or the first model if None."""
        name = next(iter(self.by_name)) if name is None else name
        if name not in self.by_name:
            raise ServeError(
                422,
                "unknown_model",
                f"model must be one of {', '.join(self.by_name)}, but it is not",
                "see /api/info",
            )
        return name, self.by_name[name]

    def run_batch(self, key: BatchKey, items: list[WorkItem]) -> list[Json]:
        """Return the traces of requests that have a key in common, as JSON."""
        model = self.by_name[key.model]
        if key.verb == "check":
            if not model.kind.has_sources:
                raise RegardError(
                    "a check must be of a model with a source, but a language model has none: run "
                    "`regard check` instead, which takes the time that this needs."
                )
            found = [model.check(item.source, item.target, **key.options) for item in items]
        else:
            for item in items:
                if item.on_token is not None:
                    for step in in_turn(stream_steps(model, item.source, key.max_len)):
                        item.on_token(step)
            found = _traces(model, items, key.options)
        return [to_json(trace) for trace in found]

    def info(self, limits: Limits) -> Json:
        """Return the body of `/api/info`, apart from the load."""
        return {
            "version": __version__,
            "models": [_describe(name, model) for name, model in self.by_name.items()],
            "presets": {
                name: next(iter((preset.__doc__ or "").splitlines()), "")
                for name, preset in PRESETS.items()
            },
            "limits": vars(limits),
        }


def _traces(model: api.Model, items: Sequence[WorkItem], options: dict[str, Any]) -> list[Trace]:
    """Trace the free predictions as one batch, and the forced targets as another."""
    free = [item.source for item in items if item.target is None]
    forced = [(item.source, item.target) for item in items if item.target is not None]
    own = iter(model.traces(free, **options) if free else ())
    given = iter(model.traces(*map(list, zip(*forced, strict=True)), **options) if forced else ())
    return [next(own if item.target is None else given) for item in items]


def stream_steps(model: api.Model, source: Any, max_len: int | None) -> Iterator[Streamed]:
    """Yield the greedy prediction of a source token by token."""
    ids = model.source_ids([source])
    options = model.kind.prefixed(DecodingOptions(beam=1, max_len=max_len), ids)
    return stream(model.module, *model.on_device(ids), options)


def source_length(model: api.Model, source: Any) -> int:
    """Return the positions that a model reads of a source, `eos` not counted."""
    (row,) = model.source_ids([source])
    return model.kind.sources.length(row)


def max_target_length(length: int, limits: Limits) -> int | None:
    """Return the most tokens of a prediction; None if a source of this length has fewer anyway."""
    return limits.tokens if _default_max_len(length) > limits.tokens else None


def _default_max_len(length: int) -> int:
    options = DecodingOptions()
    return int(options.max_len_ratio * (length + 1) + options.max_len_extra)


def cost(model: api.Model, key: BatchKey, length: int, forced: int | None) -> Cost:
    """Return an upper bound of the tokens that a request takes.

    Args:
        model: the model.
        key: the request.
        length: positions of the source.
        forced: tokens of the target, if one is given.
    """
    source = length + 1
    if forced is None:
        target, beam = key.max_len or _default_max_len(length), key.beam or model.config.beam
    else:
        target, beam = forced + 1, 1
    # all hypotheses are searched, and the best is scored once more for its alternatives
    work = 2 * source + (beam + 1) * target
    if key.verb == "stream":
        work += source + target
    if key.verb == "check":
        # a gradient takes a forward pass, and a backward pass as long as two of them
        passes = 1 + DRAWS * source + 3 * target + SHUFFLES
        work += passes * (source + target)
    return Cost(source, beam * target, work)


def names(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders, with as much of their paths as makes them unique."""
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
    config, sources, folder = model.config, model.kind.sources, RunFolder(model.path)
    try:
        card = folder.card_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        card = ""
    return {
        "name": name,
        "preset": config.preset,
        "size": config.size,
        "beam": config.beam,
        "source": sources.describe(),
        "target": describe_tokenizer(model.tgt_tokenizer),
        "reads": sources.reads(),
        "example": sources.example(card, folder.data / "dev.arrow"),
    }
