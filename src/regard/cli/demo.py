"""`regard demo`: the bundled task, from nothing to maps."""

import shutil
import time
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regard import api
from regard.cli.maps import draw_map
from regard.data import read_pairs
from regard.evaluation import score
from regard.training import make_config, start_run
from regard.training.task import RATES

WORDS = ("regard", "attention", "knowledge", "phoneme")


def demo(
    minutes: Annotated[float, typer.Option(help="Train for this long.")] = 2.0,
    preset: Annotated[str, typer.Option("--preset", "-p", help="The model, by name.")] = "bahdanau",
    output: Annotated[Path, typer.Option("--output", "-o", help="The run folder.")] = Path(
        "runs/demo"
    ),
    test_words: Annotated[
        int, typer.Option(help="Test words to judge it by; 12,000 there are.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Of the run.")] = 1,
) -> None:
    """Train on the bundled pronouncing dictionary, evaluate, and draw where the model looked."""
    console, notes = Console(), Console(stderr=True)
    notes.print("English words to phonemes: the CMU pronouncing dictionary, inside the package.")
    if (output / "config.json").exists():
        shutil.rmtree(output)
        notes.print(f"{output} held an earlier demo, which is removed.", highlight=False)
    with as_file(files("regard") / "bundled" / "cmudict") as folder:
        config = make_config(
            {
                "data": str(folder / "train.tsv.gz"),
                "preset": preset,
                "minutes": minutes,
                "seed": seed,
                "eval_pairs": 300,
                "eval_every": 500,
                "patience": 1000,
                # many small steps: in two minutes they learn more than few large ones
                "batch_tokens": 1536,
                "lr": 4e-3 if preset not in RATES else RATES[preset],
                "dropout": 0.05,
            }
        )
        start_run(config, output, console=notes)
        pairs = list(read_pairs(folder / "test.tsv.gz", references=True))
    if not (output / "README.md").exists():
        return  # stopped by the user, who has been told how to go on
    step = max(1, len(pairs) // test_words)
    pairs = pairs[::step][:test_words]
    model = api.load(output)
    began = time.monotonic()
    answers = [a.text for a in model.predict([p.src for p in pairs], attention=False)]
    seconds = time.monotonic() - began
    references = [[p.tgt, *p.more] for p in pairs]
    per, exact = (score(n, answers, references).value for n in ("per", "exact"))
    console.print(
        f"\n{len(pairs)} test words: phoneme error rate {per:.2%}, {exact:.1%} of words right "
        f"(beam {model.config.beam}, {len(pairs) / seconds:.0f} words/s)\n",
        highlight=False,
    )
    for word in WORDS:
        console.print(f"{word.upper():>12}  {model(word.upper()).text}", highlight=False)
    console.print()
    draw_map(model(WORDS[1].upper()), console)
    console.print(
        f"\nnext:  echo HELLO | regard predict {output}\n"
        f"       regard train your-pairs.tsv --preset transformer\n"
        f"       regard --help",
        highlight=False,
    )
