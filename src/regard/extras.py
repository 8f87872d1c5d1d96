"""Optional dependencies: the extras of the package, and the error when one is missing."""

from importlib.util import find_spec

from regard.errors import RegardError


class MissingExtraError(RegardError, ImportError):
    """An optional dependency is not installed."""


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of regard."""
    return f"pip install 'regard[{extra}]'"


def require(*modules: str, extra: str, for_: str) -> None:
    """Raise `MissingExtraError` with the install command unless all modules can be imported.

    Args:
        modules: top-level modules, as `import` names them.
        extra: the extra of regard that installs them.
        for_: the feature that needs them, as its user knows it: "`regard show -o map.png`".
    """
    missing = [name for name in modules if not is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{for_} needs {', '.join(modules)}, but {' and '.join(missing)} {verb} not "
            f"installed: run `{install_command(extra)}`."
        )
