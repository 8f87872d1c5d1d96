"""`regard models`."""

import typer

from regard.api import bundled_models
from regard.cli.console import print_json, print_table, result_console

#: what is told of each model, as its card names it
FACTS = ("score", "scored on", "licence")


def models(
    *,
    as_json: bool,
) -> None:
    """List the models that come with regard: each is a RUN by name."""
    if as_json:
        return print_json([{"name": n, **bundled_models.card(n)} for n in bundled_models.names()])
    rows: list[tuple[str, str]] = []
    for name in bundled_models.names():
        card = bundled_models.card(name)
        rows.append((name, card.get("what it is", "")))
        facts = [("size", card["size"]), *((fact, card[fact]) for fact in FACTS if fact in card)]
        rows += [(f"  {fact}", said) for fact, said in facts]
    if rows:
        return print_table(result_console(), ("model", "what it is"), rows)
    return typer.echo("regard: no model is bundled here: train one with `regard train`.", err=True)
