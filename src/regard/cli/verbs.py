"""Which verbs there are. Each is loaded when it is asked for, so that none waits for the others."""

from importlib import import_module
from typing import Any, Final

import typer

#: the verbs with their options as commands; each is a function in the file of its name
VERBS: Final[dict[str, dict[str, Any]]] = {
    "train": {
        "no_args_is_help": True,
        "epilog": "`regard settings` lists all settings; `regard presets`, the models.",
    },
    "predict": {"no_args_is_help": True},
    "evaluate": {"no_args_is_help": True},
    "show": {"no_args_is_help": True},
    "check": {"no_args_is_help": True},
    "align": {"no_args_is_help": True},
    "export": {"no_args_is_help": True},
    "serve": {},
    "demo": {},
    "lab": {},
    "models": {},
    "settings": {},
}


def command_of(verb: str) -> Any:
    """The verb as the command line runs it."""
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    function = getattr(import_module(f"regard.cli.{verb}"), verb)
    alone.command(verb, **VERBS[verb])(function)
    return typer.main.get_command(alone)
