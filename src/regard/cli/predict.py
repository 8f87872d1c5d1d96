"""`regard predict`."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from regard import api
from regard.api import bundled_models
from regard.atomic_files import incremental_output
from regard.cli.console import on_one_line
from regard.cli.features import told_of_features
from regard.cli.input_lines import InputLines
from regard.data.frame_tables import SUFFIX
from regard.errors import ArgumentError, DataError
from regard.kinds.text_source import name_some
from regard.seeing import storage
from regard.symbols import UNK

#: maps that are printed: over the source, or, of a language model, over its own past
CROSS = ("cross",)
OWN = ("decoder-self", "decoder-history")


def predict(
    *,
    runs: list[Path],
    beam: int | None,
    nbest: int,
    length_penalty: float,
    coverage_penalty: float,
    no_repeat_ngram: int,
    min_len: int,
    max_len: int | None,
    num_samples: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    prefix: str | None,
    forbid_unknown: bool,
    replace_unk: bool,
    as_jsonl: bool,
    trace: Path | None,
    max_chars: int | None,
    skip_bad: bool,
    batch: int | None,
    precision: str,
    device: str,
) -> None:
    """Answer each line of a file: one answer per line on stdout."""
    folders, files = _split(runs)
    model = api.load(*folders, device=device, precision=precision)
    options = {
        "nbest": nbest,
        "length_penalty": length_penalty,
        "coverage_penalty": coverage_penalty,
        "no_repeat_ngram": no_repeat_ngram,
        "min_len": min_len,
        "max_len": max_len,
        "num_samples": num_samples,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "forbid_unknown": forbid_unknown,
        "prefix": None if prefix is None else [_begun(model, prefix)],
    }
    if beam is not None:
        options["beam"] = beam
    lines = InputLines(files, model, max_chars=max_chars, skip_bad=skip_bad)
    maps = OWN if model.config.reads_texts else CROSS
    outputs = model.predict(
        told_of_features(model, lines),
        attention=as_jsonl or trace is not None,
        kinds=None if trace is not None else maps,
        replace_unk=replace_unk,
        batch=_at_a_time(batch, files),
        **options,
    )
    unknown: Counter[str] = Counter()
    several = (num_samples or nbest) > 1
    with _trace_writer(trace) as keep:
        for number, output in enumerate(lines.in_place(outputs), start=1):
            if not isinstance(output, DataError):
                keep(output)
                unknown.update(output.unknown)
            sys.stdout.write(_json(output, maps) if as_jsonl else _text(number, output, several))
            sys.stdout.flush()
    _tell_unknown(unknown)
    if lines.bad.total:
        typer.echo(f"regard: {lines.bad}", err=True)


def _at_a_time(given: int | None, files: list[str]) -> int:
    """As many sources as was said, or one where they are typed, and who types is told how."""
    typed = files == ["-"] and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        typer.echo("regard: type a line and press Enter; Ctrl-D ends.", err=True)
    return given if given is not None else 1 if typed else api.BATCH


def _begun(model: api.Model, prefix: str) -> list[int]:
    """The tokens that answers begin with."""
    if model.config.reads_texts:
        raise ArgumentError(
            "--prefix",
            "be left out for a language model",
            repr(prefix),
            "it goes on with each line",
        )
    ids = model.tgt_tokenizer.encode(prefix)
    if UNK in ids:
        fix = "write it as the targets of the run are written"
        raise ArgumentError("--prefix", "be what the model has tokens for", repr(prefix), fix)
    return ids


def _text(number: int, output: api.Output | DataError, several: bool) -> str:
    """Return the lines of a source: its answer, or a row for each of several.

    Columns of a row are the number of the source, the rank, the score and the text, with tabs
    between them. A source without an answer keeps its place: an empty line, or a row whose score is
    nan.
    """
    if isinstance(output, DataError):
        return f"{number}\t1\tnan\t\n" if several else "\n"
    if not several:
        return on_one_line(output.text) + "\n"
    ranked = enumerate((output, *output.alternatives), start=1)
    return "".join(
        f"{number}\t{rank}\t{answer.score:.4f}\t{on_one_line(answer.text)}\n"
        for rank, answer in ranked
    )


def _json(output: api.Output | DataError, maps: Collection[str]) -> str:
    """Return the line of a source as a JSON object."""
    if isinstance(output, DataError):
        return json.dumps({"text": "", "error": str(output)}) + "\n"
    found = {
        **_as_object(output, maps),
        "src_tokens": output.src_tokens,
        "alternatives": [_as_object(other, maps) for other in output.alternatives],
    }
    return json.dumps(found, ensure_ascii=False) + "\n"


def _as_object(output: api.Output, maps: Collection[str]) -> dict[str, object]:
    return {
        "text": output.text,
        "score": output.score,
        "log_prob": output.log_prob,
        "tokens": output.tokens,
        "token_log_probs": output.token_log_probs,
        "attention": {
            kind: [
                [[[round(w, 4) for w in row] for row in head] for head in layer.tolist()]
                for layer in layers
            ]
            for kind, layers in output.maps.items()
            if kind in maps
        },
    }


def _tell_unknown(unknown: Counter[str]) -> None:
    """Says once what of the sources the model has no tokens for, the most frequent first."""
    if unknown:
        names = name_some(name for name, _ in unknown.most_common())
        typer.echo(f"regard: the model does not know {names}: it read <unk> there.", err=True)


@contextmanager
def _trace_writer(path: Path | None) -> Iterator[Callable[[api.Output], None]]:
    """What writes a line for each answer to a source, or nothing where there is no file."""
    if path is None:
        yield lambda output: None
        return
    kept = 0
    try:
        with incremental_output(path) as write:

            def keep(output: api.Output) -> None:
                nonlocal kept
                for answer in (output, *output.alternatives):
                    line = storage.dumps(answer.trace) + "\n"
                    write(line.encode("utf-8", "backslashreplace"))
                    kept += 1

            yield keep
    except BaseException:
        if kept:
            typer.echo(f"{path} is as it was: {kept:,} traces were not kept", err=True)
        raise


def _split(words: list[Path]) -> tuple[list[Path], list[str]]:
    """Folders and bundled models are runs; what comes after them is the file, or .npy files."""
    runs = list(words)
    files: list[str] = []
    while len(runs) > 1 and runs[-1].suffix == SUFFIX and not bundled_models.is_run(runs[-1]):
        files.insert(0, str(runs.pop()))
    if files:
        return runs, files
    *folders, last = words
    if folders and (str(last) == "-" or not bundled_models.is_run(last)):
        return folders, [str(last)]
    return words, ["-"]
