"""The models of a server: batching of their requests, and what clients are told."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from regard import api
from regard.api import bundled_models
from regard.data.media_files import without_files
from regard.errors import RegardError
from regard.messages import LANGUAGES, use_language
from regard.models import PRESETS
from regard.pretrained import PretrainedModel
from regard.seeing.draw.forecast import NARROW, ForecastView
from regard.seeing.draw.shapes import PAGE
from regard.seeing.trace.storage import to_json
from regard.serve.http_errors import ServeError
from regard.serve.limits import Limits
from regard.serve.scheduler import CancelledWorkError, released
from regard.serve.served_model import (
    TEXT_TASKS,
    Answer,
    BatchKey,
    Json,
    OnToken,
    ServedModel,
    ServedPretrained,
    ServedRun,
    StreamedToken,
    WorkItem,
)
from regard.training import RunFolder
from regard.version import __version__

#: the format of a forecast in a response
FORECAST: Final = "regard-forecast"


def serve_model(model: api.Model | PretrainedModel) -> ServedModel:
    """Return a loaded model as a server uses it; raises for one of transformers without texts."""
    if isinstance(model, api.Model):
        return ServedRun(model.path, model.config, model.task, lambda: model)
    if model.task not in TEXT_TASKS:
        raise RegardError(
            f"a model of transformers must read text to be served, but {model.path} is for "
            f"{model.task}: see where it looks with `regard show`."
        )
    return ServedPretrained(model)


class Models:
    """The models of a server, by name."""

    def __init__(self, served: Mapping[str, ServedModel]) -> None:
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
        *,
        allow_pickle: bool = False,
    ) -> "Models":
        """Load runs and models of transformers, see `api.load`; each is named after its folder."""
        options: dict[str, Any] = {"device": device, "precision": precision}
        loaded = [
            api.text_model(api.load(run, **options, allow_pickle=allow_pickle), "regard serve")
            for run in runs
        ]
        return Models(dict(zip(names(runs), map(serve_model, loaded), strict=True)))

    @staticmethod
    def load_bundled(device: str = "auto", precision: str = "32") -> "Models":
        """Load the default model; other bundled models are loaded when they are first used."""

        def load(folder: Path) -> api.Model:
            return api.load_run(folder, device=device, precision=precision)

        default = bundled_models.default()
        home = bundled_models.HOME
        served = {default: serve_model(load(home / default))}
        others = (name for name in bundled_models.names() if name != default)
        for name in others:  # whose settings and tokenisers are read now
            folder = RunFolder(home / name)
            config = folder.read_config()
            later = partial(load, folder.path)
            served[name] = ServedRun(folder.path, config, folder.read_task(config), later)
        return Models(served)

    @property
    def by_name(self) -> dict[str, api.Model | PretrainedModel]:
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

    def find(self, name: str | None) -> tuple[str, ServedModel]:
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
                changes = [(item.source, item.change) for item in items if item.change is not None]
                return [model.what_if(*changed, key).to_json() for changed in changes]
            if key.verb == "answers":
                return [{"answers": model.answers(item.source, key)} for item in items]
            if key.verb == "check":
                found = [model.check(item.source, item.target, key) for item in items]
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
    model: ServedModel, items: Sequence[WorkItem], key: BatchKey
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


def _traces(model: ServedModel, items: Sequence[WorkItem], key: BatchKey) -> list[Answer]:
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
