"""The file result.json of a recipe's run, which all tables are made from."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from regard import checkout, safe_read
from regard.atomic_files import write_atomic
from regard.errors import DataError
from regard.recipes.recipe import Recipe
from regard.recipes.tasks import TaskScores
from regard.training import RunFolder
from regard.version import __version__

FILE: Final = "result.json"
#: settings of where and how a run is watched, which do not affect its result
NOT_IN_COMMAND: Final = ("device", "threads", "report")
LIBRARIES: Final = ("numpy", "sacrebleu", "jiwer", "tokenizers")

RecipeResult = dict[str, Any]


def read(folder: Path) -> RecipeResult | None:
    """Return the result of a run so far, or None if there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found = safe_read.read_json(path)
        assert isinstance(found["scores"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(
            str(path), None, f"this is not a result ({error})", "delete it and score again"
        ) from None
    return dict(found)


def write(folder: Path, result: RecipeResult) -> None:
    """Write a result to a run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    write_atomic(folder / FILE, f"{text}\n".encode())


def begin(recipe: Recipe, overrides: Mapping[str, Any], device: torch.device) -> RecipeResult:
    """Return what is known before the first score."""
    threads = recipe.settings.get("threads") or torch.get_num_threads()
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "options": dict(recipe.options),
        "settings": dict(recipe.settings),
        "command": " ".join(["regard", "train", f"recipes/{recipe.name}", *arguments(overrides)]),
        **source(),
        "versions": {
            "regard": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            **{name: version(name) for name in LIBRARIES},
        },
        "seed": recipe.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        # cores that the run can keep busy
        "cores": None if device.type == "cuda" else min(int(threads), os.cpu_count() or 1),
        "decoding": dict(recipe.decoding),
        "members": [Path(member).name for member in recipe.members],
        "teacher": [Path(member).name for member in recipe.teacher],
        "published": [dict(row) for row in recipe.published],
        "scores": {},
    }


def source() -> dict[str, Any]:
    """Return the commit of the code, and whether files differ from it."""
    if (commit := checkout.given()) is not None:
        return {"commit": commit, "changed_since": None}
    changed = checkout.git("status", "--porcelain")
    return {
        "commit": checkout.git("rev-parse", "HEAD"),
        "changed_since": None if changed is None else bool(changed),
    }


def arguments(overrides: Mapping[str, Any]) -> list[str]:
    """Return settings as arguments of the command line, without folders of this computer."""

    def text(value: Any) -> str:
        if isinstance(value, list | tuple):
            value = [Path(part).name if isinstance(part, str) else part for part in value]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return [f"{key}={text(value)}" for key, value in overrides.items() if key not in NOT_IN_COMMAND]


def training(folder: RunFolder) -> dict[str, Any]:
    """Return duration and speed of a training run, evaluations on the dev set included."""
    rows = folder.read_metrics()
    if not rows:
        return {}
    last = rows[-1]
    return {
        "preset": folder.read_config().preset,
        "steps": last["step"],
        "epochs": last["epoch"],
        "minutes": last["seconds"] / 60,
        "tokens_per_s": last["tokens"] / max(last["seconds"], 1e-9),
    }


def curve(folder: RunFolder) -> dict[str, Any]:
    """Return the dev metric that selects checkpoints over the seconds of training.

    The seconds include evaluations. Values are those of metrics.jsonl: shares, not per cent.
    """
    rows = folder.read_metrics()
    if not rows:
        return {}
    names = [name.removeprefix("dev_") for name in rows[-1] if name.startswith("dev_")]
    # the loss comes first; if another metric selects, it comes next
    metric = next((name for name in names if name != "loss"), "loss")
    points = [[row["seconds"], row[f"dev_{metric}"]] for row in rows]
    return {"metric": metric, "points": [point for point in points if point[1] is not None]}


def scores(found: TaskScores, examples: int, seconds: float) -> dict[str, Any]:
    """Return the record of a model's scores on one set."""
    figures = {metric.name: asdict(metric) for metric in found.metrics}
    for figure in figures.values():
        del figure["name"]
    return {"examples": examples, "seconds": seconds, "figures": figures}
