"""The ONNX graph of a model that predicts numbers, and its comparison with the model."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from regard import ops
from regard.errors import ExportError
from regard.export.graphs import Port, describe_ports, dynamic_axes, silenced, write_graph
from regard.export.predict import ExportedNumbers
from regard.export.traceable import exportable
from regard.models.protocol import inference
from regard.tasks import NumbersOutput
from regard.training import Saved

#: largest difference of a number from the model's, in deviations of the training data
TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch, where these differ: one alone, the shortest, mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: of the source that is traced
LENGTHS: Final = (11, 7, 3)


class NumberCheck(NamedTuple):
    """Result of a comparison of a graph with its model.

    Attributes:
        largest_difference: of a number, in deviations of the training data.
        compared: how many sources were compared.
    """

    largest_difference: float
    compared: int


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


def verify_numbers(saved: Saved, folder: Path) -> NumberCheck:
    """Compare the graph with the model on random sources; raises ExportError if they differ."""
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
    return NumberCheck(worst, sum(map(len, BATCHES)))
