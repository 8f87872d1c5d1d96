"""Time sources that arrive one by one: whole batches against a session that they join.

    python benchmarks/session_latency.py --device cuda --json FILE

Sources of 5 to 40 tokens arrive by chance (a Poisson process), at shares of the rate at which large
batches are decoded. A batch takes all that wait, and those who come later wait for its end; a
session is joined between two steps, or blocks of steps on a GPU. Models have random weights, so
that a target ends at its limit, which is the length of its source. Both policies have the same
arrivals, after passes that record graphs.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent))

import provenance
from decoding_engines import VOCAB, decoding_graphs, prepared
from regard.decoding import DecodingGraphs, DecodingOptions, decode
from regard.decoding.session import DecodingSession
from regard.models import PRESETS, SequenceModel

#: most sources that are decoded at a time
MOST: Final = 64
SHORTEST, LONGEST = 5, 40
SHARES: Final = (0.2, 0.5, 0.8)
#: passes in which the shapes of a rate are recorded
WARM_UP: Final = 3
#: takes sources from those that wait, by their numbers; returns those that are done
Policy = Callable[[list[int]], list[int]]


class Setting(NamedTuple):
    """What is decoded, and by what."""

    model: SequenceModel
    graphs: DecodingGraphs | None
    options: DecodingOptions
    sources: list[Tensor]
    device: str

    def batch(self, numbers: list[int]) -> tuple[Tensor, Tensor]:
        """Return some sources, padded, and their lengths."""
        chosen = [self.sources[number] for number in numbers]
        src = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
        lengths = torch.tensor([len(one) for one in chosen])
        return src.to(self.device), lengths.to(self.device)


def taken(waiting: list[int], most: int) -> list[int]:
    """Take some of those that wait."""
    some = waiting[:most]
    del waiting[:most]
    return some


def in_batches(setting: Setting) -> Policy:
    """Decode all that wait as one batch."""

    def policy(waiting: list[int]) -> list[int]:
        some = taken(waiting, MOST)
        if some:
            decode(setting.model, *setting.batch(some), setting.options, graphs=setting.graphs)
        return some

    return policy


def in_session(setting: Setting) -> Policy:
    """Let all that wait join, and take a step."""
    session = DecodingSession(setting.model, setting.options, graphs=setting.graphs)
    live: dict[int, int] = {}

    def policy(waiting: list[int]) -> list[int]:
        some = taken(waiting, MOST - len(live))
        if some:
            live.update(zip(session.add(*setting.batch(some)), some, strict=True))
        return [live.pop(number) for number in session.step().done] if live else []

    return policy


POLICIES: Final = {"batches": in_batches, "session": in_session}


def timed(policy: Policy, arrivals: list[float]) -> tuple[list[float], float]:
    """Return the seconds from the arrival to the answer of each source, and those of all."""
    begin, came, took, waiting = time.perf_counter(), 0, dict[int, float](), list[int]()
    while len(took) < len(arrivals):
        now = time.perf_counter() - begin
        while came < len(arrivals) and arrivals[came] <= now:
            waiting.append(came)
            came += 1
        for number in policy(waiting):
            took[number] = time.perf_counter() - begin - arrivals[number]
    return list(took.values()), time.perf_counter() - begin


def measured(setting: Setting, rounds: int) -> dict[str, Any]:
    """Return the figures of both policies at each rate of arrivals."""
    count = len(setting.sources)
    at_once = [0.0] * count
    policies = {name: make(setting) for name, make in POLICIES.items()}
    for _ in range(WARM_UP):
        for policy in policies.values():
            timed(policy, at_once)
    most = {
        name: count / statistics.median(timed(policy, at_once)[1] for _ in range(rounds))
        for name, policy in policies.items()
    }
    found: dict[str, Any] = {"at_once_per_s": most, "shares": {}}
    for share in SHARES:
        rate, draw = share * most["batches"], random.Random(1)
        arrivals, now = [], 0.0
        for _ in range(count):
            now += draw.expovariate(rate)
            arrivals.append(now)
        each: dict[str, list[list[float]]] = {name: [] for name in policies}
        for i in range(WARM_UP + rounds):
            for name, policy in policies.items():
                seconds, _ = timed(policy, arrivals)
                if i >= WARM_UP:
                    each[name].append(np.percentile(seconds, [50, 95]).tolist())
        found["shares"][str(share)] = {"per_s": rate} | {
            name: dict(
                zip(("p50_ms", "p95_ms"), (1e3 * np.median(rows, axis=0)).tolist(), strict=True)
            )
            for name, rows in each.items()
        }
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", nargs="+", default=["bahdanau", "transformer"])
    parser.add_argument("--size", default="small")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--sources", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {
        "command": provenance.command(["python", *sys.argv]),
        "machine": provenance.machine(),
        **provenance.source(),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "models": {},
    }
    for name in args.models:
        torch.manual_seed(0)
        model = PRESETS[name](VOCAB, VOCAB, args.size).to(args.device).eval()
        graphs = None if args.device == "cpu" else decoding_graphs(model)
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(SHORTEST, LONGEST + 1, (args.sources,), generator=draw).tolist()
        sources = [torch.randint(10, VOCAB, (length,), generator=draw) for length in lengths]
        options = DecodingOptions(beam=args.beam, max_len_ratio=1.0, max_len_extra=0)
        setting = Setting(prepared(model, args.device), graphs, options, sources, args.device)
        result["models"][name] = measured(setting, args.rounds)
        print(name, result["models"][name], flush=True)
        provenance.write(args.json, result)


if __name__ == "__main__":
    main()
