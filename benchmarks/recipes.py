"""Tables of the recipes' results: collects what runs have left, and writes pages from it alone.

    python benchmarks/recipes.py collect runs/recipes/*     # into benchmarks/results/recipes-*.json
    python benchmarks/recipes.py collect out/sweep.json     # the same from the log of a sweep
    python benchmarks/recipes.py trials out/sweep.json --name cmudict   # keeps what was tried
    python benchmarks/recipes.py render                     # docs/recipes.md, and README's table
    python benchmarks/recipes.py render --check             # 1 if these are not what results give

Only runs of a recipe as it stands are taken, with any seed, and only where test is scored. A run on
a CPU is taken for the time that it needs to reach a score: it may have another budget, and needs
no test score, unless it is an ensemble, which learns nothing. Each device has a file of its own,
and means are over the runs of one device.
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
from report import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results"
RECIPES: Final = ROOT / "recipes"
#: what was learned from sweeps, in words; may be missing
LESSONS: Final = ROOT / "benchmarks" / "sweeps" / "lessons.md"
PAGE: Final = ROOT / "docs" / "recipes.md"
README: Final = ROOT / "README.md"
BEGIN, END = "<!-- recipes: made by benchmarks/recipes.py -->", "<!-- /recipes -->"
#: what may differ from run to run of one recipe
FREE: Final = ("seed", "device", "threads", "report", "save_every")
#: what may also differ on a CPU: how long a run goes on, and how often it is looked at
BUDGET: Final = ("minutes", "steps", "epochs", "patience", "eval_every")
#: defaults that have since come to follow the data: recipes name them, their earlier results do not
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
    "Written by `python benchmarks/recipes.py render` from `benchmarks/results/recipes-*`. How "
    "each is run and counted is in [recipes/README.md](../recipes/README.md). A figure is the "
    "mean over seeds, with the lowest and the highest in brackets. Settings were chosen by dev "
    "figures; each test set was scored once for each model. Rows that do not name a recipe are "
    "figures that others have published.\n"
)
DEFAULTS: Final = (
    "## The trainer's own defaults\n\n"
    "A plain `regard train` takes its highest learning rate from `RATES` and `RATE` in "
    "`src/regard/training/task.py`, and `make demo` the settings in `src/regard/cli/demo.py`. Both "
    "were chosen by small sweeps on dev sets, the demo's by one of eight runs (commit 692d792). "
    "The logs of these sweeps were not kept: the commits are the only evidence. Batch size, model "
    "size, warm-up, evaluations and patience follow the data and the budget by "
    "`src/regard/training/defaults.py`: [small_data.md](small_data.md) has what that reaches. "
    "Recipes name all of these, so that their figures do not depend on it.\n"
)


def check(result: Record, recipe: Recipe, where: str) -> None:
    """Raises where a result is not that of the recipe as it stands."""
    cpu = result["device"] == "cpu"
    together = bool(result.get("members"))  # nothing is trained, so that any device will do
    if (together or not cpu) and "test" not in result["scores"]:
        raise SystemExit(f"{where}: its test set has no score: go on with `regard train --resume`.")
    if cpu and not together and not result.get("curve"):
        raise SystemExit(
            f"{where}: a result of a CPU must have a curve, but it has none: let the run end."
        )
    timed = cpu and "test" not in result["scores"]  # what counts is how fast a score is reached
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
    """Settings as JSON has them, without those that are free."""
    kept = {key: value for key, value in dict(settings).items() if key not in free}
    plain: Record = json.loads(json.dumps(kept, default=list))
    return plain


def collect(paths: Iterable[Path]) -> list[Path]:
    """Takes the results of runs; a later one of the same recipe, device and seed replaces."""
    found: dict[tuple[str, str], dict[int, Record]] = {}
    for path, result in left_by(paths):
        check(result, recipe_of(result["recipe"]), str(path))
        found.setdefault((result["recipe"], device(result)), {})[result["seed"]] = result
    return [_write(name, where, by_seed) for (name, where), by_seed in found.items()]


def _write(name: str, where: str, by_seed: dict[int, Record]) -> Path:
    """Adds runs of a recipe to those that are kept of one device."""
    target = RESULTS / f"recipes-{name}.{slug(where)}.json"
    before = json.loads(target.read_text())["runs"] if target.exists() else []
    merged = {run["seed"]: run for run in before} | by_seed
    runs = [merged[seed] for seed in sorted(merged)]
    text = json.dumps({"recipe": name, "runs": runs}, indent=2, ensure_ascii=False)
    target.write_text(POINT.sub(r"[\1, \2]", text) + "\n")
    return target


def left_by(paths: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    """Results of run folders, of files of results, and of all trials of a sweep that are done."""
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
    """A file of JSON that the user has named."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path}: this must be a file of JSON, but it is not ({error}).") from None
    if not isinstance(found, dict):
        raise SystemExit(f"{path}: this must be a result or the log of a sweep, but it is not.")
    return found


def keep_trials(path: Path, name: str) -> Path:
    """Keeps what a sweep has tried; an earlier one of the same name is replaced."""
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
    """The recipe of the repository with this name."""
    path = RECIPES / f"{name}.toml"
    recipe = read(path) if path.exists() else None
    if recipe is None:
        raise SystemExit(f"recipes/{name}.toml must be a recipe, but there is none.")
    return recipe


def field_of(name: str) -> str:
    """The part of a task that a recipe of the repository belongs to."""
    recipe = recipe_of(name)
    return field(recipe.task, dict(recipe.options))


def results() -> list[Record]:
    """All results that are kept, by recipe and device, beside what the recipes say of others."""
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("recipes-*.json"))]
    for record in records:
        rows = [dict(row) for row in recipe_of(record["recipe"]).published]
        for run in record["runs"]:
            run["published"] = rows
    return records


def page(records: list[Record], sweeps: dict[str, Record], lessons: str = "") -> str:
    """The page of the guide."""
    tried = recipe_trials.section(sweeps, lessons)
    measured = ["No recipe has been measured yet.\n"]
    if records:
        quality = recipe_quality.section(records)
        parts = [*task_sections(records), quality, runs_section(records)]
        measured = [*parts, signatures_section(records)]
    return "\n".join(part for part in [HEAD, *measured, tried, DEFAULTS] if part)


def with_table(readme: str, table: str) -> str:
    """The README with its table between the markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md must have the markers {BEGIN} and {END}, but it has not both.")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def render(*, check_only: bool) -> bool:
    """Writes both pages; whether they were as results give them."""
    records, sweeps = results(), recipe_trials.kept(RESULTS / "sweeps")
    lessons = LESSONS.read_text() if LESSONS.exists() else ""
    table = short_table(records, len(list(RECIPES.glob("*.toml"))))
    wanted = {
        PAGE: page(records, sweeps, lessons),
        README: with_table(README.read_text(), table),
    }
    same = all(path.exists() and path.read_text() == text for path, text in wanted.items())
    if not check_only:
        for path, text in wanted.items():
            path.write_text(text)
    return same


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    taken = verbs.add_parser("collect", help="take the results of runs")
    taken.add_argument(
        "runs", type=Path, nargs="+", help="run folders, files of results, logs of sweeps"
    )
    tried = verbs.add_parser("trials", help="keep what a sweep has tried")
    tried.add_argument("sweep", type=Path, help="the log of the sweep")
    tried.add_argument("--name", required=True, help="what the page calls the sweep")
    shown = verbs.add_parser("render", help="write the pages")
    shown.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.verb == "collect":
        for path in collect(args.runs):
            print(path)
    elif args.verb == "trials":
        print(keep_trials(args.sweep, args.name))
    elif not render(check_only=args.check) and args.check:
        sys.exit("docs/recipes.md and README.md must be what the results give: render them anew.")


if __name__ == "__main__":
    main()
