"""`regard presets`."""

from regard.cli.console import print_json, print_table, result_console
from regard.models import PRESETS


def presets(*, as_json: bool) -> None:
    """Print the name and the first line of each preset."""
    rows = [(name, (made.__doc__ or "").splitlines()[0]) for name, made in PRESETS.items()]
    if as_json:
        return print_json([{"name": name, "description": said} for name, said in rows])
    return print_table(result_console(), ("preset", "what it is"), rows)
