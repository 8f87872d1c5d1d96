"""`regard predict`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard import api
from regard.data import read_lines


def predict(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN... [FILE]",
            help="Run folders, and a file with a source per line; stdin if '-' or not given. "
            "Several runs answer together.",
        ),
    ],
    beam: Annotated[
        int | None, typer.Option(help="Width of the search; 1 is greedy. [default: 5]")
    ] = None,
    nbest: Annotated[int, typer.Option(help="Answers per source.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Above 0 favours longer answers.")] = 0.6,
    coverage_penalty: Annotated[
        float, typer.Option(help="Above 0 favours answers that have looked at everything.")
    ] = 0.0,
    no_repeat: Annotated[
        int, typer.Option(help="No n-gram of this length twice; 0 for no rule.")
    ] = 0,
    min_len: Annotated[int, typer.Option(help="Fewest tokens of an answer.")] = 0,
    max_len: Annotated[
        int | None, typer.Option(help="Most tokens of an answer. [default: by source]")
    ] = None,
    samples: Annotated[int, typer.Option(help="Draw this many answers instead of searching.")] = 0,
    temperature: Annotated[float, typer.Option(help="Of the draws.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw among this many tokens; 0 for all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw among the likeliest with this probability.")
    ] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    replace_unk: Annotated[
        bool,
        typer.Option("--replace-unk", help="Unknown words become the source word most looked at."),
    ] = False,
    as_jsonl: Annotated[
        bool,
        typer.Option(
            "--jsonl", help="A JSON object per source, with scores, tokens and attention."
        ),
    ] = False,
    batch: Annotated[int, typer.Option(help="Sources at a time.", min=1)] = api.BATCH,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Answer each line of a file: one answer per line on stdout."""
    folders, source = _split(runs)
    model = api.load(*folders, device=device)
    options = {
        "nbest": max(nbest, 1),
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "no_repeat_ngram": no_repeat,
        "min_len": min_len,
        "max_len": max_len,
        "num_samples": samples,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    if beam is not None:
        options["beam"] = beam
    outputs = model.predict(
        read_lines(source), attention=as_jsonl, replace_unk=replace_unk, batch=batch, **options
    )
    for output in outputs:
        if as_jsonl:
            sys.stdout.write(json.dumps(_as_json(output), ensure_ascii=False) + "\n")
        else:
            for answer in (output, *output.alternatives):
                sys.stdout.write(answer.text + "\n")
        sys.stdout.flush()


def _split(words: list[Path]) -> tuple[list[Path], str]:
    """Folders are runs; what comes after them is the file."""
    *folders, last = words
    if folders and (str(last) == "-" or not last.is_dir()):
        return folders, str(last)
    return words, "-"


def _as_json(output: api.Output) -> dict[str, object]:
    return {
        "text": output.text,
        "score": output.score,
        "log_prob": output.log_prob,
        "src_tokens": output.src_tokens,
        "tokens": output.tokens,
        "token_log_probs": output.token_log_probs,
        "attention": {
            kind: [
                [[[round(w, 4) for w in row] for row in head] for head in layer.tolist()]
                for layer in layers
            ]
            for kind, layers in output.maps.items()
        },
        "alternatives": [{"text": o.text, "score": o.score} for o in output.alternatives],
    }
