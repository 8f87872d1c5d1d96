"""Declarations of all commands of `regard`, with their options.

Help and completion need this file and nothing more, so that they answer at once. A command is
implemented by the function of its name in another module, which is imported when it runs.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import StrEnum
from functools import wraps
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer

from regard.cli.error_handling import CommandGroup
from regard.decoding_options import DecodingOptions
from regard.serve.limits import Limits
from regard.version import __version__

app = typer.Typer(
    name="regard",
    cls=CommandGroup,
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

#: names of the lab's experiments, to complete
EXPERIMENTS: Final = (
    *("cost", "path", "scale", "bottleneck", "recall", "order", "heads"),
    *("word-by-word", "reading", "vision", "worked-example"),
)


Declaration = Callable[..., None]


class Symmetry(StrEnum):
    """Method of joining two directions of alignment."""

    intersection = "intersection"
    union = "union"
    grow_diag_final = "grow-diag-final"
    grow_diag_final_and = "grow-diag-final-and"


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or a bundled model: g2p.")
]
TargetsArgument = Annotated[
    str | None, typer.Argument(metavar="TGT", help="The targets, if the sides are two files.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BeamOption = Annotated[
    int | None,
    typer.Option(help="Beam width; 1 is greedy search.", show_default="that of the run"),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        help="Source, target and, if any, features: names, or numbers as in 0,2.",
        show_default="those of the run",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Count bad lines and go on.")]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Text that the model is forced to write.", show_default="its own prediction"),
]


def command(module: str = "", **settings: Any) -> Callable[[Declaration], Declaration]:
    """Register a declaration as a command.

    `**options: Annotated[Any, SomeDataclass]` declares an option for each field of the dataclass.

    Args:
        module: module of `regard.cli` with the implementation; the name of the command if empty.
        settings: passed on to typer.
    """

    def register(declared: Declaration) -> Declaration:
        name = declared.__name__

        @wraps(declared)
        def execute(**options: Any) -> None:
            getattr(import_module(f"regard.cli.{module or name}"), name)(**options)

        execute.__signature__ = expanded_signature(declared)  # type: ignore[attr-defined]
        app.command(**settings)(execute)
        return declared

    return register


def expanded_signature(declared: Declaration) -> inspect.Signature:
    """Return the signature of a declaration, with the fields of a dataclass for `**options`."""
    parameters: dict[str, Parameter] = {}
    for name, parameter in inspect.signature(declared).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            made = _options_of(get_args(parameter.annotation)[1], panel=name.capitalize())
            parameters = {one.name: one for one in made} | parameters
        else:
            parameters[name] = parameter.replace(kind=Parameter.KEYWORD_ONLY)
    return inspect.Signature(list(parameters.values()))


def _options_of(cls: type, panel: str) -> Iterator[Parameter]:
    """Yield an option for each field of a dataclass that has a help text."""
    types = get_type_hints(cls)
    for field in fields(cls):
        about = field.metadata
        if "help" in about:
            option = typer.Option(
                about.get("option", f"--{field.name.replace('_', '-')}"),
                help=about["help"],
                show_default=about.get("shown_default", True),
                rich_help_panel=panel,
            )
            yield Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[types[field.name], option],
            )


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit
    return wanted


def _experiments(start: str) -> list[str]:
    return [name for name in EXPERIMENTS if name.startswith(start)]


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Sequence models that show what they look at."""


@command(
    no_args_is_help=True,
    epilog="`regard settings` lists all settings; `regard presets`, the models.",
)
def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="Pairs: TSV, JSONL, Parquet, or '-' for stdin; text for a language model; "
            "or a TOML file: settings, or a recipe.",
        ),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings by name. Before them, the file of targets if the sides are two files.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", "-p", help="The model, by name.", show_default="bahdanau"),
    ] = None,
    size: Annotated[
        str | None, typer.Option(help="tiny, small or base.", show_default="small")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The run folder.",
            show_default="runs/PRESET, runs/recipes/NAME-SEED",
        ),
    ] = None,
    dev: Annotated[
        str | None, typer.Option(help="Dev pairs.", show_default="some of the data, by hash")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Train for this long at most.", show_default="no limit")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder.", show_default=False),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Resume though a part of the run is missing or damaged, and lose what "
            "`--resume` alone says would be lost.",
        ),
    ] = False,
    accept_changed_data: Annotated[
        bool,
        typer.Option(
            "--accept-changed-data",
            help="Resume though the data have changed since the run began. The dev set stays as "
            "it was.",
        ),
    ] = False,
    skip_bad: SkipBadOption = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="REGARD_DATA",
            help="A recipe's folder of public data sets.",
            show_default=False,
        ),
    ] = None,
    no_test: Annotated[
        bool, typer.Option("--no-test", help="Score a recipe's dev set alone.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing but errors.")] = False,
) -> None:
    """Train a model on pairs of sequences, or a language model on text.

    `regard train pairs.tsv` is enough. Settings by name go last, as in
    `regard train pairs.tsv hidden=256 epochs=20`. `regard train recipes/NAME`
    prepares the data of a published result, trains, and scores dev and test.
    """


@command(no_args_is_help=True)
def predict(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [FILE]",
            help="Run folders or bundled models (g2p), which answer together, and a file with a "
            "source on each line; stdin if '-' or not given. Features follow a source after a tab. "
            "A language model goes on with each line. Vectors are JSONL, Parquet or .npy files.",
        ),
    ],
    beam: BeamOption = None,
    prefix: Annotated[
        str | None, typer.Option(help="What every answer begins with.", show_default=False)
    ] = None,
    replace_unk: Annotated[
        bool,
        typer.Option("--replace-unk", help="Unknown words become the source word most looked at."),
    ] = False,
    as_jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl",
            "--json",
            help="A JSON object on a line per source, with scores, tokens and attention.",
        ),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write a trace of each answer to this file, a JSON object per line: tokens, "
            "probabilities, and where every position looked."
        ),
    ] = None,
    max_chars: Annotated[
        int | None,
        typer.Option(help="Most characters of a line.", show_default="that of the run"),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Go on after a line that cannot be read: an empty line stands in its place.",
        ),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            help="Sources at a time; 1 answers each line as it comes.",
            show_default="32; 1 for what is typed",
        ),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Of the weights: 32, or bf16, which is faster on newer chips.")
    ] = "32",
    device: DeviceOption = "auto",
    **decoding: Annotated[Any, DecodingOptions],
) -> None:
    """Predict the target of each line of a file: one prediction per line on stdout."""


@command(no_args_is_help=True)
def evaluate(
    run: RunArgument,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Pairs to judge it by. Further columns are further accepted targets, or the "
            "features of a run that has features. For a language model, a text on each line.",
        ),
    ],
    tgt: TargetsArgument = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: bleu, chrf, ter, wer, cer, per, exact.", show_default="by target"
        ),
    ] = None,
    beam: BeamOption = None,
    lengths: Annotated[
        bool, typer.Option("--by-length", help="Also by length of the source.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(help="A second run, compared by a paired bootstrap.", show_default=False),
    ] = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write the predictions here, one per line.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Score a model's answers: BLEU and chrF, error rates and exact match, or perplexity.

    Answers and targets are compared in the form in which the model writes: composed Unicode and,
    where targets are symbols or words, single spaces. The signature names it.
    """


@command(no_args_is_help=True)
def show(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run folder, a bundled model (g2p), or traces that were saved: .json, or "
            ".jsonl with one on each line.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="A source, or what a language model reads; '-' reads one from each line of stdin. "
            "For a run that reads vectors, a .npy file.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write a file instead: .html, .svg, .png, .pdf, .csv or .json.",
            show_default=False,
        ),
    ] = None,
    view: Annotated[str, typer.Option(help="matrix, list or heads.")] = "matrix",
    as_list: Annotated[bool, typer.Option("--list", help="The same as --view list.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Sentences.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole trace as JSON.")] = False,
    kind: Annotated[
        str,
        typer.Option(
            help="cross, encoder-self, decoder-self, encoder-history, encoder-future, "
            "decoder-history, memory; history is the decoder's, or else the encoder's; auto is "
            "cross if any."
        ),
    ] = "auto",
    layer: Annotated[
        str, typer.Option(help="A number from 0, all, or auto for that with the sharpest rows.")
    ] = "auto",
    head: Annotated[
        str,
        typer.Option(help="A number from 0, mean, all, or auto for that with the sharpest rows."),
    ] = "auto",
    words: Annotated[
        bool | None,
        typer.Option("--words/--tokens", help="Merge sub-words.", show_default="auto"),
    ] = None,
    special: Annotated[
        str, typer.Option(help="Tokens like </s>: dim, hide (their mass is printed) or show.")
    ] = "dim",
    scale: Annotated[
        str, typer.Option(help="Full ink for 1 (fixed), or for the strongest of each row (row).")
    ] = "fixed",
    target: TargetOption = None,
    gold: Annotated[
        str | None,
        typer.Option(
            help="Source-target links to mark, as in '0-0 1-2 2p1'; they count what `regard align` "
            "counts: words, but letters of a side that is read by letters.",
            show_default=False,
        ),
    ] = None,
    beam: BeamOption = None,
    line: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Which trace of a .jsonl, counted from 1.", show_default="1"
        ),
    ] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII alone.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Draw where each output looked."""


@command(no_args_is_help=True)
def check(
    run: RunArgument,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="A source; for a run that reads vectors, a file of one."
        ),
    ],
    target: TargetOption = None,
    beam: BeamOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the trace here, too: .html or .json, which hold what was found, or .svg, "
            ".png, .pdf or .csv, which hold the map.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the trace as JSON.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Compare what each output looked at with what mattered to it."""


@command(no_args_is_help=True)
def align(
    run: RunArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Pairs to align; stdin if '-'.")],
    tgt: TargetsArgument = None,
    gold: Annotated[
        str | None,
        typer.Option(
            help="Links that people have made, in Pharaoh format, a line for each pair; after the "
            "last tab, if there are tabs.",
            show_default=False,
        ),
    ] = None,
    gold_first: Annotated[
        int, typer.Option(help="The number of the first word in the gold.", min=0, max=1)
    ] = 0,
    reverse_run: Annotated[
        Path | None,
        typer.Option(help="A run from target to source, to join with.", show_default=False),
    ] = None,
    symmetrize: Annotated[
        Symmetry, typer.Option(help="How to join the two directions.")
    ] = Symmetry.grow_diag_final,
    layer: Annotated[
        str, typer.Option(help="A number from 0, mean, or auto: the best by the gold, or mean.")
    ] = "auto",
    head: Annotated[
        str, typer.Option(help="A number from 0, mean, or auto: the best by the gold, or mean.")
    ] = "auto",
    shift: Annotated[
        str,
        typer.Option(
            help="0, 1 or -1: align an output by the step after or before it; auto: the best by "
            "the gold, or 0."
        ),
    ] = "auto",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Link all words that have at least this weight.", show_default="the strongest one"
        ),
    ] = None,
    words: Annotated[
        bool | None,
        typer.Option(
            "--words/--tokens",
            help="What to link.",
            show_default="words, and letters of a side that is read by letters",
        ),
    ] = None,
    columns: ColumnsOption = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Count bad lines; each has an empty line for its links."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the alignments here.", show_default="stdout"),
    ] = None,
    as_json: JsonOption = False,
    batch: Annotated[int, typer.Option(help="Pairs at a time.", min=1)] = 32,
    device: DeviceOption = "auto",
) -> None:
    """Align the words of pairs by attention: Pharaoh format on stdout, error rates on stderr."""


@command("deployment", no_args_is_help=True)
def export(
    run: RunArgument,
    to: Annotated[str, typer.Option(help="The format: onnx.")] = "onnx",
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A new folder.", show_default="NAME-onnx"),
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention", help="Let each step also say where it looked.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a model as graphs that run without torch and regard.

    The folder has an encoder, a decoder's step, the tokenisers, and a program
    of numpy and onnxruntime that answers texts. It is left there only if it
    says what the model says. Needs the extra `onnx` of regard.
    """


@command("deployment")
def serve(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Run folders or bundled models; each is a model by its folder's name.",
            show_default="the bundled model",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at; 0 takes any.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name that the server goes by; * for any."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A site whose pages may ask, too; * for any."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="REGARD_TOKEN",
            metavar="TOKEN",
            help="What clients must send: Authorization: Bearer TOKEN, or /?token=TOKEN once in a "
            "browser. Needed if --host lets other machines in.",
            show_default=False,
        ),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let other machines in without a token.")
    ] = False,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Print what is asked, which may be private.")
    ] = False,
    device: DeviceOption = "auto",
    **limits: Annotated[Any, Limits],
) -> None:
    """Serve a live page and an API: type, and see where each output looks."""


@command()
def demo(
    minutes: Annotated[float, typer.Option(help="Train for this long.")] = 2.0,
    preset: Annotated[str, typer.Option("--preset", "-p", help="The model, by name.")] = "bahdanau",
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path(
        "runs/demo"
    ),
    test_words: Annotated[
        int, typer.Option(help="Test words to judge it by; there are about 12,000.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 1,
) -> None:
    """Train on the bundled pronouncing dictionary, evaluate, and draw where the model looked."""


@command()
def lab(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Which experiments; see --list.",
            show_default="all",
            autocompletion=_experiments,
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick/--full", help="For two cores in minutes, or for one GPU.")
    ] = True,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder of results and of the report.")
    ] = Path("lab-report"),
    device: DeviceOption = "auto",
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Runs where chance plays a part.", show_default="3; 5 with --full"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            envvar="REGARD_DATA",
            help="A folder of public data sets, for experiments on real text and pictures.",
            show_default="what comes with regard",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=1,
            help="Trainings side by side, a process each.",
            show_default="one per thread; 4 on a GPU",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what is kept from before.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Print the experiments and what they ask.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run the experiments on what is said about attention, and write a report."""


@command("info")
def models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all that their cards say as JSON.")
    ] = False,
) -> None:
    """List the models that come with regard: each is a RUN by name."""


@command("info")
def settings(
    preset: Annotated[
        str, typer.Argument(metavar="PRESET", help="The model whose own settings come last.")
    ] = "bahdanau",
    as_json: JsonOption = False,
) -> None:
    """List all settings of a run, with their defaults.

    They are given to `regard train` as key=value, stand in a TOML file, or go to `regard.fit`.
    """


@command("info")
def presets(as_json: JsonOption = False) -> None:
    """List the presets: each is a model by name."""


@command("info")
def doctor(as_json: JsonOption = False) -> None:
    """Say what regard finds on this machine: versions, devices, backends."""
