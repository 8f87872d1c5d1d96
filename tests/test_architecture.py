"""Imports point down only: the floors of the package, read from its sources."""

import ast
import importlib
from pathlib import Path

import pytest

from benchmarks.tools import architecture
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
        "safe_read",
        "preemption",
        "standard_streams",
        "worker_processes",
    ),
    ("ops",),
    ("attention",),
    ("layers",),
    ("models", "data"),
    ("decoding", "evaluation", "seeing"),
    ("tasks", "pretrained"),
    ("imported",),
    ("training",),
    ("api",),
    ("lab", "cli", "serve", "recipes", "export", "jobs", "sklearn"),
    ("regard",),  # the package's own __init__.py, which may import anything
)
FLOOR = {part: height for height, floor in enumerate(FLOORS) for part in floor}
SIDEWAYS = {("cli", part) for part in ("lab", "serve", "recipes", "export", "jobs")}
SIDEWAYS |= {(part, other) for part in FLOORS[0] for other in FLOORS[0]}
# Decoding knows the protocol that models keep, and no model.
DECODING_KNOWS = "regard.models.protocol"

# Calls that open a file for reading, by the last part of their name, or by their full name.
OPENERS = {
    *("open", "read_text", "read_bytes", "open_binary", "open_text", "memmap", "open_memmap"),
    *("fromfile", "loadtxt", "genfromtxt", "memory_map", "mmap", "OSFile", "ParquetFile"),
    *("read_table", "read_schema", "read_csv", "read_parquet", "safe_open"),
    *("load_file", "load_model", "from_file", "from_pretrained", "InferenceSession", "Translator"),
    *("ZipFile", "TarFile", "GzipFile", "BZ2File", "LZMAFile", "SoundFile", "Unpickler"),
    *("spec_from_file_location", "SourceFileLoader", "run_path", "getline", "getlines"),
    *("HuggingFaceStorageReader", "FileSystemReader", "copytree", "copyfile", "copy2"),
    *("imread", "loadmat", "read_pickle", "file_digest", "FileInput"),
}
OPENERS_BY_NAME = {
    *("numpy.load", "torch.load", "onnx.load", "torch.jit.load", "joblib.load", "os.fdopen"),
    *(
        "pickle.load",
        "pickle.loads",
        "marshal.load",
        "marshal.loads",
        "yaml.load",
        "soundfile.read",
    ),
    *("shutil.copy", "xml.etree.ElementTree.parse", "sqlite3.connect", "tomllib.load"),
    *("torchaudio.load", "librosa.load", "scipy.io.wavfile.read", "fileinput.input"),
}
# Everything else goes through safe_read, which refuses what is not a regular file.
EXPORTED = "copied into exported folders, where it runs without regard"
MAY_OPEN = {
    ("api.model", "copytree"): "copies a run that is loaded; links stay links, pipes are refused",
    ("atomic_files", "os.open"): "folders, to lock and flush them",
    ("data.text_codec", "*"): EXPORTED,
    ("export.decode", "*"): EXPORTED,
    ("export.folder", "copyfile"): "copies regard's own programs",
    ("export.graphs", "onnx.load"): "graphs that regard has just written",
    ("pretrained.folder", "from_pretrained"): "transformers opens folders, once they are checked",
    ("seeing.page.writer", "read_text"): "importlib.resources: regard's own scripts",
    ("standard_streams", "os.open"): "the null device in place of a closed stream",
}


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


def test_every_module_can_be_imported():
    """What only a GPU runs is imported nowhere else."""
    pytest.importorskip("triton")
    for file in MODULES:
        if file.stem != "__main__":
            importlib.import_module(".".join(file.relative_to(SOURCES).with_suffix("").parts))


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
    # estimators are named as users of scikit-learn expect
    found = package.repeated_classes().items()
    assert {name for name, places in found if "regard.sklearn" not in places} == set()


def test_docstrings_begin_with_what_a_reader_would_search_for(package):
    assert package.vague_docstrings() == []


def test_the_drawing_is_up_to_date(package):
    assert architecture.draw(package) == architecture.DRAWING.read_text(encoding="utf-8")


def full_name(node, imported):
    """Return the dotted name of an expression, such as `numpy.load` of `np.load`."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    return f"{full_name(node.value, imported)}.{node.attr}" if hasattr(node, "attr") else "?"


def openings(nodes):
    """Yield the name and the line of each call that opens a path, and of each uncalled opener."""
    imported = {}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            imported |= {a.asname or a.name: base + a.name for a in node.names}
    known = OPENERS | {name.split(".")[-1] for name in OPENERS_BY_NAME}
    own = {"open", *(word for word, name in imported.items() if name.split(".")[-1] in known)}
    found = {}
    for node in nodes:
        if getattr(node, "attr", "") in known or getattr(node, "id", "") in own:
            name = full_name(node, imported)
            is_own = name.startswith(("safe_read.", "regard.")) and "lazy_pyarrow" not in name
            if not is_own and (name.split(".")[-1] in OPENERS or name in OPENERS_BY_NAME):
                found[node] = name
    # a value of such a name, as in `self.open = True`
    plain = {name for node, name in found.items() if isinstance(node.ctx, ast.Store)}
    for node in nodes if found else ():
        if isinstance(node, ast.Call) and only_writes(node):
            found.pop(node.func, None)
        elif isinstance(node, ast.FunctionDef):
            for call in calls_of_streams(node):
                found.pop(call.func, None)
    yield from ((name, node.lineno) for node, name in found.items() if name not in plain)


def only_writes(call):
    words = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    is_open = ast.unparse(call.func) in ("open", "os.fdopen")
    return is_open and any(ast.unparse(word)[1:2] in set("wax") for word in words)


def calls_of_streams(function):
    """Yield the calls in a function whose first argument is a stream that it has opened before."""
    nodes = list(ast.walk(function))
    opened = {
        ast.unparse(node.optional_vars)
        for node in nodes
        if isinstance(node, ast.withitem) and node.optional_vars is not None
    }
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("io.BytesIO("):
            opened.update(map(ast.unparse, node.targets))
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            first = ast.unparse(node.args[0])
            if first in opened or first.startswith("io.BytesIO("):
                yield node


def test_files_are_opened_by_one_module(package):
    unused, wrong = set(MAY_OPEN), []
    for path, nodes in package.nodes.items():
        part = package.module(path).removeprefix("regard.")
        for name, line in openings(nodes) if part != "safe_read" else ():
            allowed = {(part, call) for call in ("*", name, name.split(".")[-1])} & set(MAY_OPEN)
            unused -= allowed
            wrong += [] if allowed else [f"{part}, line {line}: {name}"]
    assert not wrong, "open files with regard.safe_read: " + "; ".join(wrong)
    assert not unused, f"take these out of MAY_OPEN: {unused}"


@pytest.mark.parametrize(
    "source",
    [
        "open(path)",
        "map(open, paths)",
        "path.open('rb')",
        "path.read_text()",
        "import numpy as np\nnp.load(path)",
        "from PIL import Image\nImage.open(path)",
        "from regard.data import lazy_pyarrow as arrow\narrow.memory_map(path)",
        "import pickle\npickle.loads(content)",
        "import zipfile as z\nwith z.ZipFile(path) as file: pass",
        "openers = {'.gz': gzip.open}",
        "def f():\n    with x as file: pass\ndef g(file):\n    Image.open(file)",
    ],
)
def test_a_call_that_opens_a_file_is_found(source):
    assert len(list(openings(nodes_of(source)))) == 1


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("regard.ops.fake", "import regard.attention", "higher floor"),
        ("regard.ops.fake", "from regard.layers.rnn import RNNStack", "higher floor"),
        ("regard.attention.fake", "from regard import errors, layers", "higher floor"),
        ("regard.attention.fake", "def f():\n    from ..layers import rnn", "higher floor"),
        ("regard.ops.folder.fake", "from ... import models", "higher floor"),
        ("regard.layers.fake", "from regard import __version__", "higher floor"),
        ("regard.data.fake", "from regard.models import presets", "side by side"),
        ("regard.serve.fake", "import regard.cli", "side by side"),
        ("regard.decoding.fake", "import regard.models", "decoding knows"),
        ("regard.decoding.fake", "import regard.models.protocols", "decoding knows"),
        ("regard.ops.fake", "def f():\n    import triton.language as tl", "*triton*.py"),
    ],
)
def test_a_wrong_import_is_found(module, source, reason):
    found = list(violations(module, nodes_of(source)))
    assert len(found) == 1
    assert reason in found[0]
