"""`regard settings`."""

from typing import Annotated, Final

import typer

from regard.cli.tables import print_table, result_console
from regard.training.config import check_preset
from regard.training.settings import config_settings, preset_settings

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
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="The model whose own settings come last.")
    ] = "bahdanau",
) -> None:
    """List all settings of a run, with their defaults.

    They are given to `regard train` as key=value, stand in a TOML file, or go to `regard.fit`.
    """
    check_preset(preset)
    rows: list[tuple[str, str, str]] = []
    for row in config_settings(preset):
        if row.name in GROUPS:
            rows += [("", "", ""), (f"[{GROUPS[row.name]}]", "", "")]
        rows.append(row)
    rows += [("", "", ""), (f"[{preset}]", "", ""), *preset_settings(preset)]
    print_table(result_console(), ("setting", "default", "what it is"), rows)
