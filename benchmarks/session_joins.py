"""Measure sessions whose newcomers join the running batch against batches of their own.

A Transformer with random weights decodes sources that take free places as soon as there are some.
Both ways run by turns in one process; CPU seconds count, since a shared machine delays both. One
JSON object goes to stdout.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from provenance import command, machine, source
from regard.decoding import DecodingOptions
from regard.decoding.session import DecodingSession
from regard.models import PRESETS, SequenceModel
from regard.models.cpu import CpuModel
from regard.ops.warm_up import ENOUGH, is_warm

VOCAB = 2000


class Apart(SequenceModel):
    """A model whose newcomers stay batches of their own."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model
        self.encode, self.start, self.step = model.encode, model.start, model.step

    encode: Any = None
    start: Any = None
    step: Any = None
    forward: Any = None


def sources(count: int) -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(4, VOCAB) for _ in range(draw.randrange(3, 20))] for _ in range(count)]


def run(model: SequenceModel, rows: list[list[int]], places: int, options: Any, **more: Any) -> int:
    """Decode all sources; newcomers come when a quarter of the places is free."""
    session, todo, steps = DecodingSession(model, options, **more), list(rows), 0
    while todo or len(session):
        free = places - len(session)
        if todo and free >= places // 4:
            new, todo = todo[:free], todo[free:]
            width = max(map(len, new))
            src = torch.tensor([row + [0] * (width - len(row)) for row in new])
            session.add(src, torch.tensor(list(map(len, new))))
        session.step()
        steps += 1
    return steps


def timed(work: Callable[[], int]) -> tuple[float, float]:
    start, spent = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = PRESETS["transformer"](VOCAB, VOCAB, args.size).eval()
    is_warm(ENOUGH)
    options = DecodingOptions(beam=args.beam, max_len_ratio=1.0, max_len_extra=4)
    kinds = ("cross", "decoder-self", "encoder-self")
    ways = {
        "with maps": (model, {"kinds": kinds, "alternatives": 6}),
        "compiled": (CpuModel(model), {}),
    }
    rows, found = sources(args.requests), {}
    for way, (searched, more) in ways.items():
        models = {"joined": searched, "apart": Apart(searched)}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for i in range(args.rounds + 1):
            for name, one in models.items():
                took = timed(lambda m=one, k=more: run(m, rows, args.places, options, **k))
                if i:
                    times[name].append(took)
        seconds = {
            name: {
                "seconds": median(wall for wall, _ in pairs),
                "cpu_seconds": median(cpu for _, cpu in pairs),
            }
            for name, pairs in times.items()
        }
        ratio = {
            part: seconds["apart"][part] / seconds["joined"][part]
            for part in ("seconds", "cpu_seconds")
        }
        found[way] = {**seconds, "times_faster": ratio}
    result = {"command": command(["python", *sys.argv]), "machine": machine(), **source(), **found}
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
