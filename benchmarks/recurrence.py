"""Times the recurrences on the GPU: the definition, torch, the kernels, and cuDNN.

The self-attentive recurrence looks at its own past; a decoder looks at a memory and reads what it
saw with its next input (`ops.attentive_rnn`).

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) gets no time.
It is asked on shorter rows of the same width, since the definition in float64 keeps the whole
history of every step. cuDNN's LSTM of the same width looks at one step back: it is what a
recurrence costs that looks at nothing else.

    python benchmarks/recurrence.py --json benchmarks/results/recurrence-h200.json
    python benchmarks/kernels_page.py

The second writes docs/kernels.md; `--render FILE` prints its section of these records.
"""

import argparse
import gc
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import provenance  # noqa: E402
from gpu_time import versions  # noqa: E402
from ops.rule import breaches  # noqa: E402
from regard import ops  # noqa: E402
from regard.ops.self_attentive_rnn import GATES, Cell  # noqa: E402

HIDDEN = 512
GATE = 64  # steps of the call that is put to the rule
#: calls whose median is taken, by path; the slow ones differ little
ROWS = {"reference": 3, "torch": 3, "triton": 11}


class Case(NamedTuple):
    """What is timed; the definition only where its answer is worth the wait."""

    cell: Cell
    score: str
    batch: int
    length: int
    dtype: torch.dtype = torch.float32
    paths: tuple[str, ...] = ("torch", "triton")


CASES = [
    Case("rnn", "dot", 32, 128, paths=("reference", "torch", "triton")),
    Case("rnn", "dot", 32, 512, paths=("reference", "torch", "triton")),
    Case("rnn", "dot", 32, 512, torch.bfloat16, ("triton",)),
    Case("rnn", "projected dot", 32, 512),
    Case("gru", "projected dot", 32, 512),
    Case("lstm", "additive", 32, 128),
    Case("lstm", "additive", 32, 512),
    Case("rnn", "dot", 8, 1024),
]


def tensors(case: Case, batch: int, length: int) -> dict[str, Tensor]:
    """Inputs, and weights of the size that layers begin with."""
    gates, square = GATES[case.cell] * HIDDEN, (HIDDEN, HIDDEN)
    shapes: dict[str, tuple[int, ...]] = {
        "inputs": (batch, length, gates),
        "recurrent_weight": (gates, HIDDEN),
        "recurrent_bias": (gates,),
    }
    if case.cell == "lstm":
        shapes["query_inputs"] = (batch, length, HIDDEN)
    if case.score != "dot":
        shapes |= {"query_weight": square, "key_weight": square}
    if case.score == "additive":
        shapes["v"] = (HIDDEN,)
    torch.manual_seed(0)
    made = {name: torch.randn(shape, device="cuda") for name, shape in shapes.items()}
    for name in made.keys() - {"inputs", "query_inputs"}:
        made[name] *= HIDDEN**-0.5
    return {name: x.to(case.dtype).requires_grad_() for name, x in made.items()}


def by(path: str, case: Case) -> Callable[..., list[Tensor]]:
    """The operator by one path: tensors by name in, hidden states and contexts out."""

    def op(**given: Tensor) -> list[Tensor]:
        weights = {k: given[k] for k in ("query_weight", "key_weight", "v") if k in given}
        score: ops.ScoreFunction = (
            ops.AdditiveScore(**weights)
            if case.score == "additive"
            else ops.DotScore(HIDDEN**-0.5, **weights)
        )
        named = {k: given[k] for k in ("recurrent_bias", "query_inputs") if k in given}
        with ops.use_backend(path):
            output = ops.self_attentive_rnn(
                given["inputs"], given["recurrent_weight"], score, cell=case.cell, **named
            )
        return [output.hidden, output.context]

    return op


def measure(case: Case) -> Iterator[dict[str, Any]]:
    """One record for each way to run one case."""
    for path in case.paths:
        record = case._asdict() | {"path": path, "dtype": str(case.dtype).removeprefix("torch.")}
        del record["paths"]
        found = []
        if path != "reference":
            given = tensors(case, case.batch, GATE)
            found = breaches(by(path, case), by("reference", case), given)
        if found:
            yield record | {"breaches": found}
            continue
        given = tensors(case, case.batch, case.length)
        yield record | times(by(path, case), given, ROWS[path])
        gc.collect()
        torch.cuda.empty_cache()


class Decoder(NamedTuple):
    """A decoder's whole sequence, looking at as many keys as it has steps."""

    cell: Cell
    score: str
    batch: int
    length: int
    low: torch.dtype | None = None  # of the products with weights, under autocast

    def tensors(self) -> dict[str, Tensor]:
        """Inputs, and weights of the size that layers begin with."""
        batch, gates = self.batch, GATES[self.cell] * HIDDEN
        shapes: dict[str, tuple[int, ...]] = {
            "inputs": (batch, self.length, gates),
            "hidden": (batch, HIDDEN),
            "context": (batch, HIDDEN),
            "context_weight": (gates, HIDDEN),
            "hidden_weight": (gates, HIDDEN),
            "bias": (gates,),
            "query_weight": (HIDDEN, HIDDEN),
            "key": (batch, self.length, HIDDEN),
            "value": (batch, self.length, HIDDEN),
        }
        if self.cell == "lstm":
            shapes["memory"] = (batch, HIDDEN)
        if self.score == "additive":
            shapes["v"] = (HIDDEN,)
        torch.manual_seed(0)
        made = {name: torch.randn(shape, device="cuda") for name, shape in shapes.items()}
        for name in made.keys() & {"context_weight", "hidden_weight", "query_weight", "v"}:
            made[name] *= HIDDEN**-0.5
        return {name: x.requires_grad_() for name, x in made.items()}

    def by(self, path: str) -> Callable[..., list[Tensor]]:
        """The operator by one path: tensors by name in, hidden states and contexts out."""

        def op(**given: Tensor) -> list[Tensor]:
            query = given["query_weight"]
            score: ops.ScoreFunction = ops.DotScore(HIDDEN**-0.5, query)
            if self.score == "additive":
                score = ops.AdditiveScore(query, query, given["v"])
            mask = torch.ones(given["key"].shape[:2], dtype=torch.bool, device="cuda")
            with ops.use_backend(path), torch.autocast("cuda", self.low, self.low is not None):
                output = ops.attentive_rnn(
                    given["inputs"],
                    ops.AttentiveState(given["hidden"], given.get("memory"), given["context"]),
                    ops.AttentiveWeights(*(given[k] for k in WEIGHTS)),
                    score,
                    given["key"],
                    given["value"],
                    mask,
                    cell=self.cell,
                )
            return [output.hidden, output.context]

        return op

    def measure(self) -> Iterator[dict[str, Any]]:
        """One record for each way to run it."""
        kind = "float32" if self.low is None else f"autocast {self.low}".replace("torch.", "")
        for path in ("torch", "triton"):
            record = self._asdict() | {"path": path, "dtype": kind, "decoder": True}
            del record["low"]
            found = []
            if self.low is None:  # the rule knows no autocast
                found = breaches(self.by(path), self.by("reference"), self.tensors())
            if found:
                yield record | {"breaches": found}
            else:
                yield record | times(self.by(path), self.tensors(), ROWS[path])


WEIGHTS = ("context_weight", "hidden_weight", "bias")
DECODERS = [
    Decoder("gru", "additive", 64, 64),
    Decoder("gru", "additive", 64, 64, torch.bfloat16),
    Decoder("lstm", "projected dot", 64, 64),
    Decoder("lstm", "projected dot", 64, 64, torch.bfloat16),
]


def lstm(batch: int, length: int) -> dict[str, Any]:
    """The record of cuDNN's LSTM, whose inputs' product is part of the call."""
    layer = nn.LSTM(HIDDEN, HIDDEN, batch_first=True).cuda()
    x = torch.randn(batch, length, HIDDEN, device="cuda", requires_grad=True)
    leaves = {"x": x, **{name.replace(".", "_"): p for name, p in layer.named_parameters()}}
    record = {"cell": "lstm", "score": "none", "batch": batch, "length": length, "path": "cuDNN"}
    return record | {"dtype": "float32"} | times(lambda x, **_: [layer(x)[0]], leaves, 11)


def times(run: Callable[..., list[Tensor]], given: dict[str, Tensor], rows: int) -> dict[str, Any]:
    """Return medians in milliseconds, and peak memory beyond the inputs in MiB."""
    cotangent = [torch.randn_like(y) for y in run(**given)]

    def forward() -> None:
        with torch.no_grad():
            run(**given)

    def both() -> None:
        torch.autograd.grad(run(**given), list(given.values()), cotangent)

    found = {}
    for name, function in (("forward", forward), ("both", both)):
        function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        found[f"{name}_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found[f"{name}_ms"] = median_ms(function, rows)
    return found


def median_ms(function: Callable[[], None], rows: int) -> float:
    """The median of single calls between two events, the host's part in them included."""
    found = []
    for _ in range(rows):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def render(result: dict[str, Any]) -> str:
    """Return the records as a section of the page."""
    machine = result["machine"]
    lines = [
        "## The recurrences",
        "",
        provenance.made_by(result),
        f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']},",
        f"CUDA {machine['cuda']}, commit {(result['commit'] or 'unknown')[:12]}.",
        "",
        f"Width {HIDDEN}, medians of single calls in milliseconds, Python and launches included.",
        "`reference` is the definition, `torch` its steps with a backward pass written by hand,",
        "`triton` the kernels, which keep the rule of acceptance before they are timed.",
        "cuDNN's LSTM looks at one step back where the others look at all of them; a decoder",
        "(`ops.attentive_rnn`) looks at as many keys as it has steps.",
        "The peak is the most memory beyond the inputs in forward and backward.",
        "",
        *provenance.cut_short(result, "some rows are missing"),
        "| cell, score | type | batch, length | path | forward | both | peak MiB |",
        "|---|---|---|---|--:|--:|--:|",
    ]
    return "\n".join([*lines, *map(row, result["records"])]) + "\n"


def row(record: dict[str, Any]) -> str:
    """Return one line of the table."""
    cells = [
        f"{record['cell']}, {record['score']}" + (", decoder" if "decoder" in record else ""),
        record["dtype"],
        f"{record['batch']}, {record['length']}",
        record["path"],
    ]
    if "breaches" in record:
        cells += ["breaks the rule: " + "; ".join(record["breaches"]), "", ""]
    else:
        cells += [f"{record[name]:.2f}" for name in ("forward_ms", "both_ms")]
        cells.append(f"{record['both_peak_mib']:.0f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="measure, and write to FILE")
    parser.add_argument("--render", type=Path, metavar="FILE", help="print FILE as a section")
    parser.add_argument("--commit", help="the commit that is measured, where git does not know it")
    args = parser.parse_args()
    if args.render:
        print(render(json.loads(args.render.read_text())), end="")
        return
    # the thread of the first backward pass finds no context, and makes one
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
    source = provenance.source()
    result = {
        "command": provenance.command(
            ["python", "benchmarks/recurrence.py", "--json", str(args.json)]
        ),
        "machine": provenance.machine() | versions(),
        "commit": args.commit or source["commit"],
        "changed_since": source["changed_since"],
        "records": [],
        "complete": False,
    }
    measured = (record for case in CASES for record in measure(case))
    shapes = sorted({(case.batch, case.length) for case in CASES})
    decoded = (record for decoder in DECODERS for record in decoder.measure())
    for record in chain(measured, (lstm(*shape) for shape in shapes), decoded):
        result["records"].append(record)
        print(row(record), flush=True)
        # after each, so that a run that is cut short loses nothing
        provenance.write(args.json, result)
    provenance.write(args.json, result | {"complete": True})
    sys.exit(any("breaches" in record for record in result["records"]))


if __name__ == "__main__":
    main()
