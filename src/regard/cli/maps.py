"""A map in the terminal: where each output looked."""

from typing import Final

from rich.console import Console
from rich.table import Table

from regard.api import Output

INK: Final = "░▒▓█"
HIDDEN: Final = 0.05


def draw_map(output: Output, console: Console) -> None:
    """Draws the cross-attention of an answer, its last layer, heads averaged; a row per output."""
    if "cross" not in output.maps:
        console.print("this preset has no attention between source and target to draw")
        return
    rows = output.maps["cross"][-1].float().mean(dim=0).tolist()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("", justify="right", no_wrap=True)
    for token in output.src_tokens:
        table.add_column(token, justify="right", no_wrap=True)
    for token, row in zip([*output.tokens, "</s>"], rows, strict=False):
        table.add_row(token, *_cells(row[: len(output.src_tokens)]))
    console.print(
        "each row is an output; its cells say where it looked (· is below .05, ◂ is strongest)",
        highlight=False,
    )
    console.print(table, highlight=False, markup=False)  # a feature is drawn as [PST]


def _cells(weights: list[float]) -> list[str]:
    """More ink is more attention."""
    best = max(weights)
    return [_cell(w, w == best) for w in weights]


def _cell(w: float, strongest: bool) -> str:
    if w < HIDDEN:
        return "·"
    ink = INK[min(3, int(w * 4))] * 2
    return f"{ink}.{min(99, round(w * 100)):02d}{'◂' if strongest else ''}"
