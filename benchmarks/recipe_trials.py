"""Trials of sweeps: trimmed logs, and tables of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from recipe_quality import HIGHER, SHARES
from recipe_tables import NONE, TITLES, Record, by_field, field, lines, title

TEXT: Final = (
    "## What was tried and did not help\n\n"
    "Trials of the sweeps in `benchmarks/results/sweeps`, best first. The settings are those that "
    "were given in place of the recipe's own as it stood at the commit of the sweep; what helped "
    "has gone into the recipe since. Figures are those of the dev set; a trial that was stopped "
    "before it was scored has the best value that training has seen.\n\n"
)


def trimmed(log: Record, field_of: Callable[[str], str]) -> Record:
    """Return a sweep's log without test scores, signatures and repeated settings.

    Args:
        log: as sweep.py writes it.
        field_of: the field of a recipe, where a trial has no result that says it.
    """
    seen = [trial for trial in log["trials"] if trial["best"] is not None]
    results = [trial["result"] for trial in log["trials"] if trial["result"]]
    kept = ("command", "commit", "changed_since", "minutes_each", "at_once", "seconds")
    return {
        **{name: log[name] for name in kept},
        "device": results[0]["device"] if results else None,
        "left_out": len(log["trials"]) - len(seen),
        "trials": [_trial(trial, field_of) for trial in seen],
    }


def _trial(trial: Record, field_of: Callable[[str], str]) -> Record:
    result = trial["result"] or {}
    dev = result.get("scores", {}).get("dev", {"figures": {}})["figures"]
    trained = result.get("training") or {}
    best = trial["best"]
    minutes = trained.get("minutes")
    where = field(result["task"], result["options"]) if result else field_of(trial["recipe"])
    return {
        "recipe": trial["recipe"],
        "field": where,
        "changes": trial["changes"],
        "state": trial["state"],
        "dev": {name: figure["value"] for name, figure in dev.items()},
        "best": {"metric": best["metric"].removeprefix("dev_"), "value": best["value"]},
        "steps": trained.get("steps", best["step"]),
        "seconds": round(best["seconds"] if minutes is None else 60 * minutes, 1),
    }


def kept(folder: Path) -> dict[str, Record]:
    """Return the saved sweeps by name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def section(sweeps: dict[str, Record], lessons: str = "") -> str:
    """Return the section of the page; empty without sweeps.

    Args:
        sweeps: by name.
        lessons: what was learned, in words, to stand before the tables.
    """
    if not sweeps:
        return ""
    every = [{**t, "sweep": name} for name, sweep in sweeps.items() for t in sweep["trials"]]
    words = f"{lessons.strip()}\n\n" if lessons.strip() else ""
    tables = [
        f"### {heading}\n\n{_table(mine)}"
        for heading, mine in by_field(every, lambda trial: str(trial["field"]))
    ]
    return TEXT + words + "\n".join([*tables, _sweeps_table(sweeps)])


def _table(trials: list[Record]) -> str:
    figures = list(dict.fromkeys(name for trial in trials for name in trial["dev"]))
    rows = [
        [
            f"`{trial['recipe']}`",
            f"`{' '.join(trial['changes'])}`" if trial["changes"] else "as it stood",
            _figures(trial, figures),
            f"{trial['steps']:,}",
            f"{trial['seconds'] / 60:.1f}",
            trial["sweep"],
        ]
        for trial in sorted(trials, key=lambda trial: _place(trial, figures))
    ]
    header = [
        "recipe",
        "settings",
        f"dev: {title(figures)}" if figures else "dev",
        "steps",
        "minutes",
        "sweep",
    ]
    return lines(header, rows, numbers=[2, 3, 4])


def _place(trial: Record, figures: list[str]) -> tuple[bool, float]:
    """Sort trials by the first metric, best first; those without one last, by dev metric."""
    scored = bool(trial["dev"])
    name = figures[0] if scored else trial["best"]["metric"]
    value = trial["dev"].get(name, 0.0) if scored else trial["best"]["value"]
    return not scored, -value if name in HIGHER or name.startswith("bleu") else value


def _figures(trial: Record, figures: list[str]) -> str:
    dev: dict[str, Any] = trial["dev"]
    if dev:
        return " / ".join(f"{dev[name]:.2f}" if name in dev else NONE for name in figures)
    metric, value = trial["best"]["metric"], trial["best"]["value"]
    shown = f"{100 * value:.2f}%" if metric in SHARES else f"{value:.2f}"
    return f"{trial['state']}, {TITLES.get(metric, metric).removesuffix(' %')} {shown}"


def _sweeps_table(sweeps: dict[str, Record]) -> str:
    header = ["sweep", "device", "minutes each", "at once", "commit", "trials", "without a figure"]
    rows = [
        [
            name,
            sweep["device"] or "",
            "as in the recipe" if sweep["minutes_each"] is None else f"{sweep['minutes_each']:g}",
            str(sweep["at_once"]),
            (sweep["commit"] or "none")[:12],
            str(len(sweep["trials"])),
            str(sweep["left_out"]),
        ]
        for name, sweep in sweeps.items()
    ]
    return lines(header, rows, numbers=[2, 3, 5, 6])
