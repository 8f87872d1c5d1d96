"""Train a preset to reverse short sequences, and draw its attention.

A model that has learned it looks at the last source symbol first and at the first one last, so the
map is a falling diagonal turned round: one sees at once whether attention means anything.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

from regard.errors import RegardError
from regard.models import PRESETS, SequenceModel
from regard.symbols import BOS, EOS, PAD, SYMBOLS

FIRST = len(SYMBOLS)
INK = "░▒▓█"


class Batch(NamedTuple):
    """Sources with their lengths, decoder inputs and targets."""

    src: Tensor
    lengths: Tensor
    tgt_in: Tensor
    tgt_out: Tensor


class Result(NamedTuple):
    """Accuracy of a trained model, with its steps and seconds."""

    exact: float
    steps: int
    seconds: float


#: a task turns sources and lengths into targets of the same lengths
Task = Callable[[Tensor, Tensor], Tensor]


def reverse(src: Tensor, lengths: Tensor) -> Tensor:
    positions = torch.arange(src.shape[1])
    return src.gather(
        1, torch.where(positions < lengths[:, None], lengths[:, None] - 1 - positions, positions)
    )


def next_symbol(src: Tensor, lengths: Tensor) -> Tensor:
    """Draw an aligned task: each symbol becomes the next one of the alphabet, cyclically."""
    return torch.where(src == PAD, PAD, FIRST + (src - FIRST + 1) % 10)


def sample(rows: int, max_len: int, task: Task, *, min_len: int = 1, symbols: int = 10) -> Batch:
    lengths = torch.randint(min_len, max_len + 1, (rows,))
    src = torch.randint(FIRST, FIRST + symbols, (rows, int(lengths.max())))
    src[torch.arange(src.shape[1]) >= lengths[:, None]] = PAD
    tgt = task(src, lengths)
    tgt_in = F.pad(tgt, (1, 0), value=BOS)
    tgt_out = F.pad(tgt, (0, 1), value=PAD)
    tgt_out[torch.arange(rows), lengths] = EOS
    return Batch(src, lengths, tgt_in, tgt_out)


def greedy(model: SequenceModel, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Decode greedily; return the tokens and the weights of each step."""
    state = model.start(model.encode(batch.src, batch.lengths))
    tokens, answer, maps = torch.full_like(batch.lengths, BOS), [], []
    for _ in range(batch.tgt_out.shape[1]):
        logits, state, seen = model.step(tokens, state, need_weights=True)
        tokens = logits.argmax(dim=-1)
        answer.append(tokens)
        maps += [seen["cross"][-1].mean(dim=1)] if "cross" in seen else []
    return torch.stack(answer, dim=1), maps


@torch.no_grad()
def exact_match(model: SequenceModel, batch: Batch) -> float:
    """Return the share of rows that are entirely correct, `eos` included."""
    model.eval()
    answer, _ = greedy(model, batch)
    right = (answer == batch.tgt_out) | (batch.tgt_out == PAD)
    model.train()
    return right.all(dim=1).float().mean().item()


def train(
    model: SequenceModel,
    task: Task,
    *,
    max_len: int = 8,
    min_len: int = 1,
    steps: int = 600,
    rate: float = 3e-3,
    enough: float = 0.995,
    report: Callable[[int, float, float], None] = lambda step, loss, exact: None,
) -> Result:
    """Train on new samples; stop early when accuracy on 500 samples is high enough."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98))
    warm_up = 100
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min((i + 1) / warm_up, max(0.05, 1 - i / steps))
    )
    began, exact, step = time.monotonic(), 0.0, 0
    for step in range(1, steps + 1):
        batch = sample(128, max_len, task, min_len=min_len)
        logits = model(batch.src, batch.lengths, batch.tgt_in).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch.tgt_out.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            exact = exact_match(model, sample(500, max_len, task, min_len=min_len))
            report(step, loss.item(), exact)
            if exact >= enough:
                break
    return Result(exact, step, time.monotonic() - began)


def cells(weights: list[float]) -> list[str]:
    """Draw weights as shades, and mark the largest of each row."""
    best = max(weights)
    return [
        "·" if w < 0.05 else f"{INK[min(3, int(w * 4))] * 2}{w:.2f}{'◂' if w == best else ' '}"
        for w in weights
    ]


def draw(model: SequenceModel, console: Console) -> None:
    batch = sample(1, 8, reverse, min_len=8)
    model.eval()
    with torch.no_grad():
        answer, maps = greedy(model, batch)
    name = [*SYMBOLS, *"abcdefghij"]
    source = [name[i] for i in batch.src[0].tolist()]
    if not maps:
        console.print("this preset has no attention between source and target to draw")
        return
    table = Table(box=None, padding=(0, 1))
    table.add_column("", justify="right", min_width=4, no_wrap=True)
    for symbol in source:
        table.add_column(symbol, justify="right", no_wrap=True)
    for token, row in zip(answer[0].tolist(), maps, strict=True):
        table.add_row(name[token], *cells(row[0, -1].tolist()))
        if token == EOS:
            break
    console.print("each row is an output; its cells say where it looked (· is below .05)")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="bahdanau", help=f"one of {', '.join(PRESETS)}")
    parser.add_argument("--steps", type=int, default=600, help="training steps at most (600)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.preset not in PRESETS:
        parser.error(f"--preset must be one of {', '.join(PRESETS)}, but it is {options.preset!r}")
    if options.steps < 1:
        parser.error(f"--steps must be at least 1, but it is {options.steps}")
    torch.manual_seed(options.seed)
    console, notes = Console(), Console(stderr=True)
    model = PRESETS[options.preset](FIRST + 10, FIRST + 10, "tiny", dropout=0.0)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes) as progress:
        bar = progress.add_task(f"training {options.preset}", total=options.steps)

        def report(step: int, loss: float, exact: float) -> None:
            progress.update(
                bar, completed=step, description=f"step {step}  loss {loss:.3f}  exact {exact:.1%}"
            )

        result = train(model, reverse, steps=options.steps, report=report)
    console.print(
        f"{options.preset} reverses {result.exact:.1%} of sequences of up to 8 symbols after "
        f"{result.steps} steps, {result.seconds:.0f} s"
    )
    draw(model, console)
    console.print("another mechanism: examples/learn_to_reverse.py --preset transformer")


if __name__ == "__main__":
    try:
        main()
    except RegardError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was saved, and running it again starts afresh")
