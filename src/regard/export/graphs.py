"""ONNX graphs of a model: its encoder, and one step of its decoder.

They are exported with `dynamo=True`, which keeps sizes symbolic and supports loops: the older
exporter unrolls the loops of self-attentive RNNs to the length of the example.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from regard import ops
from regard.errors import ExportError
from regard.export.decode import ExportedNumbers
from regard.export.traceable import exportable, first_state, plain_decoder
from regard.models import SequenceModel
from regard.models.protocol import StepOutput, inference
from regard.ops.primitives import log_softmax
from regard.standard_streams import interruptible
from regard.state import State, StateT, map_leaves
from regard.symbols import BOS
from regard.tasks import NumbersOutput
from regard.tasks.inputs.graph_inputs import GraphInputs
from regard.training import Saved


def simplify(folder: Path) -> None:
    """Compute `x @ v`, as additive attention does, as `v @ x.T`, which is several times faster."""
    for name in ("encoder.onnx", "step.onnx"):
        model = onnx.load(folder / name)
        graphs = _with_subgraphs(model.graph)
        vectors = {
            weight.name: numpy_helper.to_array(weight)
            for graph in graphs
            for weight in graph.initializer
            if len(weight.dims) == 1
        }
        for graph in reversed(graphs):  # the inner ones first, of which the others make copies
            _transpose_products_by_vector(graph, vectors)
        _drop_unused_weights(_with_subgraphs(model.graph))
        onnx.save(model, folder / name)


def _with_subgraphs(graph: Any) -> list[Any]:
    """Return a graph and those of its loops."""
    inner = [part.g for node in graph.node for part in node.attribute if part.HasField("g")]
    return [graph, *(own for one in inner for own in _with_subgraphs(one))]


def _transpose_products_by_vector(graph: Any, vectors: dict[str, np.ndarray]) -> None:
    nodes = []
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in vectors:
            nodes.append(node)
            continue
        (x, v), (y,) = node.input, node.output
        row = numpy_helper.from_array(vectors[v][None], f"{y}.row")
        flat = numpy_helper.from_array(np.array([-1, len(vectors[v])]), f"{y}.shape")
        graph.initializer.extend([row, flat])
        nodes += [
            helper.make_node("Reshape", [x, flat.name], [f"{y}.matrix"]),
            helper.make_node("Gemm", [row.name, f"{y}.matrix"], [f"{y}.flat"], transB=1),
            helper.make_node("Shape", [x], [f"{y}.size"], start=0, end=-1),
            helper.make_node("Reshape", [f"{y}.flat", f"{y}.size"], [y], name=node.name),
        ]
    _replace(graph.node, nodes)


def _drop_unused_weights(graphs: list[Any]) -> None:
    """Remove weights that no node reads any more, of which onnxruntime would warn."""
    used = {name for inner in graphs for node in inner.node for name in node.input}
    used |= {output.name for inner in graphs for output in inner.output}
    for inner in graphs:
        _replace(inner.initializer, [one for one in inner.initializer if one.name in used])


def _replace(field: Any, values: list[Any]) -> None:
    """Set a repeated field of a protocol buffer."""
    del field[:]
    field.extend(values)


#: sizes of two examples, all different, so that an axis is named after the size it varies with
SMALL: Final = {"batch": 2, "source": 5, "steps": 3}
LARGE: Final = {"batch": 7, "source": 11, "steps": 13}
#: loggers without messages for users
LOGGERS: Final = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def flatten(state: State, batch: int) -> dict[str, Tensor]:
    """Return all tensors of a state by name, as `rnn.hidden` or `layers.0.key`."""
    found: dict[str, Tensor] = {}

    def collect(name: str, leaf: Any, of_source: bool) -> Any:
        if isinstance(leaf, Tensor):
            found[name] = leaf
        elif isinstance(leaf, int | torch.SymInt):
            found[name] = torch.zeros(batch, leaf, dtype=torch.bool)
        return leaf

    map_leaves(state, collect)
    return found


def unflatten(like: StateT, tensors: dict[str, Tensor]) -> StateT:
    """Return the state that has these tensors, with everything else as in `like`."""

    def fill(name: str, leaf: Any, of_source: bool) -> Any:
        if isinstance(leaf, Tensor):
            return tensors[name]
        return tensors[name].shape[1] if isinstance(leaf, int | torch.SymInt) else leaf

    return map_leaves(like, fill)


class Port(NamedTuple):
    """An input or an output of a graph; a name in its shape stands for a size that may change."""

    name: str
    dtype: str
    shape: list[int | str]

    @property
    def part(self) -> str:
        """The name in the model's state, without the role that a port's name begins with."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Ports:
    """Inputs and outputs of both graphs.

    Attributes:
        memory: tensors of the encoder that no step changes.
        state: tensors that each step replaces.
        first: the same before the first step.
        attention: attention weights of a step, a tensor for each layer.
    """

    memory: list[Port]
    state: list[Port]
    first: list[Port]
    attention: list[Port]

    def graphs(self, source: GraphInputs, vocab: int) -> dict[str, Any]:
        """Return the description of both graphs for manifest.json."""
        inputs = [*self.memory, *self.state]
        after = [_after(port) for port in self.state]
        log_probs = Port("log_probs", "float32", ["batch", vocab])
        first = [*self.memory, *self.first]
        src, lengths = (
            Port("src", source.dtype, source.shape),
            Port("lengths", "int64", ["batch"]),
        )
        tokens = Port("tokens", "int64", ["batch"])
        return {
            "encoder": describe_ports([src, lengths], first),
            "step": describe_ports([tokens, *inputs], [log_probs, *after, *self.attention]),
        }


class TracedExample(NamedTuple):
    """Inputs and states of a model for tracing."""

    src: Tensor
    lengths: Tensor
    first: State
    before: State
    step: StepOutput

    @staticmethod
    def of(model: SequenceModel, sizes: dict[str, int], inputs: GraphInputs) -> "TracedExample":
        """Run a model on random sources for some steps."""
        rows, length = sizes["batch"], sizes["source"]
        positions = (torch.arange(rows) % length + 1).flip(0)
        positions[0] = length
        lengths = inputs.lengths(positions)
        src = inputs.draw(lengths, torch.Generator().manual_seed(1))
        memory = model.encode(inputs.as_read(src), lengths)
        state = model.start(memory)
        tokens = torch.full((rows,), BOS)
        for _ in range(sizes["steps"]):
            state = model.step(tokens, state).state
        last = model.step(tokens, state, need_weights=True)
        return TracedExample(src, lengths, first_state(model, memory), state, last)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state before the last step."""
        return flatten(self.before, len(self.src))

    def at_first(self) -> dict[str, Tensor]:
        """Return the state before the first step."""
        return flatten(self.first, len(self.src))

    def attention(self) -> dict[str, Tensor]:
        """Return the attention weights of the last step."""
        return _cross_attention(self.step)

    def kept(self) -> set[str]:
        """Return the names of the tensors that no step changes."""
        after = flatten(self.step.state, len(self.src))
        return {name for name, tensor in self.tensors().items() if after[name] is tensor}


class EncoderGraph(nn.Module):
    """Graph from a source to its memory and the first state."""

    def __init__(self, model: SequenceModel, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, src: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """Return all tensors of the first state, in order."""
        state = first_state(self.model, self.model.encode(src, lengths))
        tensors = flatten(state, src.shape[0])
        return tuple(tensors[name] for name in self.names)


class StepGraph(nn.Module):
    """Graph from tokens, memory and state to log-probabilities, state and attention."""

    def __init__(
        self, model: SequenceModel, like: State, names: list[str], changed: list[str]
    ) -> None:
        super().__init__()
        self.model, self.like, self.names, self.changed = model, like, names, changed

    def forward(self, tokens: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """Run one step."""
        state = unflatten(self.like, dict(zip(self.names, tensors, strict=True)))
        out = self.model.step(tokens, state, need_weights=True)
        after = flatten(out.state, tokens.shape[0])
        states = (after[name] for name in self.changed)
        return log_softmax(out.logits), *states, *_cross_attention(out).values()


def write_graphs(model: SequenceModel, inputs: GraphInputs, folder: Path) -> Ports:
    """Write `encoder.onnx` and `step.onnx`; the model is not changed."""
    model = plain_decoder(model)
    with torch.no_grad(), ops.use_backend("reference"), silenced():
        small = TracedExample.of(model, SMALL, inputs)
        large = TracedExample.of(model, LARGE, inputs)
        ports = compare(small, large)
        traced = exportable(model)
        inputs.prepare(traced)
        _write_encoder(traced, large, inputs, ports, folder / "encoder.onnx")
        _write_step(traced, large, ports, folder / "step.onnx")
    return ports


def _cross_attention(out: StepOutput) -> dict[str, Tensor]:
    """Return the cross-attention of a step by layer, (batch, heads, source)."""
    layers = enumerate(out.maps.get("cross", ()))
    return {str(number): weights.squeeze(2) for number, weights in layers}


def compare(small: TracedExample, large: TracedExample) -> Ports:
    """Return the ports of a model's graphs, from two examples of different sizes."""
    new = small.tensors().keys() - small.at_first().keys()
    if new:
        raise ExportError(
            f"a state must have all its parts before the first step to be exported, but this "
            f"preset's gains {', '.join(sorted(new))}: export a run of another preset."
        )
    before, after = small.tensors(), large.tensors()
    first, later = small.at_first(), large.at_first()
    kept = small.kept()
    changed = [name for name in before if name not in kept]
    return Ports(
        memory=_compared("memory", before, after, [name for name in before if name in kept]),
        state=_compared("state", before, after, changed),
        first=_compared("state", first, later, changed),
        attention=_compared(
            "attention", small.attention(), large.attention(), list(small.attention())
        ),
    )


def _compared(
    role: str, small: dict[str, Tensor], large: dict[str, Tensor], parts: list[str]
) -> list[Port]:
    """Return tensors of two examples as ports; an axis that differs gets the name of its size."""
    names = {(size, LARGE[name]): name for name, size in SMALL.items()}

    def port(part: str) -> Port:
        sizes = zip(small[part].shape, large[part].shape, strict=True)
        shape = [one if one == other else names[one, other] for one, other in sizes]
        return Port(f"{role}.{part}", str(small[part].dtype).removeprefix("torch."), shape)

    return [port(part) for part in parts]


def _write_encoder(
    model: SequenceModel, example: TracedExample, inputs: GraphInputs, ports: Ports, path: Path
) -> None:
    made = [*ports.memory, *ports.state]
    write_graph(
        EncoderGraph(model, [port.part for port in made]),
        (example.src, example.lengths),
        (dynamic_axes(inputs.shape), {0: "batch"}),
        ["src", "lengths"],
        [port.name for port in made],
        path,
    )


def _write_step(model: SequenceModel, example: TracedExample, ports: Ports, path: Path) -> None:
    inputs, tensors = [*ports.memory, *ports.state], example.tensors()
    parts, changed = [port.part for port in inputs], [port.part for port in ports.state]
    write_graph(
        StepGraph(model, example.before, parts, changed),
        (torch.full_like(example.lengths, BOS), [tensors[part] for part in parts]),
        ({0: "batch"}, [dynamic_axes(port.shape) for port in inputs]),
        ["tokens", *(port.name for port in inputs)],
        ["log_probs", *(_after(p).name for p in ports.state), *(p.name for p in ports.attention)],
        path,
    )


def _after(port: Port) -> Port:
    """Return the port of a state after a step, which needs a name of its own in the graph."""
    grown = ["steps + 1" if size == "steps" else size for size in port.shape]
    return Port(f"next.{port.part}", port.dtype, list(grown))


def describe_ports(inputs: list[Port], outputs: list[Port]) -> dict[str, Any]:
    """Return the description of a graph for manifest.json."""
    return {
        "inputs": [port._asdict() for port in inputs],
        "outputs": [port._asdict() for port in outputs],
    }


def dynamic_axes(shape: list[int | str]) -> dict[int, str]:
    """Return the axes whose sizes may change, with their names."""
    return {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}


def write_graph(
    module: nn.Module,
    args: tuple[Any, ...],
    sizes: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    path: Path,
) -> None:
    """Write a module as a graph; raises ExportError if torch cannot.

    Args:
        module: to trace.
        args: an example of its inputs.
        sizes: axes of the inputs whose sizes may change.
        inputs: names of the inputs,
        outputs: and of the outputs.
        path: of the graph.
    """
    try:
        with interruptible():  # callbacks of the exporter lose exceptions
            program = torch.onnx.export(
                module.eval(),
                args,
                dynamic_shapes=sizes,
                input_names=inputs,
                output_names=outputs,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise ExportError(
            f"{path.name} must be made by torch's exporter, but torch {torch.__version__} cannot "
            f"({cause}): try the versions that pyproject.toml names, or report it."
        ) from error
    assert program is not None
    program.save(path)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the warnings and logs of the exporter."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


#: largest difference of a number from the model's, in deviations of the training data
TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch, where these differ: one alone, the shortest, mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: of the source that is traced
LENGTHS: Final = (11, 7, 3)


def _numbers(saved: Saved) -> NumbersOutput:
    assert saved.task.numbers is not None
    return saved.task.numbers


def write_number_graph(saved: Saved, folder: Path) -> dict[str, Any]:
    """Write `model.onnx`; returns its description for manifest.json."""
    inputs = saved.task.input.graph_inputs()
    with torch.no_grad(), ops.use_backend("reference"), silenced():
        traced = exportable(saved.model)
        inputs.prepare(traced)
        graph = _numbers(saved).graph(traced)
        lengths = inputs.possible(torch.tensor(LENGTHS))
        src = inputs.draw(lengths, torch.Generator().manual_seed(1))
        shape = list(graph.module(src, lengths).shape[1:])
        write_graph(
            graph.module,
            (src, lengths),
            (dynamic_axes(inputs.shape), {0: "batch"}),
            ["src", "lengths"],
            ["numbers"],
            folder / "model.onnx",
        )
    ports = [Port("src", inputs.dtype, inputs.shape), Port("lengths", "int64", ["batch"])]
    return {
        "numbers": {"names": list(graph.names), "levels": list(graph.levels), "steps": shape[0]},
        "model": describe_ports(ports, [Port("numbers", "float64", ["batch", *shape])]),
    }


def verify_numbers(saved: Saved, folder: Path) -> float:
    """Return the largest difference of a number, in deviations of the training data.

    Raises ExportError if the graph differs from the model on random sources.
    """
    exported, inputs = ExportedNumbers(folder), saved.task.input.graph_inputs()
    graph, chance = _numbers(saved).graph(saved.model), torch.Generator().manual_seed(2)
    scale, differences = np.array(graph.scale)[:, None], []
    with inference(graph.module), ops.use_backend("reference"):
        for batch in BATCHES:
            lengths = inputs.possible(torch.tensor(batch))
            src = inputs.draw(lengths, chance)
            right = graph.module(inputs.as_read(src), lengths).numpy()
            found = exported.run([row[:n].numpy() for row, n in zip(src, lengths, strict=True)])
            differences.append(float((np.abs(found - right) / scale).max()))
    worst = float(np.max(differences))
    if not worst <= TOLERANCE:  # so that NaN fails too
        raise ExportError(
            f"the graph must give the model's numbers within {TOLERANCE:g} deviations, but the "
            f"largest difference is {worst:.2g}, so that nothing was kept: report it with the "
            f"versions of torch, onnx and onnxruntime."
        )
    return worst
