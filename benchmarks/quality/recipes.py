"""Collect the results of recipe runs into benchmarks/results, for docs/results/recipes.md.

    python -m benchmarks.quality.recipes runs/recipes/*     # into results/recipes-*.json
    python -m benchmarks.pages.render                       # docs/results/recipes.md

Only runs of a recipe as it stands are accepted, with any seed, and only if the test set is scored.
A run on a CPU counts for the time that it needs to reach a score: it may have another budget, and
needs no test score, unless it is an ensemble, which trains nothing. Each device has a file of its
own, and means are over the runs of one device.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import RESULTS, Record
from benchmarks.pages.recipes import device, recipe_of
from regard.recipes import Recipe

#: settings that may differ between runs of one recipe
FREE: Final = ("seed", "device", "threads", "report", "baseline", "save_every")
#: settings that may differ, too, where a CPU shows how fast a score is reached
BUDGET: Final = ("minutes", "steps", "epochs", "patience", "eval_every")
#: former fixed defaults that now depend on the data: recipes set them, earlier results did not
FORMER: Final = {
    "size": "small",
    "batch_tokens": 4096,
    "warmup": 200,
    "eval_every": "epoch",
    "eval_pairs": 1000,
    "rdrop": 0,
    "tied": "none",
}
#: a point of a curve, over four lines
POINT: Final = re.compile(r"\[\s+(\S+),\s+(\S+)\s+\]")


def check(result: Record, recipe: Recipe, where: str) -> None:
    """Raise unless a result is of the recipe as it stands."""
    cpu = result["device"] == "cpu"
    together = bool(result.get("members"))  # nothing is trained: any device will do
    if (together or not cpu) and "test" not in result["scores"]:
        raise SystemExit(f"{where}: its test set has no score: use `regard train --resume`.")
    if cpu and not together and not result.get("curve"):
        raise SystemExit(
            f"{where}: a result of a CPU must have a curve, but it has none: finish the run."
        )
    free = (*FREE, *BUDGET) if cpu and "test" not in result["scores"] else FREE
    for name in ("settings", "options", "decoding"):
        former = FORMER if name == "settings" else {}
        ours, theirs = (
            _plain({**former, **settings}, free)
            for settings in (getattr(recipe, name), result[name])
        )
        if ours != theirs:
            changed = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
            raise SystemExit(
                f"{where}: a result must be of the recipe as it stands, but {sorted(changed)} "
                f"differ from recipes/{recipe.name}.toml: run it again."
            )


def _plain(settings: Any, free: Iterable[str]) -> Record:
    """Return settings as JSON restores them, without free ones."""
    kept = {key: value for key, value in dict(settings).items() if key not in free}
    plain: Record = json.loads(json.dumps(kept, default=list))
    return plain


def collect(paths: Iterable[Path], into: Path = RESULTS) -> list[Path]:
    """Save the results of runs; a later one of the same recipe, device and seed wins."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for path in paths:
        result = load(path / "result.json" if path.is_dir() else path)
        check(result, recipe_of(result["recipe"]), str(path))
        found.setdefault((result["recipe"], device(result)), {})[result["seed"]] = result
    written = []
    for (name, where), by_seed in found.items():
        slug = re.sub(r"[^a-z0-9]+", "-", where.lower()).strip("-")
        target = into / f"recipes-{name}.{slug}.json"
        before = json.loads(target.read_text())["runs"] if target.exists() else []
        merged = {run["seed"]: run for run in before} | by_seed
        runs = [merged[seed] for seed in sorted(merged)]
        text = json.dumps({"recipe": name, "runs": runs}, indent=2, ensure_ascii=False)
        target.write_text(POINT.sub(r"[\1, \2]", text) + "\n")
        written.append(target)
    return written


def load(path: Path) -> Record:
    """Read a result that the user names."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: this must be a file of JSON, but it is not ({error}).") from None
    if not isinstance(found, dict) or "scores" not in found:
        raise SystemExit(f"{path}: this must be the result of a recipe's run, but it is not.")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, or files of results")
    for path in collect(parser.parse_args().runs):
        print(path)


if __name__ == "__main__":
    main()
