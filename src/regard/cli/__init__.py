"""The command line: `regard`."""

from regard.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line, and end the process."""
    app()
