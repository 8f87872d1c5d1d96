"""Declarations of all commands of `regard`, with their options.

Help and completion need this file and nothing more, so that they answer at once. A command is
implemented by the function of its name in another module, which is imported when it runs.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import StrEnum
from functools import wraps
from importlib import import_module
from inspect import Parameter
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from regard.cli.completion import (
    complete_bundled,
    complete_experiment,
    complete_preset,
    complete_run,
    complete_setting,
    complete_size,
)
from regard.cli.error_handling import CommandGroup
from regard.cli.help_language import TranslatedCommand
from regard.decoding_options import DecodingOptions
from regard.messages import LANGUAGES, check_language, set_language
from regard.serve.limits import Limits
from regard.version import __version__

app = typer.Typer(
    name="regard",
    cls=CommandGroup,
    help="Sequence models that show what they look at.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the time
    context_settings={"help_option_names": ["-h", "--help"]},
)


Declaration = Callable[..., None]


class Symmetry(StrEnum):
    """Method of joining two directions of alignment."""

    intersection = "intersection"
    union = "union"
    grow_diag_final = "grow-diag-final"
    grow_diag_final_and = "grow-diag-final-and"


RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run folder, or a bundled model: g2p.",
        autocompletion=complete_run,
    ),
]
ModelArgument = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        autocompletion=complete_run,
        help="A run folder, a bundled model (g2p), or a model of transformers: its folder, or "
        "ORGANISATION/NAME on the Hugging Face hub.",
    ),
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
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
ChatOption = Annotated[
    bool,
    typer.Option("--chat", help="Put the text in the chat template of a model of transformers."),
]
AllowPickleOption = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Read weights of a model of transformers from a pickled file, which can run code that "
        "it brings along: only if you trust where it comes from.",
    ),
]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="Precision of the weights: 32 (auto), or bf16 or, on a CPU, int8, which are faster on "
        "newer chips."
    ),
]
RayOption = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Work on a Ray cluster: HOST:PORT, auto for the one on this machine; without an "
        "address, one that starts and ends with the job.",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workers: processes of this machine, or, with --ray, of the cluster.",
        show_default="one; of a cluster, one per GPU, or else per core",
    ),
]
IdOption = Annotated[
    str | None,
    typer.Option("--id", help="Column with an id of each row.", show_default="shard and row"),
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Skip bad lines, and count them.")]
HostOption = Annotated[str, typer.Option(help="Address to listen at.")]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Another name of the server, as in the Host header; * for any."
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="REGARD_TOKEN",
        metavar="TOKEN",
        help="Token that clients must send: Authorization: Bearer TOKEN, or /?token=TOKEN once in "
        "a browser. Required if --host lets other machines in.",
        show_default=False,
    ),
]
NoTokenOption = Annotated[
    bool, typer.Option("--no-token", help="Let other machines in without a token.")
]
TargetOption = Annotated[
    str | None,
    typer.Option(help="Text that the model is forced to write.", show_default="its own prediction"),
]


#: what `--ray` may be followed by
RAY_ADDRESS: Final = re.compile(r"auto|local|\w+://.*|[^/]+:\d+|\[[^/]+\]:\d+")


class Command(TranslatedCommand, TyperCommand):
    """A command."""


class RayCommand(Command):
    """A command whose option `--ray` may stand alone, or before an address."""

    def make_parser(self, ctx: Any) -> Any:
        """Return a parser that takes `local` as the address of a `--ray` that has none."""
        parser: Any = super().make_parser(ctx)
        parse = parser.parse_args
        parser.parse_args = lambda args: parse(list(_with_addresses(args)))
        return parser


def _with_addresses(args: list[str]) -> Iterator[str]:
    for word, after in zip_longest(args, args[1:], fillvalue=""):
        yield word
        if word == "--ray" and not RAY_ADDRESS.fullmatch(after):
            yield "local"


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
            options.pop("lang")
            getattr(import_module(f"regard.cli.{module or name}"), name)(**options)

        execute.__signature__ = expanded_signature(declared)  # type: ignore[attr-defined]
        app.command(**{"cls": Command, **settings})(execute)
        return declared

    return register


def expanded_signature(declared: Declaration) -> inspect.Signature:
    """Return the signature of a declaration, with the fields of a dataclass for `**options`.

    Each command also takes `--lang`, which its help leaves to that of `regard` itself.
    """
    parameters: dict[str, Parameter] = {}
    for name, parameter in inspect.signature(declared).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            made = _options_of(get_args(parameter.annotation)[1])
            parameters = {one.name: one for one in made} | parameters
        else:
            parameters[name] = parameter.replace(kind=Parameter.KEYWORD_ONLY)
    lang = Option("--lang", callback=_language, is_eager=True, hidden=True)
    parameters["lang"] = Parameter(
        "lang", Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, lang]
    )
    return inspect.Signature(list(parameters.values()))


def _options_of(cls: type) -> Iterator[Parameter]:
    """Yield an option for each field of a dataclass that has a help text."""
    types = get_type_hints(cls)
    for field in fields(cls):
        about = field.metadata
        if "help" in about:
            option = typer.Option(
                about.get("option", f"--{field.name.replace('_', '-')}"),
                help=about["help"],
                show_default=about.get("shown_default", True),
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


def _language(name: str | None) -> str | None:
    """Set the language of all output."""
    if name is not None:
        set_language(check_language(name, "--lang"))
    return name


@app.callback()
def _root(
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    lang: str | None = Option(
        None,
        callback=_language,
        is_eager=True,
        metavar="|".join(LANGUAGES),
        help="Language of output, help and pages, before or after a command.",
        show_default="REGARD_LANG, or the locale",
    ),
) -> None:
    """Sequence models that show what they look at."""


@command(
    no_args_is_help=True,
    epilog="`regard settings` lists all settings; `regard presets`, the models.",
)
def train(
    data: str | None = Argument(
        None,
        metavar="DATA",
        help="Pairs: TSV, JSONL, Parquet, or '-' for stdin; text for a language model; many files "
        "as a folder, a glob in quotes, URLs or hf:NAME; or a TOML file: settings, or a recipe.",
    ),
    words: list[str] | None = Argument(
        None,
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
        help="Settings by name. Before them, the file of targets if the sides are two files.",
    ),
    preset: str | None = Option(
        None,
        "--preset",
        "-p",
        help="The model, by name.",
        show_default="bahdanau",
        autocompletion=complete_preset,
    ),
    size: str | None = Option(
        None, help="tiny, small or base.", show_default="small", autocompletion=complete_size
    ),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="The run folder.",
        show_default="runs/PRESET, runs/recipes/NAME-SEED",
    ),
    dev: str | None = Option(None, help="Dev pairs.", show_default="some of the data, by hash"),
    minutes: float | None = Option(None, help="Most minutes to train.", show_default="no limit"),
    resume: Path | None = Option(
        None,
        help="Resume the run in this folder.",
        show_default=False,
        autocompletion=complete_run,
    ),
    accept_loss: bool = Option(
        False,
        "--accept-loss",
        help="Resume although a part of the run is missing or damaged, and lose what "
        "`--resume` alone reports.",
    ),
    accept_changed_data: bool = Option(
        False,
        "--accept-changed-data",
        help="Resume although the data have changed since the run began. The dev set stays "
        "the same.",
    ),
    skip_bad: SkipBadOption = False,
    data_dir: Path | None = Option(
        None,
        envvar="REGARD_DATA",
        help="Folder of the public datasets of recipes.",
        show_default=False,
    ),
    no_test: bool = Option(False, "--no-test", help="Score only the dev set of a recipe."),
    dry_run: bool = Option(
        False,
        "--dry-run",
        help="Say what would happen (columns, network, steps, time, memory), and train nothing.",
    ),
    quiet: bool = Option(False, "--quiet", "-q", help="Print only errors."),
) -> None:
    """Train a model on pairs, or a language model on text.

    `regard train pairs.tsv` is enough. Settings by name go last, as in
    `regard train pairs.tsv hidden=256 epochs=20`. `regard train recipes/NAME`
    prepares the data of a published result, trains, and scores dev and test.
    """


@command("train", no_args_is_help=True, cls=RayCommand)
def encode(
    data: str | None = Argument(
        None,
        metavar="DATA",
        help="As for `regard train`: mostly a folder, a glob in quotes, URLs or hf:NAME.",
    ),
    words: list[str] | None = Argument(
        None, metavar="KEY=VALUE", help="Settings by name, as for `regard train`."
    ),
    preset: str | None = Option(
        None, "--preset", "-p", help="The model, by name.", show_default="bahdanau"
    ),
    output: Path | None = Option(
        None, "--output", "-o", help="The run folder.", show_default="runs/PRESET"
    ),
    resume: Path | None = Option(
        None, help="Go on with the shards that are missing in this folder.", show_default=False
    ),
    ray: RayOption = None,
    workers: WorkersOption = None,
    quiet: bool = Option(False, "--quiet", "-q", help="Print only errors."),
) -> None:
    """Encode the data of a run, without training.

    `regard train --resume RUN` trains on them later, on this machine or another.
    """


@command(no_args_is_help=True, cls=RayCommand)
def predict(
    runs: list[Path] = Argument(
        metavar="RUN [FILE]",
        autocompletion=complete_run,
        help="Run folders or bundled models (g2p), several as an ensemble, or a model of "
        "transformers: its folder, or ORGANISATION/NAME on the Hugging Face hub. Then a file with "
        "a source on each line; stdin if '-' or not given. Features follow a source after a tab. A "
        "language model continues each line. Vectors are JSONL, Parquet or .npy files. With -o "
        "FOLDER, files, folders or quoted patterns of text, TSV, JSONL or Parquet: 'in/*.parquet'.",
    ),
    beam: BeamOption = None,
    prefix: str | None = Option(
        None, help="Text that every prediction begins with.", show_default=False
    ),
    replace_unk: bool = Option(
        False, "--replace-unk", help="Replace <unk> by the source word with the most attention."
    ),
    as_jsonl: bool = Option(
        False,
        "--jsonl",
        "--json",
        help="Print a JSON object per source, with scores, tokens and attention.",
    ),
    trace: Path | None = Option(
        None,
        help="Write a trace of each prediction to this file, a JSON object per line: tokens, "
        "probabilities, and where every position looked.",
    ),
    max_chars: int | None = Option(
        None, help="Most characters of a line.", show_default="that of the run"
    ),
    skip_bad: bool = Option(
        False,
        "--skip-bad",
        help="Skip lines that cannot be read, with an empty line in their place.",
    ),
    batch: int | None = Option(
        None,
        help="Batch size in sources; 1 predicts each line as it comes.",
        show_default="32; 1 for what is typed",
    ),
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        help="Write one table with source, answer, confidence and alternatives: .csv, .tsv, "
        ".jsonl, .parquet or .xlsx. Or answer shards of sources into this folder, a shard for "
        "each; the same command goes on where an interrupted one was.",
        show_default=False,
    ),
    ray: RayOption = None,
    workers: WorkersOption = None,
    columns: str | None = Option(
        None,
        help="Source and, if any, features of CSV, JSON, Parquet or shards: names, or numbers as "
        "in 0,2.",
        show_default="src, source, input or text; 0 of TSV",
    ),
    id: IdOption = None,
    format: str = Option("parquet", help="Format of the shards that -o writes: parquet or jsonl."),
    shard_rows: int = Option(
        20480, "--rows-per-shard", min=1, help="Rows of a shard at most; larger ones are cut."
    ),
    chat: ChatOption = False,
    allow_pickle: AllowPickleOption = False,
    precision: PrecisionOption = "32",
    device: DeviceOption = "auto",
    **decoding: Annotated[Any, DecodingOptions],
) -> None:
    """Predict a target for each line of a file.

    Predictions go to stdout, one per line, or with -o into a table. With -o FOLDER, shards of
    sources become shards of predictions, on this machine or, with --ray, on many.
    """


@command(no_args_is_help=True)
def chat(
    run: RunArgument,
    system: str | None = Option(
        None,
        metavar="TEXT",
        help="What the conversation begins with, as the turn of the system.",
        show_default=False,
    ),
    beam: BeamOption = None,
    max_len: int | None = Option(
        None, metavar="N", help="Most tokens of an answer.", show_default="by the source"
    ),
    device: DeviceOption = "auto",
) -> None:
    """Talk with a run that was trained on conversations; Ctrl-D ends.

    Each line of stdin is answered with a line, and all turns before it are read again.
    """


@command(no_args_is_help=True, cls=RayCommand)
def evaluate(
    run: RunArgument,
    file: str = Argument(
        metavar="FILE",
        help="Pairs to evaluate on. Further columns are alternative targets, or the "
        "features of a run that has features. For a language model, a text on each line. A quoted "
        "pattern such as 'test/*.parquet' names shards; with --ray, a folder does, too.",
    ),
    tgt: TargetsArgument = None,
    metrics: str | None = Option(
        None,
        help="Comma-separated: bleu (bleu-13a, bleu-zh, bleu-char by that tokeniser of sacrebleu), "
        "chrf, ter, wer, cer, per, exact; of answers, em and f1; of "
        "summaries, rouge-1, rouge-2 and rouge-l; of labels, accuracy and macro-f1; of tags, "
        "tag-accuracy and span-f1.",
        show_default="by target",
    ),
    beam: BeamOption = None,
    lengths: bool = Option(False, "--by-length", help="Also print scores by length of the source."),
    against: Path | None = Option(
        None,
        help="A second run, in 32 bits, compared by a paired bootstrap; the same one, to see what "
        "another precision loses.",
        show_default=False,
        autocompletion=complete_run,
    ),
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    save: Path | None = Option(
        None,
        help="Write the predictions here, one per line; of shards, a folder for theirs.",
        show_default=False,
    ),
    ray: RayOption = None,
    workers: WorkersOption = None,
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        help="Draw which label was taken for which: .html, .svg, .png, .pdf or .csv.",
        show_default=False,
    ),
    as_json: JsonOption = False,
    precision: PrecisionOption = "32",
    device: DeviceOption = "auto",
) -> None:
    """Score predictions by BLEU, error rates, accuracy or perplexity.

    Where targets are labels or tags, results by class follow.

    Predictions and targets are compared in the form in which the model writes: composed
    Unicode and, where targets are symbols or words, single spaces. The signature names it.
    """


@command(no_args_is_help=True)
def show(
    run: Path = Argument(
        metavar="RUN",
        autocompletion=complete_run,
        help="A run folder, a bundled model (g2p), a model of transformers (its folder, or "
        "ORGANISATION/NAME on the Hugging Face hub), or saved traces: .json, or .jsonl with one "
        "per line.",
    ),
    text: str | None = Argument(
        None,
        metavar="TEXT",
        help="A source, or what a language model reads, and, if it is one of transformers, "
        "continues; '-' reads one from each line of stdin. For a run that reads vectors, a .npy "
        "file; for a model of pictures or sound, a picture or a recording.",
        show_default=False,
    ),
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        metavar="FILE",
        help="Write a file: .html, .svg, .png, .pdf, .csv or .json.",
        show_default=False,
    ),
    view: str = Option("matrix", help="matrix, list or heads."),
    as_list: bool = Option(False, "--list", help="Short for --view list."),
    plain: bool = Option(False, "--plain", help="Describe the maps in sentences."),
    as_json: bool = Option(False, "--json", help="Print the trace as JSON."),
    kind: str = Option(
        "auto",
        help="cross, encoder-self, decoder-self, encoder-history, encoder-future, "
        "decoder-history, memory, hops; history is the decoder's, or else the encoder's; auto is "
        "hops or cross if any.",
    ),
    layer: str = Option("auto", help="Number from 0, all, or auto for the sharpest."),
    head: str = Option("auto", help="Number from 0, mean, all, or auto for the sharpest."),
    words: bool | None = Option(
        None, "--words/--tokens", help="Merge subwords to words.", show_default="auto"
    ),
    segmenter: str = Option(
        "auto",
        help="Words of a script without spaces: jieba (Chinese), budoux (Japanese), pythainlp "
        "(Thai), or auto by the script.",
    ),
    special: str = Option(
        "dim", help="Special tokens like </s>: dim, hide (their weight is printed) or show."
    ),
    scale: str = Option(
        "fixed", help="Darkest for weight 1 (fixed), or for the largest weight of each row (row)."
    ),
    target: TargetOption = None,
    gold: str | None = Option(
        None,
        help="Source-target links to mark, as in '0-0 1-2 2p1'; they count what `regard align` "
        "counts: words, but letters of a side that is read by letters.",
        show_default=False,
    ),
    beam: BeamOption = None,
    max_len: int | None = Option(
        None, help="Most tokens of an answer.", show_default="by the source or the model"
    ),
    chat: ChatOption = False,
    queries: bool = Option(
        False,
        "--queries",
        help="Keep queries and keys of a model of transformers, by which the page explains each "
        "weight.",
    ),
    allow_pickle: AllowPickleOption = False,
    precision: PrecisionOption = "32",
    top_k_weights: int | None = Option(
        None,
        metavar="K",
        help="Keep only the K strongest weights of each row of a model of transformers, on disk "
        "while it runs: for texts of thousands of tokens.",
        show_default="all",
    ),
    layers: str | None = Option(
        None,
        help="Layers of a model of transformers to record, as in 0-3,31.",
        show_default="all",
    ),
    heads: str | None = Option(
        None,
        help="Heads to record with --top-k-weights, as in 0,5.",
        show_default="all",
    ),
    line: int | None = Option(
        None, metavar="N", help="Which trace of a .jsonl, counted from 1.", show_default="1"
    ),
    ascii: bool = Option(False, "--ascii", help="Draw in ASCII only."),
    device: DeviceOption = "auto",
) -> None:
    """Draw attention maps: where each output looked."""


@command(no_args_is_help=True)
def check(
    run: ModelArgument,
    text: str = Argument(
        metavar="TEXT", help="A source; for a run that reads vectors, a file with one."
    ),
    target: TargetOption = None,
    methods: str | None = Option(
        None,
        metavar="all|NAME,...",
        help="Attribution methods to compare, each with its faithfulness: ablation, gradient, "
        "input-gradient, integrated-gradients, relevance, attention, rollout, norms.",
        show_default="none; all for a language model or a model of transformers",
    ),
    versus: str | None = Option(
        None,
        metavar="TOKEN",
        help="Compare each output with this token: why the one, and not the other?",
        show_default=False,
    ),
    beam: BeamOption = None,
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        metavar="FILE",
        help="Also write the trace: .html or .json with the results, or .svg, .png, .pdf or "
        ".csv with the map.",
        show_default=False,
    ),
    as_json: bool = Option(False, "--json", help="Print the trace as JSON."),
    allow_pickle: AllowPickleOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Compare attention with what mattered, by ablation, gradients and other methods."""


@command(no_args_is_help=True)
def heads(
    run: ModelArgument,
    file: str = Argument(
        metavar="FILE",
        help="Pairs; or a .txt file with a text on each line, stdin if '-'; or a text itself.",
    ),
    tgt: TargetsArgument = None,
    gold: str | None = Option(
        None,
        help="File of gold links of the pairs, as for `regard align`: each head of the "
        "cross-attention gets its alignment error rate, and the best is named.",
        show_default=False,
    ),
    gold_first: int = Option(0, help="Number of the first word in the gold links.", min=0, max=1),
    ablate: int = Option(
        64, min=0, help="Texts on which each head is switched off in turn; 0 for none."
    ),
    limit: int = Option(500, min=1, help="Texts that are read at most."),
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        metavar="FILE",
        help="Also write a page to sort the heads and see examples of each: .html.",
        show_default=False,
    ),
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Report habits and importance of attention heads.

    Over the texts: the share of each head's attention on the previous, next, first or same token,
    after an earlier copy (induction), on separators, on one position, along the diagonal; and the
    nats per target token that switching it off costs, with an interval.
    """


@command(no_args_is_help=True)
def compare(
    first: str = Argument(
        metavar="A",
        autocompletion=complete_run,
        help="A run folder, a bundled model, or a model of transformers; RUN@STEP is a run at a "
        "step of its best or last checkpoints.",
    ),
    second: str | None = Argument(
        None, metavar="B", help="Another.", show_default=False, autocompletion=complete_run
    ),
    file: str | None = Argument(
        None,
        metavar="FILE",
        help="Pairs; or a .txt file with a text on each line, stdin if '-'; or a text itself.",
        show_default=False,
    ),
    tgt: TargetsArgument = None,
    inputs: tuple[str, str] | None = Option(
        None,
        metavar="TEXT TEXT",
        help="Compare what A does with two inputs; B and FILE are left out.",
        show_default=False,
    ),
    metrics: str | None = Option(
        None, help="Comma-separated, as for `regard evaluate`.", show_default="by target"
    ),
    beam: BeamOption = None,
    columns: ColumnsOption = None,
    skip_bad: SkipBadOption = False,
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        metavar="FILE",
        help="Also write a page with the maps side by side: .html.",
        show_default=False,
    ),
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    """Compare two runs, checkpoints, models or inputs.

    Answers side by side, scores with paired intervals if FILE has targets, and attention maps on
    one colour scale, those that differ most first. For their maps both are made to write the
    target or, without one, what A answers.
    """


@command(no_args_is_help=True)
def what_if(
    run: ModelArgument,
    text: str = Argument(metavar="TEXT", help="The source, or the prompt of a language model."),
    replace: list[str] | None = Option(
        None,
        metavar="NUMBER=TEXT",
        help="Replace a token of the source, counted from 0, and read the text anew.",
        show_default=False,
    ),
    prefix: str | None = Option(
        None, help="Text that the answer must begin with.", show_default=False
    ),
    off: list[str] | None = Option(
        None,
        metavar="KIND:LAYER:HEAD",
        help="Switch a head off, as in cross:0:1.",
        show_default=False,
    ),
    set_cell: list[str] | None = Option(
        None,
        "--set",
        metavar="KIND:LAYER:HEAD:ROW:COLUMN=WEIGHT",
        help="Set a cell of an attention map; the others of its row share the rest. HEAD may be "
        "all.",
        show_default=False,
    ),
    beam: BeamOption = None,
    max_len: int | None = Option(
        None, help="Most tokens of an answer.", show_default="by length of the source"
    ),
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        metavar="FILE",
        help="Also write a page with both maps and their difference: .html.",
        show_default=False,
    ),
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
    allow_pickle: AllowPickleOption = False,
    precision: PrecisionOption = "32",
) -> None:
    """Change one thing, decode again, and compare.

    Replace tokens, force a prefix, switch heads off, or set cells of attention maps by hand; each
    option may be given several times. Both answers, and the heads whose maps change most.
    """


@command(no_args_is_help=True, cls=RayCommand)
def align(
    run: RunArgument,
    file: str = Argument(
        metavar="FILE",
        help="Pairs to align; stdin if '-'. A quoted pattern such as 'in/*.tsv' names shards; with "
        "--ray, a folder does, too.",
    ),
    tgt: TargetsArgument = None,
    gold: str | None = Option(
        None,
        help="File of gold links in Pharaoh format, a line for each pair, after the last tab if "
        "there are tabs.",
        show_default=False,
    ),
    gold_first: int = Option(0, help="Number of the first word in the gold links.", min=0, max=1),
    reverse_run: Path | None = Option(
        None,
        help="A run from target to source, to symmetrise with.",
        show_default=False,
        autocompletion=complete_run,
    ),
    symmetrize: Symmetry = Option(Symmetry.grow_diag_final, help="How to join the two directions."),
    layer: str = Option(
        "auto", help="A number from 0, mean, or auto: the best by the gold, or mean."
    ),
    head: str = Option(
        "auto", help="A number from 0, mean, or auto: the best by the gold, or mean."
    ),
    shift: str = Option(
        "auto",
        help="0, 1 or -1: align an output by the step after or before it; auto: the best by "
        "the gold, or 0.",
    ),
    threshold: float | None = Option(
        None,
        help="Link all words with at least this weight.",
        show_default="the strongest one",
    ),
    words: bool | None = Option(
        None,
        "--words/--tokens",
        help="What to link.",
        show_default="words, and letters of a side that is read by letters",
    ),
    columns: ColumnsOption = None,
    skip_bad: bool = Option(
        False, "--skip-bad", help="Skip bad lines, with an empty line in their place."
    ),
    output: Path | None = Option(
        None,
        "-o",
        "--output",
        help="Write the alignments here; of shards, a folder for theirs.",
        show_default="stdout",
    ),
    ray: RayOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
    batch: int = Option(32, help="Pairs at a time.", min=1),
    device: DeviceOption = "auto",
) -> None:
    """Align the words of pairs by attention.

    Alignments go to stdout in Pharaoh format, error rates to stderr.
    """


@command("deployment", no_args_is_help=True)
def export(
    run: RunArgument,
    to: str = Option("onnx", help="The format: onnx, or ctranslate2 (preset transformer)."),
    output: Path | None = Option(
        None, "-o", "--output", help="A new folder.", show_default="NAME-FORMAT"
    ),
    precision: str = Option(
        "32", help="Precision of the weights (onnx): 32, or int8: smaller, faster, less exact."
    ),
    attention: bool = Option(
        False, "--attention", help="Export the attention weights of each step, too (onnx)."
    ),
    check: Path | None = Option(
        None,
        help="Sources, one on each line, whose predictions are compared with the model's (onnx).",
        show_default="random ones",
    ),
    as_json: JsonOption = False,
) -> None:
    """Write a model as ONNX graphs or for CTranslate2, to run without torch.

    The folder has the weights, the tokenizers, a README, and a program that
    predicts with onnxruntime or ctranslate2 alone. It is kept only if its
    outputs match the model's. Needs the extra `onnx` or `ctranslate2` of regard.
    """


@command("deployment")
def serve(
    runs: list[Path] | None = Argument(
        None,
        metavar="MODEL...",
        autocompletion=complete_run,
        help="Run folders, bundled models, and models of transformers: folders, or "
        "ORGANISATION/NAME on the Hugging Face hub. Each is named after its folder.",
        show_default="all bundled models, g2p first",
    ),
    host: HostOption = "127.0.0.1",
    port: int = Option(8000, help="Port to listen at; 0 takes any."),
    allow_host: AllowHostOption = None,
    allow_origin: list[str] | None = Option(
        None, metavar="URL", help="A site whose pages may send requests; * for any."
    ),
    token: TokenOption = None,
    no_token: NoTokenOption = False,
    log_text: bool = Option(
        False, "--log-text", help="Print the texts of requests, which may be private."
    ),
    device: DeviceOption = "auto",
    allow_pickle: AllowPickleOption = False,
    precision: PrecisionOption = "32",
    **limits: Annotated[Any, Limits],
) -> None:
    """Serve a live page and an API.

    Type on the page, and see where each output looks.
    """


@command("deployment", no_args_is_help=True)
def watch(
    run: RunArgument,
    host: HostOption = "127.0.0.1",
    port: int = Option(8001, help="Port to listen at; 0 takes any."),
    allow_host: AllowHostOption = None,
    token: TokenOption = None,
    no_token: NoTokenOption = False,
) -> None:
    """Follow a run in the browser while it trains.

    Curves, dev examples and attention maps, updated after each evaluation. It
    shows finished runs, too, and writes nothing into the run.
    """


@command()
def demo(
    minutes: float = Option(2.0, help="Minutes to train."),
    preset: str = Option(
        "bahdanau",
        "--preset",
        "-p",
        help="The model, by name.",
        autocompletion=complete_preset,
    ),
    output: Path = Option(Path("runs/demo"), "--output", "-o", help="The run folder."),
    test_words: int = Option(2000, help="Test words to evaluate on; there are about 12,000."),
    seed: int = Option(1, help="Random seed."),
) -> None:
    """Train, evaluate and show a model in two minutes.

    It learns the pronouncing dictionary that comes with regard.
    """


@command()
def lab(
    names: list[str] | None = Argument(
        None,
        metavar="NAME",
        help="Which experiments; see --list.",
        show_default="all",
        autocompletion=complete_experiment,
    ),
    quick: bool = Option(
        True, "--quick/--full", help="Small, for minutes on two cores, or full, for one GPU."
    ),
    output: Path = Option(
        Path("lab-report"), "-o", "--output", help="The folder of results and of the report."
    ),
    device: DeviceOption = "auto",
    seeds: int | None = Option(
        None, min=1, help="Random seeds per experiment.", show_default="3; 5 with --full"
    ),
    data: Path | None = Option(
        None,
        envvar="REGARD_DATA",
        help="Folder of public datasets, for experiments on real text and images.",
        show_default="what comes with regard",
    ),
    jobs: int | None = Option(
        None,
        "-j",
        "--jobs",
        min=1,
        help="Parallel trainings, one process each.",
        show_default="one per thread; 4 on a GPU",
    ),
    fresh: bool = Option(False, "--fresh", help="Ignore cached results."),
    listed: bool = Option(False, "--list", help="List the experiments and their questions."),
    as_json: JsonOption = False,
) -> None:
    """Run experiments on attention, and write a report."""


@command()
def runs(
    folder: Path = Argument(Path("."), metavar="FOLDER", help="Where to look."),
    depth: int = Option(5, min=0, help="Folders below FOLDER, one in another, to look into."),
    as_json: JsonOption = False,
) -> None:
    """List run folders, the last changed first.

    Each with its preset, size, data, best figure, and whether it is finished, can be resumed,
    or is damaged. Checksums are verified when a run is loaded or resumed, not here.
    """


@command("info")
def models(
    name: str | None = Argument(
        None,
        metavar="NAME",
        help="A bundled model, whose card is printed.",
        show_default="list all",
        autocompletion=complete_bundled,
    ),
    as_json: bool = Option(False, "--json", help="Print model cards as JSON."),
) -> None:
    """List the bundled models, or print the card of one.

    Each is a RUN by name, as in `regard show g2p attention`.
    """


@command("info")
def settings(
    preset: str = Argument(
        "bahdanau",
        metavar="PRESET",
        help="Preset whose own settings come last.",
        autocompletion=complete_preset,
    ),
    as_json: JsonOption = False,
) -> None:
    """List all settings of a run, with their defaults.

    They are given to `regard train` as key=value, stand in a TOML file, or go to `regard.fit`.
    """


@command("info")
def presets(as_json: JsonOption = False) -> None:
    """List the presets: each is a model by name."""


@command("info")
def doctor(
    distributed: bool = Option(
        False,
        "--distributed",
        help="Test training in several processes instead: backends, torchrun's variables, and a "
        "sum over two processes.",
    ),
    as_json: JsonOption = False,
) -> None:
    """Print versions, devices and backends of this machine."""
