"""Options that commands share, and how a class that declares some becomes a command.

Shell completion of run folders, bundled models, presets and experiments.

A shell waits for the answer at each Tab, so nothing heavy is imported: names that are defined by
heavy modules are listed here too, and a test compares both.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from importlib import import_module
from inspect import Parameter, Signature
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from regard.atomic_files import check_output
from regard.cli.console import CommandGroup, TranslatedCommand
from regard.errors import ArgumentError
from regard.messages import check_language, set_language

BUNDLED: Final = Path(__file__).parents[1] / "bundled"
#: files by which a run folder is known
RUN_FILES: Final = ("config.json", "tokenizer.src.json")
#: folders below that of the typed path that are searched for runs, and how many at most
DEPTH: Final = 3
MOST_FOLDERS: Final = 2000

PRESETS: Final = (
    *("rnn", "seq2seq", "bahdanau", "pointer", "memory", "luong", "rnn-dot", "gnmt"),
    *("self-attentive", "monotonic", "transformer", "conv", "location"),
    *("lm-rnn", "lm-self-attentive", "lm-transformer"),
    *("classifier-rnn", "classifier-self-attentive", "classifier-transformer"),
    *("show-attend-tell", "memory-network", "story-transformer", "span"),
)
EXPERIMENTS: Final = (
    *("cost", "path", "scale", "bottleneck", "recall", "order", "heads"),
    *("word-by-word", "reading", "vision", "worked-example"),
)


def complete_run(incomplete: str) -> list[str]:
    """Return the bundled models and the run folders whose names begin with what is typed.

    If there are none, the shell completes files.
    """
    found = [*complete_bundled(incomplete), *_runs_below(os.path.dirname(incomplete))]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def complete_bundled(incomplete: str) -> list[str]:
    """Return the bundled models whose names begin with what is typed."""
    bundled = sorted(folder.name for folder in BUNDLED.glob("*") if _is_run(folder))
    return _beginning(bundled, incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets whose names begin with what is typed."""
    return _beginning(PRESETS, incomplete)


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments of the lab whose names begin with what is typed."""
    return _beginning(EXPERIMENTS, incomplete)


def _beginning(names: Sequence[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_file() for name in RUN_FILES)


def _runs_below(parent: str) -> Iterator[str]:
    """Yield the run folders in a folder and a few levels below it, each as it would be typed."""
    queue = [(parent, 0)]
    for opened, (path, depth) in enumerate(queue):
        if opened == MOST_FOLDERS:
            return
        for name in folders_in(path or "."):
            inner = os.path.join(path, name)
            if _is_run(Path(inner)):
                yield inner
            elif depth < DEPTH:
                queue.append((inner, depth + 1))


def folders_in(path: str | Path, *, links: bool = True) -> list[str]:
    """Return the names of the folders in a folder, sorted, hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=links)]
    except OSError:  # it does not exist yet, or is not ours to read
        return []
    return sorted(name for name in names if not name.startswith("."))


app = typer.Typer(
    name="regard",
    cls=CommandGroup,
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)

ClassT = TypeVar("ClassT", bound=type)


def option(
    help: str, *names: str, default: Any = None, shown: str | bool = True, **settings: Any
) -> Any:
    """Declare an option as a field of a command."""
    made = Option(*names, help=help, show_default=shown, **settings)
    return field(default=default, metadata={"parameter": made})


def flag(name: str, help: str) -> Any:
    """Declare an option without a value."""
    return option(help, name, default=False)


def argument(
    metavar: str, help: str, *, default: Any = MISSING, shown: str | bool = True, **settings: Any
) -> Any:
    """Declare an argument as a field of a command; it must be given if there is no default."""
    made = Argument(metavar=metavar, help=help, show_default=shown, **settings)
    return field(default=default, metadata={"parameter": made})


def file_output(help: str, *endings: str, **settings: Any) -> Any:
    """Declare the option `-o` of a command that writes a file, whose name has one of the endings.

    A file that cannot be written is refused at once, and not after what may take hours.
    """

    def check(path: Path | None) -> Path | None:
        if path is None:
            return None
        if endings and path.suffix.lower().removeprefix(".") not in endings:
            rule = f"end in .{', .'.join(endings)}"
            raise ArgumentError("--output", rule, repr(str(path)), "choose one of these")
        check_output(path)
        return path

    return option(help, "-o", "--output", metavar="FILE", callback=check, **settings)


def _model_argument(metavar: str, help: str) -> Any:
    """Return an argument that is a run folder or a model, for an alias."""
    return Argument(metavar=metavar, help=help, autocompletion=complete_run)


Run = Annotated[Path, _model_argument("RUN", "A run folder, or a bundled model: g2p.")]
Model = Annotated[
    Path,
    _model_argument(
        "MODEL",
        "A run folder, a bundled model (g2p), or a model of transformers: its folder, or "
        "ORGANISATION/NAME on the Hugging Face hub.",
    ),
]
Targets = Annotated[
    str | None, Argument(metavar="TGT", help="The targets, if the sides are two files.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Beam = Annotated[
    int | None, Option(help="Beam width; 1 is greedy search.", show_default="that of the run")
]
Columns = Annotated[
    str | None,
    Option(
        help="Source, target and, if any, features: names, or numbers as in 0,2.",
        show_default="those of the run",
    ),
]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1 or auto.")]
Chat = Annotated[
    bool, Option("--chat", help="Put the text in the chat template of a model of transformers.")
]
Precision = Annotated[
    str,
    Option(
        help="Precision of the weights: 32 (auto), or bf16 or, on a CPU, int8, which are faster on "
        "newer chips."
    ),
]
Preset = Annotated[
    str | None,
    Option(
        *("--preset", "-p"),
        help="The model, by name.",
        show_default="bahdanau",
        autocompletion=complete_preset,
    ),
]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only errors.")]
Ray = Annotated[
    str | None,
    Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: HOST:PORT, auto for the one on this machine, or local for one "
        "that starts and ends with the job.",
    ),
]
Workers = Annotated[
    int | None,
    Option(
        min=1,
        help="Workers: processes of this machine, or, with --ray, of the cluster.",
        show_default="one; of a cluster, one per GPU, or else per core",
    ),
]
SkipBad = Annotated[bool, Option("--skip-bad", help="Skip bad lines, and count them.")]
GoldFirst = Annotated[int, Option(help="Number of the first word in the gold links.", min=0, max=1)]
Host = Annotated[str, Option(help="Address to listen at.")]
AllowHost = Annotated[
    list[str] | None,
    Option(metavar="NAME", help="Another name of the server, as in the Host header; * for any."),
]
Token = Annotated[
    str | None,
    Option(
        envvar="REGARD_TOKEN",
        metavar="TOKEN",
        help="Token that clients must send: Authorization: Bearer TOKEN, or /?token=TOKEN once in "
        "a browser. Required if --host lets other machines in.",
    ),
]
NoToken = Annotated[bool, Option("--no-token", help="Let other machines in without a token.")]
Target = Annotated[
    str | None,
    Option(help="Text that the model is forced to write.", show_default="its own prediction"),
]


class Command(TranslatedCommand, TyperCommand):
    """A command."""


def command(module: str = "", **settings: Any) -> Callable[[ClassT], ClassT]:
    """Register a class `NameArgs` as a command: its fields are options, its docstring the help.

    The function of the same name in a module of `regard.cli` does the work. It gets an instance of
    the class, and is imported when the command runs. A field `Annotated[dict[str, Any], Some]` has
    an option for each field of the dataclass `Some` that has a help text.
    """

    def register(declared: ClassT) -> ClassT:
        cls: Any = dataclass(kw_only=True, eq=False, repr=False)(declared)
        name = "_".join(re.findall("[A-Z][a-z]+", declared.__name__)[:-1]).lower()

        def execute(**values: Any) -> None:
            own = {one.name for one in _own_parameters(cls)}
            for group, made in _groups(cls).items():
                names = {one.name for one in _own_parameters(made)} - own
                values[group] = {key: values.pop(key) for key in names}
            values.pop("lang")
            function = f"{name}_" if iskeyword(name) else name
            getattr(import_module(f"regard.cli.{module or name}"), function)(cls(**values))

        execute.__name__, execute.__doc__ = name, declared.__doc__
        execute.__signature__ = signature_of(cls)  # type: ignore[attr-defined]
        app.command(**{"cls": Command, **settings})(execute)
        return declared

    return register


def _groups(cls: type) -> dict[str, type]:
    """Return the fields that stand for the options of another class, with that class."""
    hints = cls.__annotations__.items()
    parts = [(name, part) for name, hint in hints for part in get_args(hint)[1:]]
    return {name: part for name, part in parts if isinstance(part, type) and is_dataclass(part)}


def signature_of(cls: type) -> Signature:
    """Return the parameters of a command, those of other classes first.

    Each command also takes `--lang`, which its help leaves to that of `regard` itself.
    """
    classes = (*_groups(cls).values(), cls)
    found = {one.name: one for some in classes for one in _own_parameters(some)}
    lang = Option("--lang", callback=choose_language, is_eager=True, hidden=True)
    found["lang"] = _parameter("lang", None, Annotated[str | None, lang])
    return Signature(list(found.values()))


def _own_parameters(cls: type) -> Iterator[Parameter]:
    """Yield a parameter for each field that is declared as one, or has a help text."""
    groups = _groups(cls)
    for one in fields(cls):
        about = one.metadata
        hint: Any = cls.__annotations__[one.name]
        if "help" in about:
            name = about.get("option", f"--{one.name.replace('_', '-')}")
            made = Option(name, help=about["help"], show_default=about.get("shown_default", True))
            hint = Annotated[hint, made]
        elif "parameter" in about:
            hint = Annotated[hint, about["parameter"]]
        if get_origin(hint) is Annotated and one.name not in groups:
            yield _parameter(one.name, one.default, hint)


def _parameter(name: str, default: Any, hint: Any) -> Parameter:
    given = Parameter.empty if default is MISSING else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=given, annotation=hint)


def choose_language(name: str | None) -> str | None:
    """Set the language of all output."""
    if name is not None:
        set_language(check_language(name, "--lang"))
    return name
