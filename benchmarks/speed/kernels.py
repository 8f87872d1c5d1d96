"""Time the operators on every path of this machine, forward and with backward.

    python -m benchmarks.speed.kernels                    # `make bench`
    python -m benchmarks.speed.kernels --ops additive_attention --out FILE

The gate comes first: a path that breaks the rule of acceptance (tests/ops/rule.py) on the same
shape with fewer rows gets no time. On a GPU a path is timed in two ways: calls from eager code *in
a row*, in which the slower of host and device sets the pace, and on the *device* alone, by
replaying a CUDA graph of one call. Beside the paths of an operator stand `compile`, torch.compile
of its definition, and cuDNN's LSTM, which looks at one step where the recurrences look at all.
"""

import gc
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from benchmarks import harness
from benchmarks.harness import ROOT, Record
from regard import ops
from regard.errors import BackendError
from regard.ops.additive_attention import PATHS as ADDITIVE_PATHS
from regard.ops.attentive_rnn import PATHS as DECODER_PATHS
from regard.ops.dot_product_attention import PATHS as DOT_PATHS
from regard.ops.self_attentive_rnn import GATES, Cell
from regard.ops.self_attentive_rnn import PATHS as RNN_PATHS
from regard.training.losses import cross_entropy, rdrop_loss

sys.path.append(str(ROOT / "tests"))
from ops.rule import breaches

#: seconds that a median on a GPU may take, and milliseconds of calls between two events
PATIENCE, ROW_MS = 0.2, 10.0
#: rows of the call that is put to the rule, at most
GATE_BATCH = 4
SMOOTHING, ALPHA = 0.1, 5.0

Call = Callable[..., list[Tensor]]
Shapes = dict[str, tuple[int, ...]]


class Task(NamedTuple):
    """One call of an operator.

    Attributes:
        op: its name.
        paths: names of its backends.
        shapes: of its inputs, all of which are differentiated.
        call: the operator, by the backend in use.
        others: what stands beside its paths, by name.
    """

    op: str
    paths: Sequence[str]
    shapes: Shapes
    call: Call
    others: dict[str, Call] = {}  # noqa: RUF012


def additive(batch: int, q_len: int, kv_len: int, hidden: int) -> Task:
    """Additive attention, and `torch.compile` of its definition."""
    shapes = {
        "query": (batch, q_len, hidden),
        "key": (batch, kv_len, hidden),
        "v": (hidden,),
        "value": (batch, kv_len, hidden),
    }

    def call(query: Tensor, key: Tensor, v: Tensor, value: Tensor) -> list[Tensor]:
        return [ops.additive_attention(query, key, v, value).context]

    compiled = torch.compile(by("reference", call), dynamic=False)
    return Task("additive_attention", [*ADDITIVE_PATHS], shapes, call, {"compile": compiled})


def dot_product(batch: int, heads: int, length: int, head_dim: int) -> Task:
    """Causal self-attention."""
    shape: tuple[int, ...] = (batch, heads, length, head_dim)
    shapes = dict.fromkeys(("query", "key", "value"), shape)

    def call(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        return [ops.dot_product_attention(query, key, value, causal=True).context]

    return Task("dot_product_attention", [*DOT_PATHS], shapes, call)


def score_of(kind: str, hidden: int, given: dict[str, Tensor]) -> ops.ScoreFunction:
    """Return the score of a recurrence, with its weights among the inputs."""
    weights = {k: given[k] for k in ("query_weight", "key_weight", "v") if k in given}
    if kind == "additive":
        return ops.AdditiveScore(**{"key_weight": given["query_weight"], **weights})
    return ops.DotScore(hidden**-0.5, **weights)


def recurrence(cell: Cell, score: str, batch: int, length: int, hidden: int) -> Task:
    """The self-attentive recurrence, which looks at its own past, and cuDNN's LSTM."""
    gates, square = GATES[cell] * hidden, (hidden, hidden)
    shapes: Shapes = {"inputs": (batch, length, gates), "recurrent_weight": (gates, hidden)}
    if cell == "lstm":
        shapes["query_inputs"] = (batch, length, hidden)
    if score != "dot":
        shapes |= {"query_weight": square, "key_weight": square}
    if score == "additive":
        shapes["v"] = (hidden,)

    def call(**given: Tensor) -> list[Tensor]:
        output = ops.self_attentive_rnn(
            given["inputs"],
            given["recurrent_weight"],
            score_of(score, hidden, given),
            cell=cell,
            query_inputs=given.get("query_inputs"),
        )
        return [output.hidden, output.context]

    def cudnn(inputs: Tensor, **given: Tensor) -> list[Tensor]:
        return [_lstm(hidden, inputs.device, inputs.dtype)(inputs[..., :hidden])[0]]

    on_gpu = cell == "lstm" and torch.cuda.is_available()
    others: dict[str, Call] = {"cuDNN's LSTM": cudnn} if on_gpu else {}
    return Task("self_attentive_rnn", [*RNN_PATHS], shapes, call, others)


@cache
def _lstm(hidden: int, device: torch.device, dtype: torch.dtype) -> nn.LSTM:
    return nn.LSTM(hidden, hidden, batch_first=True, device=device, dtype=dtype)


def decoder(cell: Cell, score: str, batch: int, length: int, hidden: int) -> Task:
    """The whole sequence of a decoder, looking at as many keys as it has steps."""
    gates = GATES[cell] * hidden
    shapes: Shapes = {
        "inputs": (batch, length, gates),
        "hidden": (batch, hidden),
        "context": (batch, hidden),
        "context_weight": (gates, hidden),
        "hidden_weight": (gates, hidden),
        "bias": (gates,),
        "query_weight": (hidden, hidden),
        "key": (batch, length, hidden),
        "value": (batch, length, hidden),
    }
    if cell == "lstm":
        shapes["memory"] = (batch, hidden)
    if score == "additive":
        shapes["v"] = (hidden,)

    def call(**given: Tensor) -> list[Tensor]:
        weights = (given[name] for name in ("context_weight", "hidden_weight", "bias"))
        key = given["key"]
        output = ops.attentive_rnn(
            given["inputs"],
            ops.AttentiveState(given["hidden"], given.get("memory"), given["context"]),
            ops.AttentiveWeights(*weights),
            score_of(score, hidden, given),
            key,
            given["value"],
            torch.ones(key.shape[:2], dtype=torch.bool, device=key.device),
            cell=cell,
        )
        return [output.hidden, output.context]

    return Task("attentive_rnn", [*DECODER_PATHS], shapes, call)


def loss(name: str, batch: int, vocab: int) -> Task:
    """A loss of training; its gradient is written over the logits, so they are copied first."""
    passes = 2 if name == "R-Drop" else 1

    def call(logits: Tensor) -> list[Tensor]:
        target = torch.arange(batch, device=logits.device) % vocab
        real = torch.ones(batch, dtype=torch.bool, device=logits.device)
        if passes == 2:
            return [rdrop_loss(logits * 1, target, SMOOTHING, ALPHA, real)]
        return [cross_entropy(logits * 1, target, SMOOTHING, real)]

    return Task(name, ["torch", "triton"], {"logits": (passes * batch, vocab)}, call)


Case = tuple[Callable[..., Task], dict[str, Any]]


def cases(device: str) -> list[Case]:
    """Return the calls that are timed on a device."""
    gpu = device == "cuda"
    attention = [(64, 64, 64, 512), (32, 256, 256, 512), (8, 512, 512, 1024), (16, 1000, 37, 300)]
    if not gpu:
        attention = [(32, 64, 64, 256), (4, 256, 256, 256), (16, 20, 20, 128), (64, 1, 64, 256)]
    sizes = ("batch", "q_len", "kv_len", "hidden")
    found: list[Case] = [(additive, dict(zip(sizes, s, strict=True))) for s in attention]
    heads = {"batch": 32 if gpu else 8, "heads": 8, "length": 512 if gpu else 64, "head_dim": 64}
    found.append((dot_product, heads))
    width = {"batch": 32, "length": 512, "hidden": 512} if gpu else {}
    width = width or {"batch": 16, "length": 128, "hidden": 256}
    scores = [("rnn", "dot"), ("gru", "projected dot"), ("lstm", "additive")]
    found += [(recurrence, {"cell": cell, "score": score, **width}) for cell, score in scores]
    steps = {"batch": 64, "length": 64, "hidden": 512 if gpu else 256}
    scores = [("gru", "additive"), ("lstm", "projected dot")]
    found += [(decoder, {"cell": cell, "score": score, **steps}) for cell, score in scores]
    if gpu:
        names = ("cross entropy", "R-Drop")
        found += [(loss, {"name": n, "batch": 4096, "vocab": 10_000}) for n in names]
    return found


def tensors(task: Task, device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return random inputs; matrices are scaled by their width to keep a recurrence stable."""
    torch.manual_seed(0)
    return {
        name: (torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) < 3 else 1.0))
        .to(device, dtype)
        .requires_grad_()
        for name, shape in task.shapes.items()
    }


def by(path: str, call: Call) -> Call:
    """Return a call by one backend."""

    def run(**inputs: Tensor) -> list[Tensor]:
        with ops.use_backend(path):
            return call(**inputs)

    return run


def measure(
    make: Callable[..., Task],
    sizes: dict[str, Any],
    device: str,
    dtype: torch.dtype,
    seconds: float,
) -> Iterator[Record]:
    """Yield one record for each path: its times, or the reason why there are none."""
    task, few = make(**sizes), make(**sizes | {"batch": min(GATE_BATCH, sizes["batch"])})
    paths = {path: (by(path, task.call), by(path, few.call)) for path in task.paths}
    definition = by("reference" if "reference" in task.paths else "torch", few.call)
    for path, (run, gate) in (paths | {n: (c, None) for n, c in task.others.items()}).items():
        record: Record = {"op": task.op, "path": path, "sizes": sizes}
        record |= {"device": device, "dtype": str(dtype).removeprefix("torch.")}
        try:
            wrong = breaches(gate, definition, tensors(few, device, dtype)) if gate else []
            times = {"breaches": wrong} if wrong else time_of(run, task, device, dtype, seconds)
            yield record | times
        except BackendError as error:
            yield record | {"refused": str(error)}
        except torch.OutOfMemoryError:
            yield record | {"refused": "it did not fit into memory"}
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    torch.compiler.reset()


def time_of(run: Call, task: Task, device: str, dtype: torch.dtype, seconds: float) -> Record:
    """Return medians in milliseconds, and on a GPU peak memory beyond the inputs in MiB."""
    inputs = tensors(task, device, dtype)
    leaves = list(inputs.values())
    cotangents = [torch.ones_like(y) for y in run(**inputs)]

    def forward() -> None:
        with torch.no_grad():
            run(**inputs)

    def both() -> None:
        torch.autograd.grad(run(**inputs), leaves, cotangents, allow_unused=True)

    found: Record = {}
    for name, function in (("forward", forward), ("both", both)):
        if device == "cpu":
            timer = Timer("f()", globals={"f": function}, num_threads=torch.get_num_threads())
            found[f"{name}_ms"] = timer.blocked_autorange(min_run_time=seconds).median * 1e3
            continue
        for _ in range(3):
            function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        found[f"{name}_peak_mib"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        found[f"{name}_ms"] = median_ms(function)
        try:
            found[f"{name}_device_ms"] = median_ms(graph_of(function).replay)
        except RuntimeError:  # some calls cannot be captured
            torch.cuda.synchronize()
    return found


def graph_of(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """Capture the device work of one call as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def median_ms(function: Callable[[], Any]) -> float:
    """Return the median over rows of calls, timed by events."""

    def row(calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / calls

    once = row(1)
    calls = min(20, max(1, round(ROW_MS / once)))
    rows = min(15, max(3, round(1e3 * PATIENCE / (once * calls))))
    return statistics.median(row(calls) for _ in range(rows))


def table(op: str, records: list[Record]) -> Table:
    """Return the records of one operator as a table."""
    result = Table(title=f"{op}: milliseconds forward, and with backward")
    for name in ("sizes", "on", "path"):
        result.add_column(name)
    names = ("forward_ms", "forward_device_ms", "both_ms", "both_device_ms", "both_peak_mib")
    shown = [name for name in names if any(name in record for record in records)]
    for name in shown:
        result.add_column(name.replace("_", " "), justify="right")
    for record in records:
        cells = [" ".join(map(str, record["sizes"].values()))]
        cells += [f"{record['device']} {record['dtype']}", record["path"]]
        if "forward_ms" in record:
            cells += [f"{record[name]:.3f}" if name in record else "" for name in shown]
        else:
            cells.append("wrong" if "breaches" in record else "refused")
        result.add_row(*cells)
    return result


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--ops", type=harness.names, help="with commas between them; all if none")
    parser.add_argument("--seconds", type=float, default=0.5, help="least time of a CPU's median")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = [(*case, "cpu", torch.float32) for case in cases("cpu")]
    if device == "cuda":
        types = (torch.float32, torch.bfloat16)
        chosen = [(*case, "cuda", dtype) for case in cases("cuda") for dtype in types]
    chosen = [c for c in chosen if not args.ops or c[0](**c[1]).op in args.ops]
    result = harness.provenance(**harness.versions(device), threads=torch.get_num_threads())
    harness.collect(result, (list(measure(*case, args.seconds)) for case in chosen), args.out)
    for op in dict.fromkeys(record["op"] for record in result["records"]):
        Console().print(table(op, [r for r in result["records"] if r["op"] == op]))
    broken = [r for r in result["records"] if "breaches" in r]
    for record in broken:
        print(f"{record['path']} of {record['op']} breaks the rule: {record['breaches']}")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
