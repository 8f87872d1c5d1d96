"""`fit` and `load`: train a model, or load trained ones."""

import tempfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Final

import torch

from regard import device as devices
from regard.api import bundled_models
from regard.api.model import Model
from regard.api.read_pairs import check_pairs
from regard.errors import ArgumentError
from regard.training import RunFolder, make_config

#: types of the weights that a model can answer with
PRECISIONS: Final = {"32": torch.float32, "bf16": torch.bfloat16}


def load(*runs: str | Path, device: str = "auto", precision: str = "32") -> Model:
    """Load the model of a run; of several, their ensemble.

    Args:
        runs: run folders, or names of bundled models, as "g2p".
        device: "cpu", "cuda" or "auto".
        precision: type of the weights: "32", or "bf16", which is faster where the chip
            supports it, and may change an output if two are almost equally likely.
    """
    if not runs:
        raise ArgumentError("runs", "be one folder or more", "missing", "name a run folder")
    if precision not in PRECISIONS:
        raise ArgumentError(
            "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision), "the default is 32"
        )
    where = devices.pick(device)
    folders = [bundled_models.find(_checked(run)) for run in runs]
    saved = [RunFolder(folder).load(where) for folder in folders]
    for run in saved:
        run.model.to(PRECISIONS[precision])
    return Model(saved, folders, where)


def _checked(run: Any) -> str | Path:
    if isinstance(run, str | Path):
        return run
    rule = "be a folder, or the name of a bundled model"
    several = isinstance(run, list | tuple)
    fix = "name several one after another, as in load(*runs)" if several else 'as in load("runs/x")'
    raise ArgumentError("run", rule, repr(run), fix)


def fit(
    pairs: str | Path | Iterable[str | tuple[Any, ...] | Mapping[str, Any]],
    preset: str = "bahdanau",
    *,
    output: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Model:
    """Train a model and return it.

    Args:
        pairs: a file; or tuples of source and target, or dictionaries with `src` and `tgt` or the
            names in `columns`; for a language model, texts. A source may be vectors: an array, a
            tensor or lists, (frames, features).
        preset: the model, by name.
        output: the run folder; a temporary one if None, which `Model.save` copies.
        quiet: whether to show nothing.
        settings: those of `regard.training.Config`, and sizes of the preset: `steps=2000`, ...
    """
    check_pairs(pairs)
    from regard.training import start_run  # imports libraries that only training needs

    folder = Path(tempfile.mkdtemp(prefix="regard-")) / "run" if output is None else Path(output)
    if isinstance(pairs, str | Path):
        config = make_config({"data": str(pairs), "preset": preset, **settings})
        start_run(config, folder, quiet=quiet)
    else:
        rows = [_row(pair) for pair in pairs]
        start_run(make_config({"preset": preset, **settings}), folder, pairs=rows, quiet=quiet)
    return load(folder, device=str(settings.get("device", "auto")))


def _row(pair: Any) -> Any:
    """Return a pair as readers take it: a tuple, or a dictionary; they reject anything else."""
    if isinstance(pair, str):
        return (pair,)
    other = not isinstance(pair, tuple | Mapping | Set) and isinstance(pair, Iterable)
    return tuple(pair) if other else pair
