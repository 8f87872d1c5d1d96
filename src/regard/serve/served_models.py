"""The models of a server: what each reads and a request costs, its traces, and their batches."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from regard import api, safe_read
from regard.api import bundled_models
from regard.api.bundled_models import BundledCard
from regard.api.predictor import (
    check_kinds,
    decoding_options,
    refuse_for_numbers,
    run_what_if,
)
from regard.data.media_files import without_files
from regard.decoding_options import DEFAULT, given_options
from regard.messages import LANGUAGES, message, use_language
from regard.models import PRESETS
from regard.seeing import Trace
from regard.seeing.attribution.interventions import Intervention
from regard.seeing.draw.forecast import NARROW, ForecastView
from regard.seeing.draw.shapes import PAGE
from regard.seeing.trace.storage import to_json
from regard.serve.http_errors import ServeError
from regard.serve.limits import Limits
from regard.serve.scheduler import CancelledWorkError, released
from regard.symbols import EOS, SYMBOLS
from regard.training import RunFolder
from regard.version import __version__

Json = dict[str, Any]

#: bytes of a model card at most
CARD_BYTES: Final = 1 << 24
#: options of a request that are for models that write tokens
TOKEN_OPTIONS: Final = ("target", "kinds", "methods", "versus", "max_len", "beam")


@dataclass(frozen=True)
class BatchKey:
    """Properties that requests must have in common to run as one batch.

    Attributes:
        verb: `run`, `stream`, `check`, `what-if` or `answers`.
        model: name of the model.
        beam: beam width; that of the model if None.
        kinds: kinds of the maps to return; all if None.
        max_len: most tokens of a prediction; None if the source does not allow more anyway.
        methods: attribution methods of a check; those of the model if None.
        versus: token that each output of a check is compared with.
        search: further options of decoding, for several answers.
        language: of sentences in the response; that of the server if None.
        forced: whether the target is given.
        only: a unique object for a request that must run alone.
    """

    verb: str
    model: str
    beam: int | None = None
    kinds: tuple[str, ...] | None = None
    max_len: int | None = None
    methods: str | None = None
    versus: str | None = None
    search: tuple[tuple[str, Any], ...] = ()
    language: str | None = None
    forced: bool = False
    only: object = None

    def options(self, *names: str) -> dict[str, Any]:
        """Return the fields of these names that are set."""
        return given_options(**{name: getattr(self, name) for name in names})


class StreamedToken(NamedTuple):
    """A token of a stream."""

    token: str
    log_prob: float
    row: list[float] | None


OnToken = Callable[[StreamedToken], None]


@dataclass(frozen=True)
class WorkItem:
    """One request in a batch.

    Attributes:
        source: a text, frames, or what a file holds.
        target: text that the model is forced to write; None for its own prediction.
        change: of a what-if.
        on_token: called with each token of a stream.
    """

    source: Any
    target: str | None = None
    change: Intervention | None = None
    on_token: OnToken | None = None


#: what a model is asked for: a trace, or the picture of a forecast
Answer = Trace | ForecastView


@final
class ServedRun:
    """A run with its sources, and what `/api/info` says.

    A model that predicts numbers has no tokens: nothing can be forced, limited or sampled, and a
    stream has its end alone.

    The files that describe the run are read here, once, and by no request; raises RunError or
    DataError for those that a stranger has made links or pipes of.
    """

    def __init__(self, model: api.Model) -> None:
        self.model, self.path, self.config, self.task = model, model.path, model.config, model.task
        model.predictor.compile()
        path, task = self.path, self.task
        self.field = task.input.facts.request_field
        self.frame_size = task.input.encoder.frame_size if self.field == "frames" else 0
        folder = RunFolder(path)
        folder.check_links()
        self._card = BundledCard.read(path)
        self._examples: list[Any]
        if self._card is not None:
            self._examples = list(self._card.examples)
        else:
            file, readme = folder.card_file, b""
            if file.exists():
                readme = safe_read.read_bytes(file, CARD_BYTES, inside=path)
            text = readme.decode("utf-8", "replace")
            self._examples = task.input.examples(text, folder.data / "dev.arrow")

    @property
    def beam(self) -> int:
        """Width of the search that the run was trained with; 1 if there is none."""
        return self.config.beam if self.task.numbers is None else 1

    def describe(self) -> Json:
        """Return preset, size, beam, tokenisers, what it does and reads, and examples."""
        config, sources, examples = self.config, self.task.input.describe(), self._examples
        if self._card is not None:
            about, reads = self._card.said.what, self._card.said.reads
        else:
            about = message("serve.about", preset=config.preset, size=config.size)
            reads = sources.reads
        return {
            "preset": config.preset,
            "size": config.size,
            "beam": self.beam,
            "source": sources.info,
            "target": self.task.output.describe(),
            "about": about,
            "reads": reads,
            "example": examples[0] if examples else None,
            "examples": examples,
        }

    def check_options(self, verb: str, options: Mapping[str, Any]) -> None:
        """Raise ArgumentError for what a model that predicts numbers has no use for."""
        given: Json = {f"/api/{verb}": "asked"} if verb in ("what-if", "answers") else {}
        given |= {name: options.get(name) for name in TOKEN_OPTIONS}
        refuse_for_numbers(self.task, **given)

    def source_length(self, source: Any) -> int:
        """Return the positions that the model reads of a source, `eos` not counted."""
        (row,) = self.model.source_ids([source])
        return self.model.task.input.length(row)

    def target_length(self, target: str) -> int:
        """Return the tokens of a target."""
        return len(self.model.tgt_tokenizer.encode(target))

    def max_len(self, length: int, limits: Limits) -> int | None:
        """Return the limit of tokens; None if a source of this length has fewer anyway."""
        limited = self.task.numbers is None and default_max_len(length) > limits.tokens
        return limits.tokens if limited else None

    def cost(self, key: BatchKey, length: int, forced: int | None) -> int:
        """Return an upper bound of the tokens of source and targets, those of all beams."""
        if self.task.numbers is not None:
            return length + 1
        if forced is None:
            target, beam = key.max_len or default_max_len(length), key.beam or self.beam
        else:
            target, beam = forced + 1, 1
        beam = max(beam, dict(key.search).get("num_samples", 0))
        return int(length + 1 + beam * target)

    def traces(
        self, sources: Sequence[Any], targets: Sequence[str] | None, key: BatchKey
    ) -> Sequence[Answer]:
        """Return the traces of several sources, computed as one batch."""
        return self.model.traces(sources, targets, **key.options("beam", "kinds", "max_len"))

    def stream(
        self, sources: Sequence[Any], key: BatchKey, on_token: Sequence[OnToken]
    ) -> Sequence[Answer]:
        """Predict greedily as one batch, pass on each token at once, and return the traces."""
        model = self.model
        if self.task.numbers is not None:
            return model.traces(sources)
        options = decoding_options(model.task, model.config.beam, key.options("beam", "max_len"))
        steps = model.predictor.stream(sources, options, check_kinds(key.kinds))
        while True:
            try:
                token, log_prob, cross, _, row = next(steps)
            except StopIteration as end:
                traces: list[Trace] = end.value
                return traces
            if token == EOS and model.task.tokens.end_is_certain:
                continue  # which is no part of the trace either
            label = SYMBOLS[EOS] if token == EOS else model.tgt_tokenizer.tokens([token])[0]
            weights = None if cross is None else cross.tolist()
            on_token[row](StreamedToken(label, log_prob, weights))

    def answers(self, source: Any, key: BatchKey) -> list[Json]:
        """Return text, score and log-probability of several answers, best first."""
        options = key.options("beam", "max_len") | dict(key.search)
        (found,) = self.model.predict([source], attention=False, **options)
        return _ranked(found)


def default_max_len(length: int) -> int:
    """Return the most tokens that decoding writes for a source of this length."""
    return int(DEFAULT.max_len_ratio * (length + 1) + DEFAULT.max_len_extra)


def _ranked(found: Any) -> list[Json]:
    return [
        {"text": one.text, "score": one.score, "log_prob": one.log_prob}
        for one in (found, *found.alternatives)
    ]


#: the format of a forecast in a response
FORECAST: Final = "regard-forecast"


class Models:
    """The models of a server, by name."""

    def __init__(self, served: Mapping[str, ServedRun]) -> None:
        self.served = dict(served)

    @property
    def names(self) -> list[str]:
        """Names of the models, the default first."""
        return list(self.served)

    @staticmethod
    def load(
        runs: Sequence[Path],
        device: str = "auto",
        precision: str = "32",
    ) -> "Models":
        """Load runs, and models of transformers in our own layers; each has its folder's name.

        All bundled models, the default first, if none is named.
        """
        default = None if runs else bundled_models.default()
        runs = runs or [Path(name) for name in sorted(bundled_models.names(), key=default.__ne__)]
        models = [api.load_own(run, device=device, precision=precision) for run in runs]
        return Models(dict(zip(names(runs), map(ServedRun, models), strict=True)))

    @property
    def by_name(self) -> dict[str, api.Model]:
        """The models themselves, all of them loaded."""
        return {name: served.model for name, served in self.served.items()}

    @property
    def frame_size(self) -> int:
        """Numbers of the widest frame that a model reads, or 0 if all read text."""
        return max(model.frame_size for model in self.served.values())

    @property
    def reads_files(self) -> bool:
        """True if a model reads files that are sent, such as pictures."""
        return any(model.field == "file" for model in self.served.values())

    def find(self, name: str | None) -> tuple[str, ServedRun]:
        """Return the name and the model called `name`, or the first model if None."""
        name = next(iter(self.served)) if name is None else name
        if name not in self.served:
            raise ServeError(
                422,
                "unknown_model",
                f"model must be one of {', '.join(self.served)}, but it is not",
                "see /api/info",
            )
        return name, self.served[name]

    def run_batch(self, key: BatchKey, items: list[WorkItem]) -> list[Json | Exception]:
        """Return the results of requests that have a key in common, as JSON: mostly traces.

        A batch that fails raises, and may be run again in parts; streams of which tokens were
        passed on get the error as their result.
        """
        model = self.served[key.model]
        found: Sequence[Answer | Exception]
        with use_language(key.language), without_files():
            if key.verb == "what-if":
                one, options = model.model, key.options("beam", "max_len")
                changes = [(item.source, item.change) for item in items if item.change is not None]
                return [
                    run_what_if(one.predictor, one.trace, *changed, options).to_json()
                    for changed in changes
                ]
            if key.verb == "answers":
                return [{"answers": model.answers(item.source, key)} for item in items]
            if key.verb == "check":
                options = key.options("beam", "max_len", "methods", "versus")
                found = [model.model.check(one.source, one.target, **options) for one in items]
            elif key.verb == "stream":
                found = _streams(model, items, key)
            else:
                found = _traces(model, items, key)
            return [one if isinstance(one, Exception) else _as_json(one) for one in found]

    def info(self, limits: Limits) -> Json:
        """Return the body of `/api/info`, apart from the load."""
        return {
            "version": __version__,
            "models": [{"name": name, **model.describe()} for name, model in self.served.items()],
            "presets": {
                name: next(iter((preset.__doc__ or "").splitlines()), "")
                for name, preset in PRESETS.items()
            },
            "limits": vars(limits),
        }

    def page_info(self, limits: Limits) -> Json:
        """Return `info` with what is said about each model in all languages, for the live page."""
        said: list[Json] = [{} for _ in self.served]
        for name in LANGUAGES:
            with use_language(name):
                for found, model in zip(said, self.served.values(), strict=True):
                    found[name] = {key: model.describe().get(key) for key in ("about", "reads")}
        info = self.info(limits)
        models = [model | {"said": own} for model, own in zip(info["models"], said, strict=True)]
        return info | {"models": models}


def _as_json(answer: Answer) -> Json:
    """Return a trace as it is stored, or a forecast with its figure."""
    if isinstance(answer, ForecastView):
        said = {"title": answer.title, "legend": answer.legend, "figure": answer.svg(PAGE)}
        said["narrow_figure"] = answer.svg(PAGE, NARROW)
        return {"format": FORECAST, "version": 1, **answer.as_json(), **said}
    return to_json(answer)


def _streams(
    model: ServedRun, items: Sequence[WorkItem], key: BatchKey
) -> Sequence[Answer | Exception]:
    """Return the traces of streams, or the error of all if tokens were passed on before it."""
    passed_on = False

    def listener(item: WorkItem) -> OnToken:
        def on_token(step: StreamedToken) -> None:
            nonlocal passed_on
            assert item.on_token is not None
            passed_on = True
            item.on_token(step)

        return on_token

    try:
        return model.stream([item.source for item in items], key, list(map(listener, items)))
    except CancelledWorkError:
        raise
    except Exception as error:
        if not passed_on:
            raise
        return [released(error)] * len(items)


def _traces(model: ServedRun, items: Sequence[WorkItem], key: BatchKey) -> list[Answer]:
    """Trace the free predictions as one batch, and the forced targets as another."""
    free = [item.source for item in items if item.target is None]
    forced = [(item.source, item.target) for item in items if item.target is not None]
    own = iter(model.traces(free, None, key) if free else ())
    given = iter(
        model.traces([one for one, _ in forced], [target for _, target in forced], key)
        if forced
        else ()
    )
    return [next(own if item.target is None else given) for item in items]


def names(runs: Sequence[Path]) -> list[str]:
    """Return the names of folders; of those that share one, their paths."""
    short = [Path(os.path.abspath(run)).name for run in runs]
    found = [n if short.count(n) == 1 else str(run) for n, run in zip(short, runs, strict=True)]
    return [n if found.count(n) == 1 else f"{n} {i}" for i, n in enumerate(found, start=1)]
