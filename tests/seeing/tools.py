"""Traces made by hand."""

import itertools

import numpy as np
import pytest
import torch

from regard.seeing import Map, Text, Token, Trace

#: what the page, the figure and the terminal must all survive
HOSTILE = (
    *("</script>", "<b>", "&amp;", '"', "👩‍👩‍👧", "مرحبا", "今日", "x" * 300, "", "\n"),
    *("\t", " ", "\x1b[31m", "\x9b2J", "e\u0301", "\u0301", "\u202eevil", "\ud800", "]]>", "$x$"),
)

SOURCE = Text(
    "the unhappy cat",
    (
        Token("▁the", (0, 3), 0),
        Token("▁un", (4, 6), 1),
        Token("happy", (6, 11), 1),
        Token("▁cat", (12, 15), 2),
        Token("</s>", special=True),
    ),
)
TARGET = Text(
    "le chat",
    (
        Token("le", (0, 2), 0, prob=0.9),
        Token("ch", (3, 5), 1, prob=0.8),
        Token("at", (5, 7), 1, prob=0.5),
        Token("</s>", special=True, prob=0.99),
    ),
)

#: one head; rows sum to 1
WEIGHTS = [
    [0.70, 0.10, 0.10, 0.06, 0.04],
    [0.02, 0.20, 0.30, 0.40, 0.08],
    [0.04, 0.10, 0.20, 0.60, 0.06],
    [0.00, 0.02, 0.02, 0.06, 0.90],
]


def translation(**more):
    """One layer, one head, sub-words on both sides."""
    return Trace(SOURCE, TARGET, (Map.of("cross", 0, [WEIGHTS]),), **more)


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def random_weights(*shape, sharp=3.0, seed=0):
    return softmax(sharp * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


def normal(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def close(found, expected):
    torch.testing.assert_close(found.double(), expected.double(), atol=1e-5, rtol=0)


def hooks_of(module):
    """All hooks of a module and its parts."""
    return [
        hook
        for part in module.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks)
        for hook in hooks
    ]


def of_labels(source, target, *, heads=1, layers=1, sharp=3.0):
    """Random maps between labels."""
    shape = (heads, len(target), len(source))
    maps = tuple(
        Map.of("cross", i, random_weights(*shape, sharp=sharp, seed=i)) for i in range(layers)
    )
    return Trace(Text.of(list(source)), Text.of(list(target)), maps)


def pairwise(*axes):
    """Return all combinations of axes of which the last two have two values; half are long.

    The other half still has every pair of values of two axes.
    """
    cases = []
    for numbered in itertools.product(*map(enumerate, axes)):
        indices, values = zip(*numbered, strict=True)
        marks = pytest.mark.long if sum(indices) % 2 else ()
        cases.append(pytest.param(*values, marks=marks))
    return cases


def assert_tidy(root):
    """Raise unless texts, boxes and the lines of a grid stand beside one another in the picture."""
    boxes = []
    for element in root.iter():
        x, y, wide, high = (float(element.get(n, 0)) for n in ("x", "y", "width", "height"))
        if element.tag.endswith(("rect", "image")) and element.get("y") != "0.0":  # not the ground
            boxes.append((x, y, x + wide - 0.1, y + high))
        elif element.tag.endswith("text"):
            size = float(element.get("font-size"))
            wide = 0.55 * size * len("".join(element.itertext()))
            x -= wide * (element.get("text-anchor") == "end")
            boxes.append((x, y - 0.7 * size, x + wide, y))
        elif element.tag.endswith("polyline"):
            (left, top), *_, (right, bottom) = (
                map(float, point.split(",")) for point in element.get("points").split()
            )
            boxes += [(left, top, right, top)] * (top == bottom)
    assert len(boxes) > 10
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= float(root.get("width"))
        assert 0 <= top <= bottom <= float(root.get("height"))
        for other in boxes[:i]:
            assert left > other[2] or other[0] > right or top > other[3] or other[1] > bottom
