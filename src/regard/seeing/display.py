"""Show and save traces, and bind that to `Trace`, which itself is plain data.

The only place that knows every surface: importing `regard.seeing` gives `Trace` its methods `show`,
`save`, `load` and its display in notebooks. `show` displays bare weights from any library.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Final

import numpy as np

from regard.errors import ArgumentError
from regard.messages import message
from regard.seeing.draw import figure, terminal
from regard.seeing.draw.shapes import printable, write_by_ending
from regard.seeing.page import html_page
from regard.seeing.page.writer import template
from regard.seeing.trace import storage
from regard.seeing.trace.trace import (
    TOLERANCE,
    Map,
    MapKind,
    Text,
    Trace,
    Weights,
    hides_ahead,
)
from regard.seeing.trace.view import View, select

#: cells of a table in a notebook at most; more would slow it down
MOST_CELLS: Final = 2500
#: accepted shapes, for error messages
SHAPES: Final = (
    "[q, k], [heads, q, k], [layers, heads, q, k], [1, heads, q, k] for a batch of one, "
    "or a tuple of them, one for each layer"
)
#: special tokens of common tokenizers
SPECIAL_LABELS: Final = (
    *("<pad>", "<s>", "</s>", "<bos>", "<eos>", "[CLS]", "[SEP]", "[PAD]", "[BOS]", "[EOS]"),
    *("<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>"),
)
Labels = str | Sequence[str]


class Display:
    """A map of a trace: printed as text, or a figure in a notebook.

    Args:
        trace: to show.
        options: of `select`: kind, layer, head, words, special.
    """

    def __init__(self, trace: Trace, **options: Any) -> None:
        self.trace = trace
        self.options = options

    def __str__(self) -> str:
        ascii = not terminal.supports_blocks(sys.stdout.encoding)
        view = select(self.trace, **self.options)
        return terminal.matrix(view, get_terminal_size().columns, ascii=ascii)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return notebook_html(self.trace, **self.options)

    def save(self, path: str | Path, **options: Any) -> None:
        """Write html, svg, png, pdf or json, by the ending; see `seeing.display.save`."""
        save(self.trace, path, **{**self.options, **options})


def save(
    trace: Trace,
    path: str | Path,
    *,
    title: str | None = None,
    **chosen: Any,
) -> None:
    """Write html, svg, png, pdf or json.

    A page (html) and a trace (json) hold all maps and ignore the options of the view.

    Args:
        trace: to write.
        path: the file; its ending chooses the format.
        title: of a page.
        chosen: kind, layer, head, words and special, as for `select`.
    """

    def view() -> View:
        return select(trace, **chosen)

    write_by_ending(
        path,
        {
            "html": lambda: html_page.render([trace], title=title),
            "svg": lambda: figure.svg(view()),
            "png": lambda: figure.raster(view(), "png"),
            "pdf": lambda: figure.raster(view(), "pdf"),
            "json": lambda: storage.dumps(trace),
        },
    )


def notebook_html(trace: Trace, **options: Any) -> str:
    """Return the figure of a view, with its numbers in a table that can be opened.

    Neither needs scripts, so they also show in notebooks that are not trusted.
    """
    view = select(trace, **options)
    return template("notebook.html").render(
        text=printable(trace.target.text) if trace.target.text else "",
        view=view,
        svg=figure.svg(view),
        most_cells=MOST_CELLS,
    )


def _trace_html(trace: Trace) -> str | None:
    # None makes a notebook show the repr
    return notebook_html(trace) if trace.maps else None


def _show(trace: Trace, **options: Any) -> Display:
    return Display(trace, **options)


def show(
    weights: Any,
    src: Labels | None = None,
    tgt: Labels | None = None,
    *,
    layer: int | str = "auto",
    head: int | str = "auto",
    special: Any = "dim",
) -> Display:
    """Display weights: a row for each output, a column for each input.

    Args:
        weights: torch, numpy, or lists: [q, k], [heads, q, k], [layers, heads, q, k], a batch of
            one, or a tuple of layers.
        src: a label for each column; a string is split at its spaces, or into its characters.
            Default: numbers.
        tgt: a label for each row. Default: those of `src` if the map is square, else numbers.
        layer: counted from 0, or `auto` for the one with the sharpest rows.
        head: counted from 0, `mean`, or `auto` for the one with the sharpest rows.
        special: treatment of labels like `</s>`: `dim`, `hide` or `show`.

    Returns:
        An object that prints as a map, is a figure in a notebook, and has `save(path)`.

    Examples:
        >>> print(regard.show([[0.9, 0.1], [0.2, 0.8]], ["the", "cat"], ["le", "chat"]))
        each row is an output; its cells say where it looked · cross-attention · words
        scale 0-1
                the    cat
          le ██ .90◂░░ .10
        chat ░░ .20 ██ .80◂
        · below .05 (mass not drawn 0.00 per row)   ◂ strongest
    """
    return Display(to_trace(weights, src, tgt), layer=layer, head=head, special=special)


def to_trace(weights: Any, src: Labels | None = None, tgt: Labels | None = None) -> Trace:
    """Make a trace from weights and labels."""
    layers = _layers(weights)
    rows, columns = layers[0].shape[1:]
    source = _labels("src", src, columns)
    itself = tgt is None and rows == columns
    target = source if itself else _labels("tgt", tgt, rows)
    kind: MapKind = "encoder-self" if itself else "cross"
    maps = tuple(_map(kind, i, layer) for i, layer in enumerate(layers))
    if itself and all(map(hides_ahead, layers)):
        # `decoder-self` by itself would shift the labels of its columns by one
        maps = tuple(
            replace(one, kind="decoder-self", causal=not np.triu(one.weights, 1).any())
            for one in maps
        )
    return Trace(_text(source), _text(target), maps, notes=tuple(_notes(maps)))


def _layers(weights: Any) -> list[Weights]:
    """Return an array (heads, q, k) for each layer."""
    several = isinstance(weights, tuple | list)
    if several and any(len(getattr(one, "shape", ())) >= 2 for one in weights):
        layers = [_one_layer(layer, f"layer {i}") for i, layer in enumerate(weights)]
        sizes = {layer.shape[1:] for layer in layers}
        if len(sizes) > 1:
            named = " and ".join(str(list(size)) for size in sorted(sizes))
            raise ArgumentError(
                "weights", "have layers of one size [q, k]", named, "show them one by one"
            )
        return layers
    array = _array(weights, "weights")
    if array.ndim == 5 and 1 in array.shape[:2]:
        array = array.squeeze(1 if array.shape[1] == 1 else 0)
    if array.ndim == 4 and array.size:
        return list(array)
    return [_one_layer(array, "weights")]


def _one_layer(weights: Any, name: str) -> Weights:
    array = _array(weights, name)
    shape = array.shape
    if array.ndim == 4 and shape[0] == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or not array.size:
        raise ArgumentError(
            name, f"have a shape like {SHAPES}", list(shape), "index or reshape them"
        )
    return array


def _array(weights: Any, name: str) -> Weights:
    if hasattr(weights, "detach"):  # of torch, which numpy takes neither from a GPU nor as bfloat16
        weights = weights.detach().float().cpu()
    try:
        return np.asarray(weights, dtype=np.float32)
    except (TypeError, ValueError):
        raise ArgumentError(
            name,
            f"be numbers of a shape like {SHAPES}",
            f"a {type(weights).__name__} that is no array of numbers",
            "check that its rows have the same length",
        ) from None


def _labels(name: str, labels: Labels | None, count: int) -> list[str]:
    if labels is None:
        return [str(i) for i in range(count)]
    if isinstance(labels, str):
        found = next((cut for cut in (labels.split(), list(labels)) if len(cut) == count), None)
        if found is not None:
            return found
        labels = labels.split()
    if not hasattr(labels, "__len__"):
        raise ArgumentError(name, "be a list of labels, or a string", repr(labels), "make it one")
    if len(labels) != count:
        axis = "column" if name == "src" else "row"
        raise ArgumentError(
            name, f"have a label for each {axis}, {count}", f"{len(labels)} long", "check the order"
        )
    return [str(label) for label in labels]


def _text(labels: Sequence[str]) -> Text:
    plain = Text.of(labels)
    tokens = (replace(token, special=token.text in SPECIAL_LABELS) for token in plain.tokens)
    return replace(plain, tokens=tuple(tokens))


def _map(kind: MapKind, layer: int, weights: Weights) -> Map:
    """Make a map; rows may sum to less than 1, as after removing padding, but not to more."""
    total = weights.sum(axis=-1)
    if total.max() > 1 + TOLERANCE:
        raise ArgumentError(
            "weights",
            "have rows that sum to 1 or less",
            f"{total.max():.4g} in a row of layer {layer}",
            "pass what comes after the softmax, and check that the last axis is the inputs",
        )
    return Map.of(kind, layer, weights, missing=bool(total.min() < 1 - TOLERANCE))


def _notes(maps: Sequence[Map]) -> list[str]:
    least = min(float(found.weights.sum(axis=-1).min()) for found in maps)
    if least >= 1 - TOLERANCE:
        return []
    return [message("show.least-mass", least=least)]


Trace.show = _show
Trace.save = save
Trace.load = staticmethod(storage.load)
Trace._repr_html_ = _trace_html
