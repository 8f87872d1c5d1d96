"""Passes over exported ONNX graphs: forms that onnxruntime runs faster, and int8 weights."""

import logging
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

GRAPHS: Final = ("encoder.onnx", "step.onnx")
#: operators whose weights become int8. Tables of embeddings, which are looked up, stay as they are,
#: and onnxruntime has no int8 operators for GRU and RNN.
QUANTIZED: Final = ("MatMul", "LSTM")


def simplify(folder: Path) -> None:
    """Rewrite nodes of both graphs that onnxruntime is slow at; results are the same."""
    for name in GRAPHS:
        model = onnx.load(folder / name)
        vectors = _vectors(model.graph)
        for graph in _with_subgraphs(model.graph):
            _transpose_products_by_vector(graph, vectors)
        _squeeze_selections(model.graph)
        _drop_unused_weights(model.graph)
        onnx.save(model, folder / name)


def quantize(folder: Path) -> None:
    """Replace the weights of both graphs by int8 ones, with a scale for each output channel.

    Activations are quantised as they come, a matrix at a time. It needs graphs that are not
    simplified yet.
    """
    for name in GRAPHS:
        model = onnx.load(folder / name)
        _forget_shapes(model.graph)
        root = logging.getLogger()
        before = root.level
        root.setLevel(logging.ERROR)  # it recommends steps that need another package
        try:
            quantize_dynamic(
                model,
                folder / name,
                op_types_to_quantize=list(QUANTIZED),
                per_channel=True,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=_products_by_vector(model.graph),
            )
        finally:
            root.setLevel(before)


def _forget_shapes(graph: Any) -> None:
    """Remove recorded shapes, which are wrong once the quantiser has transposed a weight."""
    for inner in _with_subgraphs(graph):
        del inner.value_info[:]


def _with_subgraphs(graph: Any) -> list[Any]:
    """Return a graph and those of its loops."""
    inner = [part.g for node in graph.node for part in node.attribute if part.HasField("g")]
    return [graph, *(own for one in inner for own in _with_subgraphs(one))]


def _vectors(graph: Any) -> dict[str, np.ndarray]:
    """Return the weights of a graph that are vectors."""
    return {
        weight.name: numpy_helper.to_array(weight)
        for inner in _with_subgraphs(graph)
        for weight in inner.initializer
        if len(weight.dims) == 1
    }


def _products_by_vector(graph: Any) -> list[str]:
    """Return the names of the matrix products by a vector."""
    vectors = _vectors(graph)
    return [node.name for node in graph.node if _is_product(node, vectors)]


def _is_product(node: Any, vectors: dict[str, np.ndarray]) -> bool:
    return node.op_type == "MatMul" and node.input[1] in vectors


def _transpose_products_by_vector(graph: Any, vectors: dict[str, np.ndarray]) -> None:
    """Compute `x @ v`, as additive attention does, as `v @ x.T`, which is several times faster."""
    nodes = []
    for node in graph.node:
        if not _is_product(node, vectors):
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


def _squeeze_selections(graph: Any) -> None:
    """Select the only entry of an axis by `Squeeze`, which does not copy, instead of `Gather`."""
    zeros = {
        weight.name
        for weight in graph.initializer
        if not weight.dims and numpy_helper.to_array(weight) == 0
    }
    ones = {
        (value.name, axis)
        for value in (*graph.value_info, *graph.input)
        for axis, size in enumerate(value.type.tensor_type.shape.dim)
        if size.dim_value == 1
    }
    nodes = []
    for node in graph.node:
        axis = {part.name: part.i for part in node.attribute}.get("axis", 0)
        selects = node.op_type == "Gather" and node.input[1] in zeros
        if not selects or (node.input[0], axis) not in ones:
            nodes.append(node)
            continue
        axes = numpy_helper.from_array(np.array([axis]), f"{node.output[0]}.axes")
        graph.initializer.append(axes)
        inputs = [node.input[0], axes.name]
        nodes.append(helper.make_node("Squeeze", inputs, list(node.output), name=node.name))
    _replace(graph.node, nodes)


def _drop_unused_weights(graph: Any) -> None:
    """Remove weights that no node reads any more, of which onnxruntime would warn."""
    graphs = _with_subgraphs(graph)
    used = {name for inner in graphs for node in inner.node for name in node.input}
    used |= {output.name for inner in graphs for output in inner.output}
    for inner in graphs:
        _replace(inner.initializer, [one for one in inner.initializer if one.name in used])


def _replace(field: Any, values: list[Any]) -> None:
    """Set a repeated field of a protocol buffer."""
    del field[:]
    field.extend(values)
