"""Optional dependencies: what the core does without, and the sentence for each missing extra."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from api.test_output import run_folder
from cli.tools import regard, sentence
from regard.extras import MissingExtraError, is_installed, require

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
#: what `import regard.attention` does without, though all but the last two are of the core
NOT_FOR_LAYERS = {
    *("pydantic", "pyarrow", "tokenizers", "typer", "rich", "sacrebleu", "jiwer", "safetensors"),
    *("lightning_fabric", "matplotlib", "fastapi"),
}


def packages(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def loaded(statement):
    """Top-level modules that a statement loads in a new interpreter."""
    program = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return set(done.stdout.split())


NOT_FOR_COMMANDS = packages(
    one for name in EXTRAS if name not in ("all", "dev", "docs") for one in EXTRAS[name]
) - {"regard"}
#: every module of the command line, so that no command needs the extras of another
COMMANDS = (
    "import pkgutil, importlib, regard.cli as c; "
    "[importlib.import_module(f'regard.cli.{m.name}') for m in pkgutil.iter_modules(c.__path__)]"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "others"),
    [("import regard.attention, regard.layers", NOT_FOR_LAYERS), (COMMANDS, NOT_FOR_COMMANDS)],
    ids=["layers", "commands"],
)
def test_little_is_loaded_that_is_not_needed(statement, others):
    found = loaded(statement)
    assert "torch" in found
    assert not found & others


def test_all_has_every_extra_and_the_core_has_none():
    (everything,) = EXTRAS["all"]
    named = re.fullmatch(r"regard\[([\w,]+)\]", everything)[1].split(",")
    # `docs` builds the site, which no feature of the package needs
    assert sorted(named) == sorted(EXTRAS.keys() - {"all", "dev", "docs"})
    core = packages(PROJECT["dependencies"])
    for name in named:
        assert not packages(EXTRAS[name]) & core
    assert "'.[all,dev]'" in (ROOT / "Makefile").read_text("utf-8")


def test_require_names_what_is_missing_and_how_to_install_it(monkeypatch):
    assert is_installed("json")
    require("json", "re", extra="plot", for_="a test")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not is_installed("matplotlib")
    with pytest.raises(MissingExtraError) as raised:
        require("json", "matplotlib", extra="plot", for_="a picture")
    assert str(raised.value) == (
        "a picture needs json, matplotlib, but matplotlib is not installed: "
        "run `pip install 'regard[plot]'`."
    )
    assert isinstance(raised.value, ImportError)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "run", "bahdanau")


@pytest.mark.parametrize(
    ("module", "extra", "words"),
    [
        ("fastapi", "serve", ["serve", "RUN"]),
        ("matplotlib", "plot", ["show", "RUN", "abc", "-o", "map.png"]),
        ("matplotlib", "lab", ["lab", "--list"]),
        ("onnx", "onnx", ["export", "RUN", "-o", "new"]),
        ("tensorboard", "tensorboard", ["train", "pairs.tsv", "tensorboard=true"]),
    ],
)
def test_a_missing_extra_is_one_sentence(module, extra, words, run, tmp_path, monkeypatch):
    (tmp_path / "pairs.tsv").write_text("ab\tba\n" * 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    result = regard(*(run if word == "RUN" else word for word in words))
    said = sentence(result, result.exit_code)
    assert module in said
    assert f"`pip install 'regard[{extra}]'`" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.tsv"]
