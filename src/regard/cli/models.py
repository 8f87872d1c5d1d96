"""`regard models`."""

import typer

from regard.api import box
from regard.cli.tables import print_table, result_console

#: what is told of each model, as its card names it
FACTS = ("size", "score", "licence", "what it is")


def models() -> None:
    """List the models that come with regard: each is a RUN by name."""
    cards = {name: box.card(name) for name in box.names()}
    if not cards:
        typer.echo("regard: no model is bundled here: train one with `regard train`.", err=True)
        return
    rows = [(name, *(card.get(fact, "") for fact in FACTS)) for name, card in cards.items()]
    print_table(result_console(), ("model", *FACTS), rows)
