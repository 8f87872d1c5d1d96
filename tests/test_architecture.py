"""Imports point down only: the floors of the package, read from its sources."""

import ast
from pathlib import Path

import pytest

from source_trees import Package
from source_trees import package as parsed_package

SOURCES = Path(__file__).parents[1] / "src"
MODULES = sorted((SOURCES / "regard").rglob("*.py"))

# From the ground up. Parts of one floor stand side by side and do not import each other.
FLOORS = (
    (
        "errors",
        "extras",
        "atomic_files",
        "masks",
        "messages",
        "device",
        "symbols",
        "state",
        "version",
        "checkout",
        "decoding_options",
        "interrupts",
        "safe_read",
        "preemption",
        "standard_streams",
    ),
    ("ops",),
    ("attention",),
    ("layers",),
    ("models", "data"),
    ("decoding", "evaluation", "seeing"),
    ("kinds", "pretrained"),
    ("training",),
    ("api",),
    ("lab", "cli", "serve", "recipes", "export", "jobs"),
    ("regard",),  # the package's own __init__.py, which may import anything
)
FLOOR = {part: height for height, floor in enumerate(FLOORS) for part in floor}
SIDEWAYS = {("cli", part) for part in ("lab", "serve", "recipes", "export", "jobs")}
SIDEWAYS |= {(part, other) for part in FLOORS[0] for other in FLOORS[0]}
# Decoding knows the protocol that models keep, and no model.
DECODING_KNOWS = "regard.models.protocol"


def nodes_of(source):
    return list(ast.walk(ast.parse(source)))


def imports(module, nodes, is_package=False):
    """Full names of all that the nodes of a source import, at any depth of it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - 1 if is_package else node.level
                parents = module.split(".")[: len(module.split(".")) - up]
                base = ".".join([*parents, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def part_of(name):
    """`ops` of `regard.ops.check`; what stands in the root itself, like a version, is the root."""
    rest = name.split(".")[1:]
    return rest[0] if rest and rest[0] in FLOOR else "regard"


def violations(module, nodes, is_package=False):
    """One line for each import that breaks a rule."""
    part, filename = part_of(module), module.split(".")[-1]
    for target in imports(module, nodes, is_package):
        root, other = target.split(".")[0], part_of(target)
        if root == "triton" and "triton" not in filename:
            yield f"{module} imports {target}: only files named *triton*.py may"
        if root != "regard" or part in ("regard", other):
            continue
        if part == "decoding" and other == "models":
            if not f"{target}.".startswith(f"{DECODING_KNOWS}."):
                yield f"{module} imports {target}: decoding knows {DECODING_KNOWS} alone"
        elif FLOOR[other] > FLOOR[part] and not (other == "regard" and part in FLOORS[-2]):
            yield f"{module} imports {target}: that is a higher floor"
        elif FLOOR[other] == FLOOR[part] and (part, other) not in SIDEWAYS:
            yield f"{module} imports {target}: they stand side by side"


def test_every_part_has_a_floor():
    parts = {path.relative_to(SOURCES / "regard").parts[0] for path in MODULES}
    missing = {part.removesuffix(".py") for part in parts} - FLOOR.keys() - {"__init__", "__main__"}
    assert not missing, f"give {missing} a place in FLOORS"


@pytest.fixture(scope="module")
def package():
    return parsed_package()


def test_imports_point_down(package):
    assert list(package.nodes) == MODULES
    found = [
        line
        for path, nodes in package.nodes.items()
        for line in violations(package.module(path), nodes, path.name == "__init__.py")
    ]
    assert not found, "\n".join(found)


def test_no_import_circles_not_even_through_imports_inside_functions(package):
    assert package.circles() == []


def test_a_public_class_name_has_one_meaning(package):
    assert package.repeated_classes() == {}


def test_docstrings_begin_with_what_a_reader_would_search_for(package):
    assert package.vague_docstrings() == []


def test_a_circle_a_repeated_class_and_a_vague_docstring_are_found(tmp_path):
    folder = tmp_path / "src" / "fake"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("from fake import b\nclass Same: ...\n")
    (folder / "b.py").write_text("from fake.c import x\nclass Same: ...\nclass _Own: ...\n")
    (folder / "c.py").write_text('def f():\n    """Whether so."""\n    from .a import y\n')
    (folder / "d.py").write_text('"""Return whether so."""\nfrom fake import a\nclass _Own: ...\n')
    found = Package(tmp_path)
    assert found.circles() == [["fake.a", "fake.b", "fake.c"]]
    assert found.repeated_classes() == {"Same": ["fake.a", "fake.b"]}
    assert found.vague_docstrings() == ["fake.c.f"]


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("regard.ops.fake", "import regard.attention", "higher floor"),
        ("regard.ops.fake", "import torch, regard.models.presets as p", "higher floor"),
        ("regard.ops.fake", "from regard.layers.rnn import RNNStack", "higher floor"),
        ("regard.masks", "from regard import ops", "higher floor"),
        ("regard.attention.fake", "from regard import errors, layers", "higher floor"),
        ("regard.attention.fake", "def f():\n    from ..layers import rnn", "higher floor"),
        ("regard.ops.folder.fake", "from ... import models", "higher floor"),
        ("regard.layers.fake", "from regard import __version__", "higher floor"),
        ("regard.layers.fake", "import regard", "higher floor"),
        ("regard.data.fake", "from regard.models import presets", "side by side"),
        ("regard.models.fake", "if True:\n    import regard.data", "side by side"),
        ("regard.decoding.fake", "import regard.training", "higher floor"),
        ("regard.evaluation.fake", "import regard.decoding", "side by side"),
        ("regard.seeing.fake", "import regard.decoding", "side by side"),
        ("regard.serve.fake", "import regard.cli", "side by side"),
        (
            "regard.decoding.fake",
            "from regard.models import presets",
            "decoding knows",
        ),
        ("regard.decoding.fake", "import regard.models", "decoding knows"),
        ("regard.decoding.fake", "import regard.models.protocols", "decoding knows"),
        ("regard.ops.fake", "def f():\n    import triton.language as tl", "*triton*.py"),
    ],
)
def test_a_wrong_import_is_found(module, source, reason):
    found = list(violations(module, nodes_of(source)))
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("regard.masks", "from regard.errors import ArgumentError"),
        ("regard.attention.fake", "from .interface import Attention\nfrom .. import ops, masks"),
        ("regard.ops.triton_path", "import triton"),
        ("regard.decoding.fake", "from regard.models.protocol import SequenceModel"),
        ("regard.decoding.fake", "from regard.models import protocol"),
        ("regard.training.fake", "from regard import decoding, models, data"),
        ("regard.cli.fake", "from regard import __version__, lab, serve"),
        ("regard", "from regard import cli, models"),
    ],
)
def test_a_right_import_is_not_found(module, source):
    assert not list(violations(module, nodes_of(source)))


def test_relative_imports_are_read_from_where_they_stand():
    check, masks = nodes_of("from .check import x"), nodes_of("from .. import masks")
    assert list(imports("regard.ops.backend", check)) == ["regard.ops.check.x"]
    assert list(imports("regard.ops", check, True)) == ["regard.ops.check.x"]
    assert list(imports("regard.ops", masks, True)) == ["regard.masks"]
