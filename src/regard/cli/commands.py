"""Declarations of all commands of `regard`, with their options.

Help and completion need this file and nothing more, so that they answer at once. A command is
implemented by the function of its name in another module, which is imported when it runs.
"""

from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Option

from regard.cli import options
from regard.cli.options import (
    app,
    argument,
    command,
    complete_bundled,
    complete_experiment,
    complete_preset,
    complete_run,
    file_output,
    flag,
    option,
)
from regard.decoding_options import DecodingOptions
from regard.messages import LANGUAGES
from regard.serve.limits import Limits
from regard.version import __version__

#: endings of files with maps, and of pages
DRAWN: Final = ("html", "svg", "png", "pdf", "json")
PAGE: Final = ("html", "htm")


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"regard {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    lang: str | None = Option(
        None,
        callback=options.choose_language,
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
class TrainArgs:
    """Train a model on pairs, or a language model on text.

    `regard train pairs.tsv` is enough. Settings by name go last, as in
    `regard train pairs.tsv hidden=256 epochs=20`. `regard train recipes/NAME`
    prepares the data of a published result, trains, and scores dev and test.
    """

    data: str | None = argument(
        "DATA",
        "Pairs: TSV, JSONL, Parquet, or '-' for stdin; text for a language model; many files as a "
        "folder or a glob in quotes; or a TOML file: settings, or a recipe.",
        default=None,
    )
    words: list[str] | None = argument(
        "KEY=VALUE",
        "Settings by name. Before them, the file of targets if the sides are two files.",
        default=None,
    )
    preset: options.Preset = None
    size: str | None = option("tiny, small or base.", shown="small")
    output: Path | None = option(
        "The run folder.", "--output", "-o", shown="runs/PRESET, runs/recipes/NAME-SEED"
    )
    start: str | None = option(
        "Start from this model: a run folder, RUN@STEP or a bundled model.",
        "--from",
        shown="nothing",
    )
    dev: str | None = option("Dev pairs.", shown="some of the data, by hash")
    minutes: float | None = option("Most minutes to train.", shown="no limit")
    search: int | None = option(
        "Train so many models, with other rates, sizes and regularisation, and keep the best; the "
        "minutes are those of all.",
        shown="nothing",
    )
    resume: Path | None = option("Resume the run in this folder.", autocompletion=complete_run)
    skip_bad: options.SkipBad = False
    data_dir: Path | None = option(
        "Folder of the public datasets of recipes.", envvar="REGARD_DATA"
    )
    no_test: bool = flag("--no-test", "Score only the dev set of a recipe.")
    dry_run: bool = flag(
        "--dry-run",
        "Say what would happen (columns, network, steps, time, memory), and train nothing.",
    )
    quiet: options.Quiet = False


@command(no_args_is_help=True)
class PredictArgs:
    """Predict a target for each line of a file.

    Predictions go to stdout, one per line, or with -o into a table. With -o FOLDER, shards of
    sources become shards of predictions, on this machine or, with --ray, on many.
    """

    runs: list[Path] = argument(
        "RUN [FILE]",
        "Run folders or bundled models (g2p), several as an ensemble, or a model of "
        "transformers: its folder, or ORGANISATION/NAME on the Hugging Face hub. Then a file with "
        "a source on each line; stdin if '-' or not given. Features follow a source after a tab. A "
        "language model continues each line. Vectors are JSONL, Parquet or .npy files. With -o "
        "FOLDER, files, folders or quoted patterns of text, TSV, JSONL or Parquet: 'in/*.parquet'.",
        autocompletion=complete_run,
    )
    decoding: Annotated[dict[str, Any], DecodingOptions]
    beam: options.Beam = None
    prefix: str | None = option("Text that every prediction begins with.")
    as_jsonl: bool = option(
        "Print a JSON object per source, with scores, tokens and attention.",
        *("--jsonl", "--json"),
        default=False,
    )
    trace: Path | None = option(
        "Write a trace of each prediction to this file, a JSON object per line: tokens, "
        "probabilities, and where every position looked."
    )
    max_chars: int | None = option("Most characters of a line.", shown="that of the run")
    skip_bad: bool = flag(
        "--skip-bad", "Skip lines that cannot be read, with an empty line in their place."
    )
    batch: int | None = option(
        "Batch size in sources; 1 predicts each line as it comes.",
        shown="by the device; 1 for what is typed",
    )
    output: Path | None = option(
        "Write one table with source, answer, confidence and alternatives: .csv, .tsv, .jsonl, "
        "or .parquet. Or answer shards of sources into this folder, a shard for each; the "
        "same command goes on where an interrupted one was.",
        *("-o", "--output"),
    )
    ray: options.Ray = None
    workers: options.Workers = None
    columns: str | None = option(
        "Source and, if any, features of CSV, JSON, Parquet or shards: names, or numbers as in "
        "0,2.",
        shown="src, source, input or text; 0 of TSV",
    )
    chat: options.Chat = False
    precision: options.Precision = "32"
    device: options.Device = "auto"


@command(no_args_is_help=True)
class EvaluateArgs:
    """Score predictions by BLEU, error rates, accuracy or perplexity.

    Where targets are labels or tags, results by class follow.

    Predictions and targets are compared in the form in which the model writes: composed
    Unicode and, where targets are symbols or words, single spaces. The signature names it.
    """

    run: options.Run
    file: str = argument(
        "FILE",
        "Pairs to evaluate on. Further columns are alternative targets, or the features of a run "
        "that has features. For a language model, a text on each line.",
    )
    tgt: options.Targets = None
    metrics: str | None = option(
        "Comma-separated: bleu (bleu-13a, bleu-zh, bleu-char by that tokeniser of sacrebleu), "
        "chrf, ter, wer, cer, per, exact; of answers, em and f1; of summaries, rouge-1, rouge-2 "
        "and rouge-l; of labels, accuracy and macro-f1; of several labels, subset-accuracy and "
        "micro-f1; of tags, tag-accuracy and span-f1.",
        shown="by target",
    )
    beam: options.Beam = None
    lengths: bool = flag("--by-length", "Also print scores by length of the source.")
    columns: options.Columns = None
    skip_bad: options.SkipBad = False
    save: Path | None = option("Write the predictions here, one per line.")
    as_json: options.Json = False
    precision: options.Precision = "32"
    device: options.Device = "auto"


@command(no_args_is_help=True)
class ShowArgs:
    """Draw attention maps: where each output looked."""

    run: Path = argument(
        "RUN",
        "A run folder, a bundled model (g2p), a model of transformers (its folder, or "
        "ORGANISATION/NAME on the Hugging Face hub), or saved traces: .json, or .jsonl with one "
        "per line.",
        autocompletion=complete_run,
    )
    text: str | None = argument(
        "TEXT",
        "A source, or what a language model reads, and, if it is one of transformers, continues; "
        "'-' reads one from each line of stdin. For a run that reads vectors, a .npy file; for a "
        "model of pictures or sound, a picture or a recording.",
        default=None,
    )
    output: Path | None = file_output("Write a file: .html, .svg, .png, .pdf or .json.", *DRAWN)
    as_list: bool = flag("--list", "Print the inputs of each output, strongest first.")
    plain: bool = flag("--plain", "Describe the maps in sentences.")
    as_json: bool = flag("--json", "Print the trace as JSON.")
    kind: str = option(
        "cross, encoder-self, decoder-self, encoder-history, decoder-history, memory, hops; auto "
        "is hops or cross if any.",
        default="auto",
    )
    layer: str = option("Number from 0, or auto for the sharpest.", default="auto")
    head: str = option("Number from 0, mean, or auto for the sharpest.", default="auto")
    words: bool | None = option("Merge subwords to words.", "--words/--tokens", shown="auto")
    special: str = option(
        "Special tokens like </s>: dim, hide (their weight is printed) or show.", default="dim"
    )
    target: options.Target = None
    beam: options.Beam = None
    max_len: int | None = option("Most tokens of an answer.", shown="by the source or the model")
    chat: options.Chat = False
    precision: options.Precision = "32"
    layers: str | None = option(
        "Layers of a model of transformers to record, as in 0-3,31.", shown="all"
    )
    line: int | None = option("Which trace of a .jsonl, counted from 1.", metavar="N", shown="1")
    ascii: bool = flag("--ascii", "Draw in ASCII only.")
    device: options.Device = "auto"


@command(no_args_is_help=True)
class CheckArgs:
    """Compare attention with what mattered, by ablation, gradients and other methods."""

    run: options.Model
    text: str = argument("TEXT", "A source; for a run that reads vectors, a file with one.")
    target: options.Target = None
    methods: str | None = option(
        "Attribution methods to compare, each with its faithfulness: ablation, gradient, "
        "integrated-gradients, attention, rollout.",
        metavar="all|NAME,...",
        shown="none; all for a language model",
    )
    versus: str | None = option(
        "Compare each output with this token: why the one, and not the other?", metavar="TOKEN"
    )
    beam: options.Beam = None
    output: Path | None = file_output(
        "Also write the trace: .html or .json with the results, .svg, .png or .pdf with the map.",
        *DRAWN,
    )
    as_json: bool = flag("--json", "Print the trace as JSON.")
    device: options.Device = "auto"


@command(no_args_is_help=True)
class HeadsArgs:
    """Report habits and importance of attention heads.

    Over the texts: the share of each head's attention on the previous, next, first or same token,
    after an earlier copy (induction), on separators, on one position, along the diagonal; and the
    nats per target token that switching it off costs, with an interval.
    """

    run: options.Model
    file: str = argument(
        "FILE",
        "Pairs; or a .txt file with a text on each line, stdin if '-'; or a text itself.",
    )
    tgt: options.Targets = None
    ablate: int = option(
        "Texts on which each head is switched off in turn; 0 for none.", default=64, min=0
    )
    limit: int = option("Texts that are read at most.", default=500, min=1)
    columns: options.Columns = None
    skip_bad: options.SkipBad = False
    output: Path | None = file_output(
        "Also write a page to sort the heads and see examples of each: .html.", *PAGE
    )
    as_json: options.Json = False
    device: options.Device = "auto"


@command(no_args_is_help=True)
class CompareArgs:
    """Compare two runs, checkpoints or models.

    Answers side by side, scores with paired intervals if FILE has targets, and attention maps on
    one colour scale, those that differ most first. For their maps both are made to write the
    target or, without one, what A answers.
    """

    first: str = argument(
        "A",
        "A run folder, a bundled model, or a model of transformers; RUN@STEP is a run at a step of "
        "its best or last checkpoints.",
        autocompletion=complete_run,
    )
    second: str = argument("B", "Another.", autocompletion=complete_run)
    file: str = argument(
        "FILE",
        "Pairs; or a .txt file with a text on each line, stdin if '-'; or a text itself.",
    )
    tgt: options.Targets = None
    metrics: str | None = option("Comma-separated, as for `regard evaluate`.", shown="by target")
    beam: options.Beam = None
    columns: options.Columns = None
    skip_bad: options.SkipBad = False
    output: Path | None = file_output("Also write a page with the maps side by side: .html.", *PAGE)
    as_json: options.Json = False
    device: options.Device = "auto"


@command(no_args_is_help=True)
class WhatIfArgs:
    """Change one thing, decode again, and compare.

    Replace tokens, force a prefix, switch heads off, or set cells of attention maps by hand; each
    option may be given several times. Both answers, and the heads whose maps change most.
    """

    run: options.Model
    text: str = argument("TEXT", "The source, or the prompt of a language model.")
    replace: list[str] | None = option(
        "Replace a token of the source, counted from 0, and read the text anew.",
        metavar="NUMBER=TEXT",
    )
    prefix: str | None = option("Text that the answer must begin with.")
    off: list[str] | None = option("Switch a head off, as in cross:0:1.", metavar="KIND:LAYER:HEAD")
    set_cell: list[str] | None = option(
        "Set a cell of an attention map; the others of its row share the rest. HEAD may be all.",
        "--set",
        metavar="KIND:LAYER:HEAD:ROW:COLUMN=WEIGHT",
    )
    beam: options.Beam = None
    max_len: int | None = option("Most tokens of an answer.", shown="by length of the source")
    output: Path | None = file_output(
        "Also write a page with both maps and their difference: .html.", *PAGE
    )
    as_json: options.Json = False
    device: options.Device = "auto"
    precision: options.Precision = "32"


@command(no_args_is_help=True)
class AlignArgs:
    """Align the words of pairs by attention, or by statistics of the pairs and the training data.

    Alignments go to stdout in Pharaoh format, error rates to stderr.
    """

    run: options.Run
    file: str = argument(
        "FILE",
        "Pairs to align; stdin if '-'.",
    )
    tgt: options.Targets = None
    gold: str | None = option(
        "File of gold links in Pharaoh format, a line for each pair, after the last tab if there "
        "are tabs."
    )
    gold_first: options.GoldFirst = 0
    by: str = option(
        "What links are made from: statistics, attention, or a layer and head, as mean, 1, 1:0 or "
        "1:0+1, which aligns an output by the step after it. auto is the guided head, or "
        "statistics for words if the run has its training data, or the mean; the best by the gold.",
        default="auto",
    )
    words: bool | None = option(
        "What to link.",
        "--words/--tokens",
        shown="words, and letters of a side that is read by letters",
    )
    columns: options.Columns = None
    skip_bad: bool = flag("--skip-bad", "Skip bad lines, with an empty line in their place.")
    output: Path | None = file_output("Write the alignments here.", shown="stdout")
    as_json: options.Json = False
    batch: int = option("Pairs at a time.", default=32, min=1)
    device: options.Device = "auto"


@command("deployment", no_args_is_help=True)
class ImportArgs:
    """Import a model of transformers into a run folder.

    GPT-2, Llama, Mistral, Qwen2, Gemma, Marian, BART, mBART, Pegasus, M2M100, T5, mT5, Whisper; and
    BERT, RoBERTa, XLM-R, DistilBERT, ALBERT and ViT to start classifiers from. Its outputs stay
    the same.
    """

    folder: Path = argument("FOLDER", "A folder that save_pretrained of transformers wrote.")
    output: Path = option("The run folder, new.", "-o", "--output", default=MISSING)
    src_lang: str | None = option("Language of sources, as the tokenizer calls it: en_XX.")
    tgt_lang: str | None = option("Language of targets.")


@command("deployment", no_args_is_help=True)
class ExportArgs:
    """Write a model as ONNX graphs, to run without torch.

    `--to transformers` writes what was imported, and merges an adapter into its model.

    The folder has the weights, the tokenizers, a README, and a program that
    predicts with onnxruntime alone. It is kept only if its
    outputs match the model's. Needs the extra `onnx` of regard.
    """

    run: options.Run
    to: str = option(
        "The format: onnx or transformers (imported models).",
        default="onnx",
    )
    output: Path | None = option("A new folder.", "-o", "--output", shown="NAME-FORMAT")
    as_json: options.Json = False


@command("deployment")
class ServeArgs:
    """Serve a live page and an API.

    Type on the page, and see where each output looks.
    """

    runs: list[Path] | None = argument(
        "MODEL...",
        "Run folders, bundled models, and folders of models of transformers that `regard import` "
        "knows. Each is named after its folder.",
        default=None,
        shown="all bundled models, g2p first",
        autocompletion=complete_run,
    )
    host: options.Host = "127.0.0.1"
    port: int = option("Port to listen at; 0 takes any.", default=8000)
    allow_host: options.AllowHost = None
    token: options.Token = None
    no_token: options.NoToken = False
    device: options.Device = "auto"
    precision: options.Precision = "32"
    limits: Annotated[dict[str, Any], Limits]


@command()
class LabArgs:
    """Run experiments on attention, and write a report."""

    names: list[str] | None = argument(
        "NAME",
        "Which experiments; see --list.",
        default=None,
        shown="all",
        autocompletion=complete_experiment,
    )
    quick: bool = option(
        "Small, for minutes on two cores, or full, for one GPU.", "--quick/--full", default=True
    )
    output: Path = option(
        "The folder of results and of the report.", "-o", "--output", default=Path("lab-report")
    )
    device: options.Device = "auto"
    seeds: int | None = option("Random seeds per experiment.", min=1, shown="3; 5 with --full")
    data: Path | None = option(
        "Folder of public datasets, for experiments on real text and images.",
        envvar="REGARD_DATA",
        shown="what comes with regard",
    )
    jobs: int | None = option(
        "Parallel trainings, one process each.",
        *("-j", "--jobs"),
        min=1,
        shown="one per thread; 4 on a GPU",
    )
    listed: bool = flag("--list", "List the experiments and their questions.")
    as_json: options.Json = False


@command()
class RunsArgs:
    """List run folders, the last changed first.

    Each with its preset, size, data, last dev score, and whether it is finished or can be resumed.
    Whether its files are whole is verified when a run is loaded or resumed, not here.
    """

    folder: Path = argument("FOLDER", "Where to look.", default=Path("."))
    depth: int = option("Folders below FOLDER, one in another, to look into.", default=5, min=0)
    as_json: options.Json = False


@command("info")
class ModelsArgs:
    """List the bundled models, or print the card of one.

    Each is a RUN by name, as in `regard show g2p attention`.
    """

    name: str | None = argument(
        "NAME",
        "A bundled model, whose card is printed.",
        default=None,
        shown="list all",
        autocompletion=complete_bundled,
    )
    as_json: bool = flag("--json", "Print model cards as JSON.")


@command("info")
class SettingsArgs:
    """List all settings of a run, with their defaults.

    They are given to `regard train` as key=value, stand in a TOML file, or go to `regard.fit`.
    """

    preset: str = argument(
        "PRESET",
        "Preset whose own settings come last.",
        default="bahdanau",
        autocompletion=complete_preset,
    )
    as_json: options.Json = False


@command("info")
class PresetsArgs:
    """List the presets: each is a model by name."""

    as_json: options.Json = False
