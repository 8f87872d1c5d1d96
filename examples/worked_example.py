"""A published worked example of self-attention, recomputed, with a verdict on each number.

The numbers and verdicts are those of the experiment `worked-example` of `regard lab`.

    python examples/worked_example.py              a table for the terminal
    python examples/worked_example.py --markdown   the tables of docs/results/worked-example.md
"""

import argparse

from rich.console import Console
from rich.table import Table

from regard.lab.experiments.worked_example import (
    CARRIED,
    FORMULAS,
    HEADER,
    RIGHT,
    WRONG,
    printed_numbers,
)

STYLES = {RIGHT: "green", CARRIED: "yellow", WRONG: "bold red"}


def markdown() -> str:
    """Return the two tables of docs/results/worked-example.md: by number, and by stage."""
    lines = printed_numbers()
    rows = [HEADER, ("---", "---:", "---:", "---:", "---"), *(line.cells() for line in lines)]
    rows += [(), ("stage", "formula", *STYLES), ("---", "---", *("---:" for _ in STYLES))]
    for stage, formula in FORMULAS.items():
        verdicts = [line.verdict for line in lines if line.stage == stage]
        rows.append((stage, formula, *(str(verdicts.count(verdict)) for verdict in STYLES)))
    return "\n".join(f"| {' | '.join(row)} |" if row else "" for row in rows)


def table() -> Table:
    """Return the table for a terminal."""
    result = Table(*HEADER, box=None, pad_edge=False)
    lines = printed_numbers()
    for before, line in zip([None, *lines], lines, strict=False):
        if before is not None and before.stage != line.stage:
            result.add_row()
        *cells, verdict = line.cells()
        style = STYLES[line.verdict]
        result.add_row(*cells, f"[{style}]{verdict}[/{style}]")
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the tables of the guide")
    if parser.parse_args(arguments).markdown:
        print(markdown())
    else:
        Console().print(table())


if __name__ == "__main__":
    main()
