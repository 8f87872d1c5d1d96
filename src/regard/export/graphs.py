"""Two graphs of a model: what reads a source, and one step of what writes the target.

They are made by torch's newer exporter (`dynamo=True`), which keeps sizes as symbols and has loops:
the older one unrolls the loops of self-attentive RNNs to the length of the example.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from regard import ops
from regard.export.errors import ExportError
from regard.export.flat import flatten, unflatten
from regard.export.tagging import with_positions
from regard.export.traceable import exportable, first_state
from regard.interrupts import interruptible
from regard.kinds.graph_inputs import GraphInputs
from regard.models import SequenceModel
from regard.models.protocol import StepOutput
from regard.ops.primitives import log_softmax
from regard.state import State
from regard.symbols import BOS

#: sizes of two examples, all different: an axis is called by the size that it changes with
SMALL: Final = {"batch": 2, "source": 5, "steps": 3}
LARGE: Final = {"batch": 7, "source": 11, "steps": 13}
#: loggers that tell a user nothing
LOGGERS: Final = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


class Port(NamedTuple):
    """An input or an output of a graph; a name in its shape stands for a size that may change."""

    name: str
    dtype: str
    shape: list[int | str]

    @property
    def part(self) -> str:
        """What the model's own state calls it: the name begins with its role."""
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class Ports:
    """What goes into the graphs and comes out of them.

    Attributes:
        memory: made by the encoder, and the same at every step.
        state: what each step makes anew.
        first: the same as the encoder makes it, before any step.
        attention: where a step looked, a tensor for each layer.
    """

    memory: list[Port]
    state: list[Port]
    first: list[Port]
    attention: list[Port]

    def graphs(self, given: GraphInputs, vocab: int) -> dict[str, Any]:
        """Both graphs as manifest.json describes them, for this number of target tokens."""
        inputs = [*self.memory, *self.state]
        after = [_after(port) for port in self.state]
        log_probs = Port("log_probs", "float32", ["batch", vocab])
        first = [*self.memory, *self.first]
        src, lengths = (
            Port("src", given.dtype, given.shape),
            Port("lengths", "int64", ["batch"]),
        )
        tokens = Port("tokens", "int64", ["batch"])
        return {
            "encoder": _described([src, lengths], first),
            "step": _described([tokens, *inputs], [log_probs, *after, *self.attention]),
        }


class TracedExample(NamedTuple):
    """A model's own run, as far as it is needed to trace it."""

    src: Tensor
    lengths: Tensor
    first: State
    before: State
    step: StepOutput

    @staticmethod
    def of(
        model: SequenceModel, sizes: dict[str, int], given: GraphInputs, attention: bool
    ) -> "TracedExample":
        """Some sources, and the last of some steps."""
        rows, length = sizes["batch"], sizes["source"]
        positions = (torch.arange(rows) % length + 1).flip(0)
        positions[0] = length
        lengths = given.lengths(positions)
        src = given.draw(lengths, torch.Generator().manual_seed(1))
        memory = model.encode(given.as_read(src), lengths)
        state = model.start(memory)
        tokens = torch.full((rows,), BOS)
        for _ in range(sizes["steps"]):
            state = model.step(tokens, state).state
        last = model.step(tokens, state, need_weights=attention)
        return TracedExample(src, lengths, first_state(model, memory), state, last)

    def tensors(self) -> dict[str, Tensor]:
        """The state before the last step."""
        return flatten(self.before, len(self.src))

    def at_first(self) -> dict[str, Tensor]:
        """The state before the first step."""
        return flatten(self.first, len(self.src))

    def looked(self) -> dict[str, Tensor]:
        """Where the last step looked."""
        return _looked(self.step)

    def kept(self) -> set[str]:
        """The names of what no step changes."""
        after = flatten(self.step.state, len(self.src))
        return {name for name, tensor in self.tensors().items() if after[name] is tensor}


class EncoderGraph(nn.Module):
    """Source in; memory and first state out."""

    def __init__(self, model: SequenceModel, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, src: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """All tensors of the first state, in order."""
        state = first_state(self.model, self.model.encode(src, lengths))
        tensors = flatten(state, src.shape[0])
        return tuple(tensors[name] for name in self.names)


class StepGraph(nn.Module):
    """Newest tokens, memory and state in; log-probabilities, state and attention out."""

    def __init__(
        self, model: SequenceModel, like: State, names: list[str], changed: list[str], look: bool
    ) -> None:
        super().__init__()
        self.model, self.like, self.look = model, like, look
        self.names, self.changed = names, changed

    def forward(self, tokens: Tensor, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """One step."""
        state = unflatten(self.like, dict(zip(self.names, tensors, strict=True)))
        out = self.model.step(tokens, state, need_weights=self.look)
        after = flatten(out.state, tokens.shape[0])
        looked = _looked(out).values() if self.look else ()
        return log_softmax(out.logits), *(after[name] for name in self.changed), *looked


def write_graphs(
    model: SequenceModel, given: GraphInputs, folder: Path, *, attention: bool
) -> Ports:
    """Writes `encoder.onnx` and `step.onnx`.

    Args:
        model: what is to be computed; it is left as it is.
        given: the sources.
        folder: where to write.
        attention: whether a step returns where it looked.
    """
    model = with_positions(model)
    with torch.no_grad(), ops.use_backend("reference"), _quietly():
        small = TracedExample.of(model, SMALL, given, attention)
        large = TracedExample.of(model, LARGE, given, attention)
        ports = compare(small, large)
        traced = exportable(model)
        given.prepare(traced)
        _write_reader(traced, large, given, ports, folder / "encoder.onnx")
        _write_writer(traced, large, ports, folder / "step.onnx")
    return ports


def _looked(out: StepOutput) -> dict[str, Tensor]:
    """Cross-attention by layer, (batch, heads, source): a step has one query."""
    layers = enumerate(out.maps.get("cross", ()))
    return {str(number): weights.squeeze(2) for number, weights in layers}


def compare(small: TracedExample, large: TracedExample) -> Ports:
    """What the graphs of two examples' model take and return."""
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
        attention=_compared("attention", small.looked(), large.looked(), list(small.looked())),
    )


def _compared(
    role: str, small: dict[str, Tensor], large: dict[str, Tensor], parts: list[str]
) -> list[Port]:
    """Tensors of two examples as ports: an axis that differs has the name of its size."""
    names = {(size, LARGE[name]): name for name, size in SMALL.items()}

    def port(part: str) -> Port:
        sizes = zip(small[part].shape, large[part].shape, strict=True)
        shape = [one if one == other else names[one, other] for one, other in sizes]
        return Port(f"{role}.{part}", str(small[part].dtype).removeprefix("torch."), shape)

    return [port(part) for part in parts]


def _write_reader(
    model: SequenceModel, example: TracedExample, given: GraphInputs, ports: Ports, path: Path
) -> None:
    made = [*ports.memory, *ports.state]
    _write(
        EncoderGraph(model, [port.part for port in made]),
        (example.src, example.lengths),
        (_dynamic(given.shape), {0: "batch"}),
        ["src", "lengths"],
        [port.name for port in made],
        path,
    )


def _write_writer(model: SequenceModel, example: TracedExample, ports: Ports, path: Path) -> None:
    inputs, tensors = [*ports.memory, *ports.state], example.tensors()
    parts, changed = [port.part for port in inputs], [port.part for port in ports.state]
    _write(
        StepGraph(model, example.before, parts, changed, bool(ports.attention)),
        (torch.full_like(example.lengths, BOS), [tensors[part] for part in parts]),
        ({0: "batch"}, [_dynamic(port.shape) for port in inputs]),
        ["tokens", *(port.name for port in inputs)],
        ["log_probs", *(_after(p).name for p in ports.state), *(p.name for p in ports.attention)],
        path,
    )


def _after(port: Port) -> Port:
    """A part of the state after a step, which needs a name of its own: it stands in one graph."""
    grown = ["steps + 1" if size == "steps" else size for size in port.shape]
    return Port(f"next.{port.part}", port.dtype, list(grown))


def _described(inputs: list[Port], outputs: list[Port]) -> dict[str, Any]:
    return {
        "inputs": [port._asdict() for port in inputs],
        "outputs": [port._asdict() for port in outputs],
    }


def _dynamic(shape: list[int | str]) -> dict[int, str]:
    return {axis: size for axis, size in enumerate(shape) if isinstance(size, str)}


def _write(
    module: nn.Module,
    args: tuple[Any, ...],
    sizes: tuple[Any, ...],
    inputs: list[str],
    outputs: list[str],
    path: Path,
) -> None:
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
def _quietly() -> Iterator[None]:
    """Without what the exporter says to those who build exporters."""
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
