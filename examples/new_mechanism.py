"""Compare your own attention with those of regard.

Cosine attention looks at directions alone: queries and keys are scaled to length one, and a learned
number says how sharply it looks. It is written below in a few lines, and the lab's experiments then
measure it beside a convolution, an RNN and self-attention: what it costs, how far its gradient
reaches, and what it recalls after noise.

    python examples/new_mechanism.py                 a table for the terminal
    python examples/new_mechanism.py -o figures      and the figures as files
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from regard import ops
from regard.errors import RegardError
from regard.lab import Data, ExperimentContext, layers
from regard.lab.experiments import cost, path, recall
from regard.lab.experiments.cost import curve
from regard.lab.experiments.path import gradient_decay
from regard.lab.layers import Family
from regard.lab.plots import save


class CosineAttention(nn.Module):
    """Self-attention whose scores are cosines: `softmax(s cos(q, k)) v` with a learned s."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.sharpness = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        """Let every position attend to all."""
        query, key, value = self.project(x)[:, None].chunk(3, dim=-1)
        query = F.normalize(query, dim=-1) * self.sharpness
        key = F.normalize(key, dim=-1)
        context, _ = ops.dot_product_attention(query, key, value, scale=1.0)
        result: Tensor = self.out(context[:, 0])
        return result


MINE = Family("cosine attention", CosineAttention)


BESIDE = (layers.CONVOLUTION, layers.RNN, layers.SELF_ATTENTION)


def measured(context: ExperimentContext, folder: Path | None) -> Table:
    """Run three experiments with one more family; write their figures to a folder, if given."""
    costs = cost.measure(context, families=(*BESIDE, MINE))
    paths = path.measure(context, families=(*BESIDE, MINE))
    recalls = recall.measure(context, families=(*BESIDE, MINE))
    table = Table(*HEADER)
    for family in (*BESIDE, MINE):
        recalled = right(family.name, recalls)
        table.add_row(family.name, *cells(family.name, costs, paths), recalled)
    if folder is not None:
        for experiment, data in ((cost, costs), (path, paths)):
            for plot in experiment.draw(data):
                save(plot.figure, folder, plot.name)
    return table


HEADER = ("family", "parameters", "multiply-adds ~ n^", "seconds", "way", "near / far", "recall")


def cells(name: str, costs: Data, paths: Data) -> tuple[str, ...]:
    """Return the results of a family at its longest sequences."""
    operations = curve(costs, name, "operations")
    seconds = curve(costs, name, "seconds")
    way = paths["paths"][name][-1]
    return (
        f"{curve(costs, name, 'parameters').y[-1]:,}",
        str(operations.law()),
        f"{seconds.y[-1]:.3f} at n = {seconds.x[-1]:,}",
        f"{way['path']} at n = {way['length']}",
        f"{gradient_decay(paths, name).ratio.mean:.3g}",
    )


def right(name: str, recalls: Data) -> str:
    """Return the accuracy after the most noise of training, over the seeds."""
    farthest = len(recalls["setting"]["distances"]) - 1
    shares = [run["accuracy"][farthest] for run in recalls["runs"] if run["family"] == name]
    return f"{sum(shares) / len(shares):.0%}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="a folder for the figures")
    options = parser.parse_args(arguments)
    console, notes = Console(), Console(stderr=True)
    with notes.status("measuring"):
        table = measured(ExperimentContext(torch.device("cpu"), seeds=(0,)), options.output)
    console.print(table)
    console.print(
        "seconds: one training run on the fast path. way: layers or steps from the first input to "
        "the last output. near / far: how many times larger the gradient is over one position. "
        "recall: right answers to what was shown before the noise."
    )
    if options.output is not None:
        console.print(f"figures: {options.output}")


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(str(error))
