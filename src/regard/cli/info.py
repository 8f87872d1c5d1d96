"""Commands that list what there is: `regard models`, `presets` and `settings`."""

import sys
from typing import Any, Final

from regard.api import bundled_models
from regard.api.bundled_models import licence, megabytes, render
from regard.cli.commands import ModelsArgs, PresetsArgs, SettingsArgs
from regard.cli.console import note, print_json, print_table, result_console
from regard.errors import ArgumentError
from regard.messages import help_text, message, use_language
from regard.models import PRESETS
from regard.training.config import (
    SettingRow,
    check_preset,
    config_settings,
    preset_settings,
    task_settings,
)

#: titles of the groups of settings, by the first setting of each
GROUPS: Final = {
    "data": "data",
    "preset": "model",
    "src_tokenizer": "tokens",
    "batch_tokens": "steps",
    "steps": "limits",
    "seed": "use",
}


def models(args: ModelsArgs) -> None:
    """List the models that come with regard, or print the card of one: each is a RUN by name."""
    if args.name is not None:
        return _print_card(args.name, as_json=args.as_json)
    if args.as_json:
        return print_json([_card_facts(name) for name in bundled_models.names()])
    rows: list[tuple[str, str]] = []
    for name in bundled_models.names():
        card = bundled_models.card(name)
        facts = {"size": megabytes(bundled_models.size(name))}
        if card is not None:
            facts |= {"score": str(card.score), "licence": licence(card)}
            facts |= {"try": card.show_commands[0]}
        rows.append((name, "" if card is None else card.said.what))
        rows += [(f"  {message(f'models.{key}')}", value) for key, value in facts.items()]
    if rows:
        titles = message("models.model"), message("models.what")
        return print_table(result_console(), titles, rows)
    return note(message("models.none"))


def _print_card(name: str, *, as_json: bool) -> None:
    """Print the card of a bundled model, in the current language."""
    if name not in bundled_models.names():
        known = ", ".join(bundled_models.names()) or "none"
        fix = "see `regard models`"
        raise ArgumentError("NAME", f"be a bundled model ({known})", repr(name), fix)
    if as_json:
        return print_json(_card_facts(name))
    card = bundled_models.card(name)
    if card is None:
        return note(message("models.no-card", name=name))
    sys.stdout.write(render(card, bundled_models.size(name)))
    return None


def _card_facts(name: str) -> dict[str, Any]:
    """Return the card of a bundled model with its size, as JSON."""
    card = bundled_models.card(name)
    facts = {} if card is None else card.model_dump(mode="json")
    if card is not None:
        facts["example"] = card.show_commands[0]
    return {"name": name, **facts, "bytes": bundled_models.size(name)}


def presets(args: PresetsArgs) -> None:
    """Print the name and the first line of each preset."""
    rows = [(name, (preset.__doc__ or "").splitlines()[0]) for name, preset in PRESETS.items()]
    if args.as_json:
        return print_json([{"name": name, "description": summary} for name, summary in rows])
    titles = message("models.preset"), message("models.what")
    return print_table(result_console(), titles, [(name, help_text(said)) for name, said in rows])


def settings(args: SettingsArgs) -> None:
    """List all settings of a run, with their defaults."""
    check_preset(args.preset)
    with use_language("en" if args.as_json else None):
        groups = _grouped_settings(args.preset)
    if args.as_json:
        found = [row._asdict() | {"group": name} for name, own in groups.items() for row in own]
        return print_json({"preset": args.preset, "settings": found})
    rows: list[tuple[str, str, str]] = []
    for name, own in groups.items():
        title, _, kind = name.partition(": ")
        shown = help_text(title)
        shown = message("settings.group", title=shown, kind=kind) if kind else shown
        rows += [("", "", ""), (f"[{shown}]", "", ""), *own]
    titles = [message(f"models.{name}") for name in ("setting", "default", "what")]
    return print_table(result_console(), titles, rows)


def _grouped_settings(preset: str) -> dict[str, list[SettingRow]]:
    """Return the settings by the title of their group; those of kinds of data
    and of the preset come last."""
    found: dict[str, list[SettingRow]] = {}
    for row in config_settings(preset):
        if row.name in GROUPS:
            found[GROUPS[row.name]] = group = []
        group.append(row._replace(default=preset) if row.name == "preset" else row)
    of_kinds = {f"data: {kind}": rows for kind, rows in task_settings().items()}
    return found | of_kinds | {preset: preset_settings(preset)}
