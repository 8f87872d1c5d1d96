"""From pairs, or from a run folder, to a model."""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from regard import device as devices
from regard.api.model import Model
from regard.errors import ArgumentError
from regard.training import RunFolder, make_config, start_run


def load(*runs: str | Path, device: str = "auto") -> Model:
    """The model of a run folder; of several, their ensemble."""
    if not runs:
        raise ArgumentError("runs", "be one folder or more", "missing", "name a run folder")
    where = devices.pick(device)
    return Model([RunFolder(run).load(where) for run in runs], runs, where)


def fit(
    pairs: str | Path | Iterable[tuple[str, ...]],
    preset: str = "bahdanau",
    *,
    output: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Model:
    """Trains a model and returns it.

    Args:
        pairs: a file, or tuples of source and target.
        preset: the model, by name.
        output: the run folder; a temporary one if None.
        quiet: whether to show nothing.
        settings: those of `regard.training.Config`, and sizes of the preset: `steps=2000`, ...
    """
    folder = Path(tempfile.mkdtemp(prefix="regard-")) / "run" if output is None else Path(output)
    if isinstance(pairs, str | Path):
        config = make_config({"data": str(pairs), "preset": preset, **settings})
        start_run(config, folder, quiet=quiet)
    else:
        rows = [tuple(pair) for pair in pairs]
        start_run(make_config({"preset": preset, **settings}), folder, pairs=rows, quiet=quiet)
    return load(folder, device=str(settings.get("device", "auto")))
