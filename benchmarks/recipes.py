"""Collect the results of recipe runs and write docs/recipes.md from them.

    python benchmarks/recipes.py collect runs/recipes/*     # into benchmarks/results/recipes-*.json
    python benchmarks/recipes.py collect out/sweep.json     # the same from the log of a sweep
    python benchmarks/recipes.py trials out/sweep.json --name cmudict   # keep the trials of a sweep
    python benchmarks/recipes.py render                     # docs/recipes.md
    python benchmarks/recipes.py render --check             # 1 if the page is out of date

Only runs of a recipe as it stands are accepted, with any seed, and only if the test set is scored.
A run on a CPU counts for the time that it needs to reach a score: it may have another budget, and
needs no test score, unless it is an ensemble, which trains nothing. Each device has a file of its
own, and means are over the runs of one device.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import recipe_quality
import recipe_trials
from provenance import ROOT
from recipe_tables import (
    Record,
    device,
    field,
    runs_section,
    short_table,
    signatures_section,
    slug,
    task_sections,
)
from regard.recipes import Recipe, read

RESULTS: Final = ROOT / "benchmarks" / "results"
RECIPES: Final = ROOT / "recipes"
#: lessons from the sweeps, in prose; may be missing
LESSONS: Final = ROOT / "benchmarks" / "sweeps" / "lessons.md"
PAGE: Final = ROOT / "docs" / "recipes.md"
#: settings that may differ between runs of one recipe
FREE: Final = ("seed", "device", "threads", "report", "save_every")
#: settings that may also differ on a CPU: budget and evaluation interval
BUDGET: Final = ("minutes", "steps", "epochs", "patience", "eval_every")
#: former fixed defaults that now depend on the data: recipes set them, earlier results did not
FORMER: Final = {
    "size": "small",
    "batch_tokens": 4096,
    "warmup": 200,
    "eval_every": "epoch",
    "eval_pairs": 1000,
}
#: a point of a curve, over four lines
POINT: Final = re.compile(r"\[\s+(\S+),\s+(\S+)\s+\]")

HEAD: Final = (
    "# Recipes and their results\n\n"
    "Written by `python benchmarks/recipes.py render` from `benchmarks/results/recipes-*`. "
    "[recipes/README.md](../recipes/README.md) says how recipes are run and scored. Values are "
    "means over seeds, with the lowest and the highest in brackets. Settings were chosen by dev "
    "scores; each test set was scored once for each model. Rows that do not name a recipe are "
    "published results.\n"
)
DEFAULTS: Final = (
    "## Defaults of the trainer\n\n"
    "A plain `regard train` takes its peak learning rate from `PEAK_RATES` and `PEAK_RATE` in "
    "`src/regard/training/defaults.py`, and `make demo` its settings from "
    "`src/regard/cli/demo.py`. Both were chosen by small sweeps on dev sets, the demo's by one of "
    "eight runs (commit 692d792). The logs of these sweeps were not kept: the commits are the only "
    "evidence. Batch size, model size, warmup, evaluations and patience follow the data and the "
    "budget by `src/regard/training/defaults.py`: [small_data.md](small_data.md) has the results. "
    "Recipes set all of these, so that their results do not depend on the defaults.\n"
)


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
    timed = cpu and "test" not in result["scores"]  # it shows how fast a score is reached
    free = (*FREE, *BUDGET) if timed else FREE
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


def collect(paths: Iterable[Path]) -> list[Path]:
    """Save the results of runs; a later one of the same recipe, device and seed wins."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for path, result in left_by(paths):
        check(result, recipe_of(result["recipe"]), str(path))
        found.setdefault((result["recipe"], device(result)), {})[result["seed"]] = result
    return [_write(name, where, by_seed) for (name, where), by_seed in found.items()]


def _write(name: str, where: str, by_seed: dict[int, Record]) -> Path:
    """Add runs of a recipe to the file of one device."""
    target = RESULTS / f"recipes-{name}.{slug(where)}.json"
    before = json.loads(target.read_text())["runs"] if target.exists() else []
    merged = {run["seed"]: run for run in before} | by_seed
    runs = [merged[seed] for seed in sorted(merged)]
    text = json.dumps({"recipe": name, "runs": runs}, indent=2, ensure_ascii=False)
    target.write_text(POINT.sub(r"[\1, \2]", text) + "\n")
    return target


def left_by(paths: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    """Yield results of run folders, of result files, and of finished trials of a sweep."""
    for path in paths:
        file = path / "result.json" if path.is_dir() else path
        record = load(file)
        if "trials" in record:
            beside = {"at_once": min(record["at_once"], len(record["trials"]))}
            done = [trial["result"] for trial in record["trials"] if trial["state"] == "done"]
            yield from ((file, {**result, **beside}) for result in done)
        elif "scores" in record:
            yield file, record
        else:
            raise SystemExit(f"{file}: this must be a result or the log of a sweep, but it is not.")


def load(path: Path) -> Record:
    """Read a JSON file named by the user."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: this must be a file of JSON, but it is not ({error}).") from None
    if not isinstance(found, dict):
        raise SystemExit(f"{path}: this must be a result or the log of a sweep, but it is not.")
    return found


def keep_trials(path: Path, name: str) -> Path:
    """Save the trials of a sweep; an earlier one of the same name is replaced."""
    log = load(path)
    if "trials" not in log:
        raise SystemExit(f"{path}: this must be the log of a sweep, but it has no trials.")
    if slug(name) != name:
        raise SystemExit(f"--name must be small letters, digits and hyphens, but it is {name!r}.")
    record = recipe_trials.trimmed(log, field_of)
    if not record["trials"]:
        raise SystemExit(f"{path}: a trial must have been evaluated once, but none has.")
    target = RESULTS / "sweeps" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return target


def recipe_of(name: str) -> Recipe:
    """Return the recipe of the repository with this name."""
    path = RECIPES / f"{name}.toml"
    recipe = read(path) if path.exists() else None
    if recipe is None:
        raise SystemExit(f"recipes/{name}.toml must be a recipe, but there is none.")
    return recipe


def field_of(name: str) -> str:
    """Return the part of a task that a recipe belongs to."""
    recipe = recipe_of(name)
    return field(recipe.task, dict(recipe.options))


def results() -> list[Record]:
    """Return all saved results, by recipe and device, with the published ones."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("recipes-*.json"))]
    for record in records:
        rows = [dict(row) for row in recipe_of(record["recipe"]).published]
        for run in record["runs"]:
            run["published"] = rows
    return records


def page(records: list[Record], sweeps: dict[str, Record], lessons: str = "") -> str:
    """Return the text of docs/recipes.md."""
    tried = recipe_trials.section(sweeps, lessons)
    measured = ["No recipe has been measured yet.\n"]
    if records:
        quality = recipe_quality.section(records)
        overview = f"## All recipes\n\n{short_table(records, len(list(RECIPES.glob('*.toml'))))}"
        parts = [overview, *task_sections(records), quality, runs_section(records)]
        measured = [*parts, signatures_section(records)]
    return "\n".join(part for part in [HEAD, *measured, tried, DEFAULTS] if part)


def render(*, check_only: bool) -> bool:
    """Write the page, unless only checking; return whether it was up to date."""
    records, sweeps = results(), recipe_trials.kept(RESULTS / "sweeps")
    lessons = LESSONS.read_text() if LESSONS.exists() else ""
    text = page(records, sweeps, lessons)
    same = PAGE.exists() and PAGE.read_text() == text
    if not check_only:
        PAGE.write_text(text)
    return same


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    taken = verbs.add_parser("collect", help="save the results of runs")
    taken.add_argument(
        "runs", type=Path, nargs="+", help="run folders, files of results, logs of sweeps"
    )
    tried = verbs.add_parser("trials", help="save the trials of a sweep")
    tried.add_argument("sweep", type=Path, help="the log of the sweep")
    tried.add_argument("--name", required=True, help="name of the sweep on the page")
    shown = verbs.add_parser("render", help="write docs/recipes.md")
    shown.add_argument("--check", action="store_true", help="write nothing; 1 if it is out of date")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.verb == "collect":
        for path in collect(args.runs):
            print(path)
    elif args.verb == "trials":
        print(keep_trials(args.sweep, args.name))
    elif not render(check_only=args.check) and args.check:
        sys.exit("docs/recipes.md is out of date: run `python benchmarks/recipes.py render`.")


if __name__ == "__main__":
    main()
