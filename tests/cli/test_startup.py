"""What commands load: help and completion next to nothing, `regard show` nothing but its own."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest
import typer
from typer._completion_classes import BashComplete

from api.test_output import run_folder
from cli.tools import done, regard
from regard.cli import commands, options
from regard.decoding_options import DecodingOptions
from regard.serve.limits import Limits

PROGRAM = """
import json, sys
from regard.cli import app
try:
    app(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted(sys.modules)]))
"""
#: what no other command than the one that needs it loads
HEAVY = (
    "fastapi",
    "lightning_fabric",
    "matplotlib",
    "numba",
    "pyarrow",
    "regard.lab",
    "torch._dynamo",
    "triton",
)
#: what help and completion do without
NEVER = {*HEAVY, "torch", "numpy", "transformers", "tokenizers", "sacrebleu"}
NEVER |= {"regard.messages.error_translation"}
NAMES = [command.callback.__name__ for command in commands.app.registered_commands]


def modules(*words, **variables):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert not done.returncode, done.stderr
    *said, last = done.stdout.splitlines()
    code, loaded = json.loads(last)
    assert code == 0, done.stderr
    return said, set(loaded)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = run_folder(tmp_path_factory.mktemp("runs") / "run", "bahdanau")
    return modules("show", str(folder), "abc")[1]


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("module", HEAVY)
def test_show_does_without(loaded, module):
    assert "regard.cli.show" in loaded
    assert module not in loaded


@pytest.mark.long
@pytest.mark.slow
def test_a_dry_run_does_without_what_takes_longest(tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{n:b}\t{n}\n" for n in range(200)))
    loaded = modules("train", str(pairs), "minutes=1", "--dry-run", "-o", str(tmp_path / "run"))[1]
    assert "regard.training.run" in loaded
    assert not loaded & {"pandas", "torch._dynamo", "lightning_fabric", "regard.api", "matplotlib"}


@pytest.mark.parametrize(
    "words",
    [("--help",), ("predict", "--help"), ("--version",), ("--lang", "zh", "predict", "--help")],
)
def test_help_loads_nothing_heavy(words):
    said, loaded = modules(*words)
    assert said
    assert not loaded & NEVER


@pytest.mark.long
@pytest.mark.slow
def test_help_of_no_command_needs_more_than_its_options():
    """In one process, since each takes a while to start."""
    program = f"""
import sys
from typer.testing import CliRunner
from regard.cli import app
for name in {[name.replace("_", "-") for name in NAMES]!r}:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0 and name in result.output, result.output
print(*({NEVER!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    assert done.stdout == "\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("regard pre", "predict"),
        ("regard show g", "g2p"),
    ],
)
def test_completion_loads_nothing_heavy(line, offers):
    count = str(len(line.split()) - 1)
    variables = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": count}
    said, loaded = modules(**variables)
    assert offers in said
    assert not loaded & NEVER


def offered(monkeypatch, *words):
    """What bash is told after these words, of which the last is being typed."""
    group = typer.main.get_command(commands.app)
    complete = BashComplete(group, {}, "regard", "_REGARD_COMPLETE")
    monkeypatch.setenv("COMP_WORDS", shlex.join(("regard", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return complete.complete().split("\n")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "BUNDLED", tmp_path / ".bundled")
    folders = (".bundled/g2p", ".bundled/reader")
    for folder in (*folders, "runs/enfr", "runs/deep/er/one", "gone", "runs/.hidden"):
        (tmp_path / folder).mkdir(parents=True)
        for name in ("config.json", "tokenizer.src.json"):
            (tmp_path / folder / name).write_text("{}")
    (tmp_path / "gone" / "tokenizer.src.json").unlink()


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        (["show", ""], ["g2p", "reader", "runs/enfr", "runs/deep/er/one"]),
        (["predict", "run"], ["runs/enfr", "runs/deep/er/one"]),
        (["evaluate", "runs/e"], ["runs/enfr"]),
        (["heads", "runs/deep/"], ["runs/deep/er/one"]),
        (["serve", "g"], ["g2p"]),
        (["models", ""], ["g2p", "reader"]),
        (["train", "--resume", "runs/e"], ["runs/enfr"]),
        (["train", "-p", "gn"], ["gnmt"]),
        (["settings", "rnn"], ["rnn", "rnn-dot"]),
    ],
    ids=" ".join,
)
def test_runs_models_and_presets_complete(words, offers, runs, monkeypatch):
    assert offered(monkeypatch, *words) == offers


@pytest.mark.parametrize(
    ("name", "cls", "renamed"),
    [
        ("predict", DecodingOptions, {}),
        ("serve", Limits, {"chars": "--max-chars", "seconds": "--timeout"}),
    ],
)
def test_options_have_the_defaults_and_help_of_the_fields_that_they_are_made_from(
    name, cls, renamed
):
    made = options.signature_of(getattr(commands, f"{name.title()}Args")).parameters
    shown = " ".join(done(regard(name, "--help")).split())
    for field in fields(cls):
        if "help" in field.metadata and field.name != "beam":
            assert made[field.name].default == field.default
            option = renamed.get(field.name, made[field.name].annotation.__metadata__[0].default)
            assert f"{option} " in shown
            assert field.metadata["help"] in shown
    assert ("max_len_ratio" in made, "prefix" in made) == (False, name == "predict")
