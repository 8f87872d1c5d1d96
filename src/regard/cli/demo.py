"""`regard demo`: train, evaluate and show a model of the bundled dictionary."""

import shutil
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console

from regard import api
from regard.api.evaluate_pairs import score_predictions
from regard.cli.commands import DemoArgs
from regard.cli.console import SIGNALLED
from regard.cli.show import drawn
from regard.data import Pair, read_pairs
from regard.messages import message
from regard.training import Config, RunError, RunFolder, make_config, start_run
from regard.training.defaults import PEAK_RATES
from regard.training.reporting import StderrConsole, say

#: words that are evaluated, of about 12,000, and words that are answered
TEST_WORDS: Final = 2000
WORDS: Final = ("regard", "attention", "knowledge", "phoneme")


def demo(args: DemoArgs) -> None:
    """Train on the bundled pronouncing dictionary, evaluate, and draw where the model looked."""
    console, notes = Console(), StderrConsole()
    with as_file(files("regard") / "bundled" / "cmudict") as data:
        settings = {"preset": args.preset, "minutes": args.minutes}
        config = _config(data / "train.tsv.gz", settings)
        say(notes, message("demo.data"))
        if _remove_earlier(args.output, config):
            say(notes, message("demo.removed", path=args.output))
        folder = start_run(config, args.output, console=notes)
        pairs = list(read_pairs(data / "test.tsv.gz", references=True))
    if folder.stopped_by is not None:  # the user has been told how to go on
        raise typer.Exit(SIGNALLED + folder.stopped_by)
    model = api.load_run(args.output)
    _evaluate(model, pairs[:: max(1, len(pairs) // TEST_WORDS)][:TEST_WORDS], console)
    for word in WORDS:
        say(console, f"{word.upper():>12}  {model(word.upper()).text}")
    console.print()
    trace = model.trace(WORDS[1].upper())
    drawable = "cross" in trace.kinds
    typer.echo(
        drawn(trace, "matrix", {"kind": "cross"}) if drawable else message("demo.no-attention")
    )
    following = message("demo.next")
    console.print(
        f"\n{following}regard show {args.output} HELLO -o hello.html",
        f"echo HELLO | regard predict {args.output}",
        "regard train your-pairs.tsv --preset transformer",
        "regard --help",
        sep="\n" + " " * cell_len(following),
        highlight=False,
    )


def _config(data: Path, settings: dict[str, Any]) -> Config:
    preset = settings["preset"]
    return make_config(
        {
            "data": str(data),
            "eval_pairs": 300,
            "eval_every": 500,
            "patience": 1000,
            "src_case": "upper",
            "size": "small",
            # many small steps: in two minutes they learn more than few large ones
            "batch_tokens": 1536,
            "warmup": 200,
            "lr": PEAK_RATES.get(preset, 4e-3),
            "dropout": 0.05,
            **settings,
        }
    )


def _remove_earlier(output: Path, config: Config) -> bool:
    """Remove an earlier demo and return whether there was one; raises for any other run."""
    folder = RunFolder(output)
    if not folder.started:
        return False
    if Path(str(folder.read_config().data)).parts[-2:] != Path(str(config.data)).parts[-2:]:
        raise RunError(
            f"the output folder must be new or hold an earlier demo, but {output} holds another "
            f"run: choose another with -o."
        )
    shutil.rmtree(output)
    return True


def _evaluate(model: api.Model, pairs: list[Pair], console: Console) -> None:
    began = time.monotonic()
    answers = [a.text for a in model.predict([p.src for p in pairs], attention=False)]
    seconds = time.monotonic() - began
    rows = score_predictions(model.tgt_tokenizer, ("per", "exact"), answers, pairs).rows
    per, exact = (row.value for row in rows)
    said = message(
        "demo.result",
        count=len(pairs),
        per=per,
        exact=exact,
        beam=model.config.beam,
        speed=len(pairs) / seconds,
    )
    say(console, f"\n{said}\n")
