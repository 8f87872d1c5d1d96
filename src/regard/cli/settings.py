"""`regard settings`."""

from typing import Final

from regard.cli.console import print_json, print_table, result_console
from regard.training.config import SettingRow, check_preset, config_settings, preset_settings

#: titles of the groups of settings, before their first
GROUPS: Final = {
    "data": "data",
    "preset": "model",
    "src_tokenizer": "tokens",
    "batch_tokens": "steps",
    "steps": "limits",
    "seed": "use",
}


def settings(
    *,
    preset: str,
    as_json: bool,
) -> None:
    """List all settings of a run, with their defaults."""
    check_preset(preset)
    groups = _grouped(preset)
    if as_json:
        found = [row._asdict() | {"group": name} for name, own in groups.items() for row in own]
        return print_json({"preset": preset, "settings": found})
    rows: list[tuple[str, str, str]] = []
    for name, own in groups.items():
        rows += [("", "", ""), (f"[{name}]", "", ""), *own]
    return print_table(result_console(), ("setting", "default", "what it is"), rows)


def _grouped(preset: str) -> dict[str, list[SettingRow]]:
    """The settings under the title of their group; those of the preset come last."""
    found: dict[str, list[SettingRow]] = {}
    for row in config_settings(preset):
        if row.name in GROUPS:
            found[GROUPS[row.name]] = group = []
        shown = row._replace(default=preset) if row.name == "preset" else row
        group.append(shown)
    return found | {preset: preset_settings(preset)}
