"""Tables of the recipes' results: collects what runs have left, and writes pages from it alone.

    python benchmarks/recipes.py collect runs/recipes/*     # into benchmarks/results/recipes-*.json
    python benchmarks/recipes.py collect out/sweep.json     # the same from the log of a sweep
    python benchmarks/recipes.py render                     # docs/recipes.md, and README's table
    python benchmarks/recipes.py render --check             # 1 if these are not what results give

Only runs of a recipe as it stands are taken, with any seed, and only where test is scored.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from regard.recipes import Recipe, read
from report import ROOT

RESULTS: Final = ROOT / "benchmarks" / "results"
PAGE: Final = ROOT / "docs" / "recipes.md"
README: Final = ROOT / "README.md"
BEGIN, END = "<!-- recipes: made by benchmarks/recipes.py -->", "<!-- /recipes -->"
#: what may differ from run to run of one recipe
FREE: Final = ("seed", "device", "threads", "report", "save_every")
TITLES: Final = {
    "wer": "WER",
    "per": "PER",
    "exact": "exact",
    "bleu": "BLEU",
    "bleu-lc": "BLEU in lower case",
    "perplexity": "perplexity",
}
#: figures that are shares
SHARES: Final = ("wer", "per", "exact")
SETS: Final = {"test": "test", "test2017": "test 2017", "dev": "dev"}

Record = dict[str, Any]


def check(result: Record, recipe: Recipe, where: str) -> None:
    """Raises where a result is not that of the recipe as it stands."""
    if "test" not in result["scores"]:
        raise SystemExit(f"{where}: its test set has no score: go on with `regard train --resume`.")
    for name in ("settings", "options", "decoding"):
        ours, theirs = _plain(getattr(recipe, name)), _plain(result[name])
        if ours != theirs:
            changed = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
            raise SystemExit(
                f"{where}: a result must be of the recipe as it stands, but {sorted(changed)} "
                f"differ from recipes/{recipe.name}.toml: run it again."
            )


def _plain(settings: Any) -> Record:
    """Settings as JSON has them, without those that are free."""
    kept = {key: value for key, value in dict(settings).items() if key not in FREE}
    plain: Record = json.loads(json.dumps(kept, default=list))
    return plain


def collect(folders: Iterable[Path]) -> list[Path]:
    """Takes the results of runs; a later one of the same recipe and seed replaces the earlier."""
    found: dict[str, dict[int, Record]] = {}
    for path, result in left_by(folders):
        check(result, recipe_of(result["recipe"]), str(path))
        found.setdefault(result["recipe"], {})[result["seed"]] = result
    written = []
    for name, by_seed in found.items():
        target = RESULTS / f"recipes-{name}.json"
        before = json.loads(target.read_text())["runs"] if target.exists() else []
        merged = {run["seed"]: run for run in before} | by_seed
        rows = [dict(row) for row in recipe_of(name).published]
        runs = [{**merged[seed], "published": rows} for seed in sorted(merged)]
        text = json.dumps({"recipe": name, "runs": runs}, indent=2, ensure_ascii=False)
        target.write_text(f"{text}\n")
        written.append(target)
    return written


def left_by(paths: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    """Results of run folders, of files of results, and of all trials of a sweep that are done."""
    for path in paths:
        file = path / "result.json" if path.is_dir() else path
        record: Record = json.loads(file.read_text())
        if "trials" in record:
            yield from ((file, t["result"]) for t in record["trials"] if t["state"] == "done")
        else:
            yield file, record


def recipe_of(name: str) -> Recipe:
    """The recipe of the repository with this name."""
    recipe = read(ROOT / "recipes" / f"{name}.toml")
    if recipe is None:
        raise SystemExit(f"recipes/{name}.toml must be a recipe, but it has settings alone.")
    return recipe


def results(folder: Path = RESULTS) -> list[Record]:
    """All results that are kept, by recipe."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("recipes-*.json"))]


def spread(values: list[float]) -> str:
    """A mean, and how far single runs lie from each other."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def figures(record: Record, part: str) -> dict[str, str]:
    """The figures of one set over all seeds, by name."""
    scores = [run["scores"][part]["figures"] for run in record["runs"] if part in run["scores"]]
    names = dict.fromkeys(name for several in scores for name in several)
    return {name: spread([s[name]["value"] for s in scores if name in s]) for name in names}


def words(several: dict[str, str]) -> str:
    """Figures in one cell."""
    return "; ".join(
        f"{TITLES.get(name, name)} {value}{'%' if name in SHARES else ''}"
        for name, value in several.items()
    )


def published(record: Record, *, notes: bool) -> str:
    """What others have got, in one cell."""
    rows = []
    for row in record["runs"][-1]["published"]:
        said = words({name: f"{value:g}" for name, value in row["figures"].items()})
        note = f"; {row['note']}" if notes and row.get("note") else ""
        rows.append(f"{said}: {row['system']}, {row['by']}{note}")
    return "<br>".join(rows)


def lines(header: list[str], rows: list[list[str]], numbers: Iterable[int] = ()) -> str:
    """A table of Markdown; the columns of `numbers` are set to the right."""
    rule = ["---:" if i in set(numbers) else "---" for i in range(len(header))]
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, rule, *rows])


def short_table(records: list[Record]) -> str:
    """The table of the README."""
    if not records:
        return "No recipe has been measured yet.\n"
    rows = [
        [
            f"`{record['recipe']}`",
            words(figures(record, "test")),
            str(len(record["runs"])),
            published(record, notes=False),
        ]
        for record in records
    ]
    return lines(["recipe", "test", "seeds", "published"], rows, numbers=[2])


def page(records: list[Record]) -> str:
    """The page of the guide."""
    head = (
        "# Recipes and their results\n\n"
        "Written by `python benchmarks/recipes.py render` from `benchmarks/results/recipes-*`. How "
        "each is run and counted is in [recipes/README.md](../recipes/README.md). A figure is the "
        "mean over seeds, with the lowest and the highest in brackets. Settings were chosen by dev "
        "figures; each test set was scored once for each model. Time is that of training, "
        "evaluations on the dev set among it; several runs may have shared the device.\n\n"
    )
    if not records:
        return f"{head}No recipe has been measured yet.\n"
    return head + "\n".join([_figures_table(records), _runs_table(records), _how(records)])


def _figures_table(records: list[Record]) -> str:
    rows = []
    for record in records:
        cells = [f"{SETS[part]}: {words(f)}" for part in SETS if (f := figures(record, part))]
        rows.append(
            [
                f"`{record['recipe']}`",
                "<br>".join(cells),
                str(len(record["runs"])),
                published(record, notes=True),
            ]
        )
    return lines(["recipe", "figures", "seeds", "published"], rows, numbers=[2])


def _runs_table(records: list[Record]) -> str:
    header = ["recipe", "seed", "weights", "steps", "minutes", "tokens/s", "device", "commit"]
    rows = [_run_row(run) for record in records for run in record["runs"]]
    return "## Runs\n\n" + lines(header, rows, numbers=range(1, 6))


def _run_row(run: Record) -> list[str]:
    trained = run["training"]
    numbers = ["", "", ""]
    if trained:  # an ensemble is not
        speed = f"{trained['tokens_per_s']:,.0f}"
        numbers = [f"{trained['steps']:,}", f"{trained['minutes']:.1f}", speed]
    commit = (run["commit"] or "none")[:12] + (" with changes" if run["changed_since"] else "")
    start = [f"`{run['recipe']}`", str(run["seed"]), f"{run['weights']:,}"]
    return [*start, *numbers, run["device"], commit]


def _how(records: list[Record]) -> str:
    """How each figure was counted."""
    rows = []
    for record in records:
        for name, figure in record["runs"][-1]["scores"]["test"]["figures"].items():
            rows.append([f"`{record['recipe']}`", TITLES.get(name, name), figure["signature"]])
    cells = [[a, b, f"`{c.replace('|', ' ')}`"] for a, b, c in rows]
    return "## Signatures\n\n" + lines(["recipe", "figure", "signature"], cells)


def with_table(readme: str, table: str) -> str:
    """The README with its table between the markers."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md must have the markers {BEGIN} and {END}, but it has not both.")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"


def render(*, check_only: bool) -> bool:
    """Writes both pages; whether they were as results give them."""
    records = results()
    wanted = {PAGE: page(records), README: with_table(README.read_text(), short_table(records))}
    same = all(path.exists() and path.read_text() == text for path, text in wanted.items())
    if not check_only:
        for path, text in wanted.items():
            path.write_text(text)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    taken = verbs.add_parser("collect", help="take the results of runs")
    taken.add_argument(
        "runs", type=Path, nargs="+", help="run folders, files of results, logs of sweeps"
    )
    shown = verbs.add_parser("render", help="write the pages")
    shown.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    args = parser.parse_args()
    if args.verb == "collect":
        for path in collect(args.runs):
            print(path)
        return
    same = render(check_only=args.check)
    if args.check and not same:
        sys.exit("docs/recipes.md and README.md must be what the results give: render them anew.")


if __name__ == "__main__":
    main()
