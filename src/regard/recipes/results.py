"""What a recipe leaves behind: result.json, from which every table is made."""

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
from regard.recipes.tasks import Verdict
from regard.training import RunFolder
from regard.version import __version__

FILE: Final = "result.json"
#: settings that say where and how a run is watched, and have no part in its result
ASIDE: Final = ("device", "threads", "report")
LIBRARIES: Final = ("numpy", "sacrebleu", "jiwer", "tokenizers")

Result = dict[str, Any]


def read(folder: Path) -> Result | None:
    """The result of a run so far."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        found = safe_read.parse_json(path.read_bytes())
        assert isinstance(found["scores"], dict)
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise DataError(
            str(path), None, f"this is no result ({error})", "delete it, and score again"
        ) from None
    return dict(found)


def write(folder: Path, result: Result) -> None:
    """Keeps a result."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=2, ensure_ascii=False)
    write_atomic(folder / FILE, f"{text}\n".encode())


def begin(recipe: Recipe, overrides: Mapping[str, Any], device: torch.device) -> Result:
    """What is known before the first score."""
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "options": dict(recipe.options),
        "settings": dict(recipe.settings),
        "command": command(recipe.name, overrides),
        **source(),
        "versions": {
            "regard": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            **{name: version(name) for name in LIBRARIES},
        },
        "seed": recipe.seed,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cores": None if device.type == "cuda" else _cores(recipe),
        "decoding": dict(recipe.decoding),
        "members": [Path(member).name for member in recipe.members],
        "teacher": [Path(member).name for member in recipe.teacher],
        "published": [dict(row) for row in recipe.published],
        "scores": {},
    }


def training(folder: RunFolder) -> dict[str, Any]:
    """How long a run has trained, and how fast: evaluations on the dev set are in its time."""
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
    """How the dev metric that decides has gone on, with the seconds of training before each value.

    Earlier evaluations are in the seconds. Values are those of metrics.jsonl: shares, not per cent.
    """
    rows = folder.read_metrics()
    if not rows:
        return {}
    names = [name.removeprefix("dev_") for name in rows[-1] if name.startswith("dev_")]
    # the loss stands first; where another metric decides, that one comes next
    metric = next((name for name in names if name != "loss"), "loss")
    return {"metric": metric, "points": [[row["seconds"], row[f"dev_{metric}"]] for row in rows]}


def score(verdict: Verdict, examples: int, seconds: float) -> dict[str, Any]:
    """What a model has got on one set."""
    figures = {figure.name: asdict(figure) for figure in verdict.figures}
    for figure in figures.values():
        del figure["name"]
    return {"examples": examples, "seconds": seconds, "figures": figures}


def _cores(recipe: Recipe) -> int:
    """The processor's cores that a run can keep busy."""
    threads = recipe.settings.get("threads") or torch.get_num_threads()
    return min(int(threads), os.cpu_count() or 1)


def command(name: str, overrides: Mapping[str, Any]) -> str:
    """The command line that makes the result again, without the folders of this computer."""
    return " ".join(["regard", "train", f"recipes/{name}", *changes(overrides)])


def changes(overrides: Mapping[str, Any]) -> list[str]:
    """Settings as a command line has them."""
    return [f"{key}={_shown(value)}" for key, value in overrides.items() if key not in ASIDE]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = [Path(part).name if isinstance(part, str) else part for part in value]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def source() -> dict[str, Any]:
    """The commit that was run, and whether files differ from it."""
    if (commit := checkout.given()) is not None:
        return {"commit": commit, "changed_since": None}
    changed = checkout.git("status", "--porcelain")
    return {
        "commit": checkout.git("rev-parse", "HEAD"),
        "changed_since": None if changed is None else bool(changed),
    }
