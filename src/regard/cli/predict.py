"""`regard predict`: predictions for the lines of a file."""

import csv
import io
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from regard import api
from regard.api import bundled_models
from regard.api.tables import answer_row
from regard.atomic_files import atomic_output, check_output, incremental_output
from regard.cli.commands import PredictArgs
from regard.cli.console import note, one_line, refuse
from regard.cli.input_lines import InputLines, is_media, warn_if_bare
from regard.cli.jobs import run_shards
from regard.data import lazy_pyarrow as arrow
from regard.data.frame_tables import SUFFIX
from regard.data.text_files import ROW_FILES
from regard.decoding_options import DecodingOptions, given_options
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.pretrained import PretrainedModel, is_pretrained
from regard.seeing.trace import storage
from regard.symbols import UNK
from regard.tasks import Forecast, NumberPrediction
from regard.tasks.inputs.text import name_some

#: endings of files that are tables
SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet")
#: further labels of a row, which have probabilities without being asked for
LABELS: Final = 3


def predict(args: PredictArgs) -> None:
    """Predict the target of each line of a file: one prediction per line on stdout."""
    path = args.output
    is_table = path is not None and path.suffix.lower() in SUFFIXES and not path.is_dir()
    table = path if is_table else None
    if path is not None and table is None:
        if path.suffix.lower() in ROW_FILES and not path.is_dir():
            rule = f"end in {', '.join(SUFFIXES)}"
            raise ArgumentError("-o", rule, repr(str(path)), "choose one of these")
        return _predict_shards(args, path)
    fix = "name the folder for the answers with -o"
    refuse("stand beside -o", fix, ray=args.ray, workers=args.workers)
    if table is not None:
        refuse("be left out where -o names a table", jsonl=args.as_jsonl)
        check_output(table)
    folders, files = _split(args.runs)
    how = {"device": args.device, "precision": args.precision}
    model = api.load(*folders, **how)
    lines = InputLines(
        files, model, max_chars=args.max_chars, skip_bad=args.skip_bad, columns=args.columns
    )
    read: deque[Any] = deque()

    def sources() -> Iterator[Any]:
        """Yield the sources; a table has them, or their numbers, beside the answers."""
        for number, source in enumerate(lines, start=1):
            read.append(source if isinstance(source, str) else number)
            yield source

    outputs, maps = _outputs(model, sources(), _batch_size(args.batch, files), args)
    several = args.decoding["num_samples"] or args.decoding["nbest"]
    rows: list[dict[str, Any]] = []
    unknown: Counter[str] = Counter()
    with _trace_writer(args.trace) as write_traces:
        merged: Iterator[api.Output | DataError] = lines.merge_errors(outputs)
        for number, answer in enumerate(merged, start=1):
            source = None
            if not isinstance(answer, DataError):
                write_traces(answer)
                unknown.update(answer.unknown)
                source = read.popleft()
            if table is not None:
                rows += _answer_rows(model, source, answer, several - 1 or LABELS)
            elif isinstance(answer, NumberPrediction | Forecast):
                sys.stdout.write(answer.printed(as_json=args.as_jsonl))
            elif args.as_jsonl:
                sys.stdout.write(_json(answer, maps))
            else:
                sys.stdout.write(_text(number, answer, several > 1, args.chat))
            sys.stdout.flush()
    if table is not None:
        _write_table(table, rows)
        note(message("predict.table", path=table, count=len(rows)))
    if unknown:
        names = name_some(name for name, _ in unknown.most_common())
        note(message("predict.unknown", names=names))
    if lines.bad.total:
        note(str(lines.bad))
    return None


def _outputs(
    model: Any, sources: Iterator[Any], batch: int | None, args: PredictArgs
) -> tuple[Iterator[api.Output], Collection[str]]:
    """Return the outputs of a model, and the kinds of maps that JSON has of them."""
    options = args.decoding | given_options(beam=args.beam)
    options |= {"attention": args.as_jsonl or args.trace is not None}
    if isinstance(model, PretrainedModel):
        refuse("be left out for a model of transformers", prefix=args.prefix)
        found = model.predict(sources, chat=args.chat, batch=batch or api.BATCH, **options)
        return found, model.shown_maps
    refuse("be left out for a run", chat=args.chat)
    maps = model.task.input.facts.maps
    outputs = model.predict(
        warn_if_bare(model, sources),
        kinds=None if args.trace is not None else maps,
        batch=batch,
        prefix=None if args.prefix is None else [_prefix_ids(model, args.prefix)],
        **options,
    )
    return outputs, maps


def _predict_shards(args: PredictArgs, output: Path) -> None:
    """Predict the sources of shards into a folder."""
    refuse(
        "be left out where -o names a folder for shards",
        prefix=args.prefix,
        jsonl=args.as_jsonl,
        trace=args.trace,
        chat=args.chat,
        skip_bad=args.skip_bad,
    )
    options = args.decoding | given_options(beam=args.beam)
    DecodingOptions(**options)  # raises before workers start
    runs = [word for word in args.runs if bundled_models.is_run_folder(word)] or args.runs[:1]
    inputs = [str(word) for word in args.runs[len(runs) :]]
    if not inputs or args.runs[: len(runs)] != runs:
        fix = "name a file, a folder or a quoted pattern after the runs, as in 'in/*.txt'"
        raise ArgumentError("INPUT", "follow the runs where -o is given", "missing", fix)
    run_shards(
        args, runs, inputs, output, options=options, batch=args.batch, max_chars=args.max_chars
    )


def _batch_size(given: int | None, files: list[str]) -> int | None:
    """Return the batch size that was given; 1 for sources typed in a terminal, or None."""
    typed = files == ["-"] and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        note(message("predict.typed"))
    return 1 if given is None and typed else given


def _prefix_ids(model: api.Model, prefix: str) -> list[int]:
    """Return the tokens that every prediction begins with."""
    if not model.task.has_sources:
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


def _text(number: int, output: api.Output | DataError, several: bool, chat: bool) -> str:
    """Return the lines of a source: its prediction, or a row for each of several.

    Columns of a row are the number of the source, the rank, the score and the text, separated by
    tabs. A source without a prediction keeps its place: an empty line, or a row with the score nan.
    """
    if isinstance(output, DataError):
        return f"{number}\t1\tnan\t\n" if several else "\n"
    if not several:
        return one_line(_shown_text(output, chat)) + "\n"
    ranked = enumerate((output, *output.alternatives), start=1)
    return "".join(
        f"{number}\t{rank}\t{answer.score:.4f}\t{one_line(_shown_text(answer, chat))}\n"
        for rank, answer in ranked
    )


def _shown_text(output: api.Output, chat: bool) -> str:
    """Return the output; that of a language model with what it continues, but for a chat.

    Several labels have the probability of each beside them.
    """
    shares = output.probabilities
    if shares.exclusive:
        return output.text if chat else output.whole_text
    return ", ".join(f"{label} {shares[label]:.2f}" for label in output.tokens)


def _json(output: api.Output | DataError, maps: Collection[str]) -> str:
    """Return the line of a source as a JSON object."""
    if isinstance(output, DataError):
        return json.dumps({"text": "", "error": str(output)}) + "\n"
    shares = {label: round(share, 6) for label, share in output.probabilities.items()}
    found = {
        **_as_object(output, maps),
        "src_tokens": output.src_tokens,
        **({"probabilities": shares} if shares else {}),
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


@contextmanager
def _trace_writer(path: Path | None) -> Iterator[Callable[[api.Output], None]]:
    """Yield a function that writes the traces of an output; it does nothing if there is no path."""
    if path is None:
        yield lambda output: None
        return
    written = 0
    try:
        with incremental_output(path) as write:

            def write_traces(output: api.Output) -> None:
                nonlocal written
                for one in (output, *output.alternatives):
                    line = storage.dumps(one.trace) + "\n"
                    write(line.encode("utf-8", "backslashreplace"))
                    written += 1

            yield write_traces
    except BaseException:
        if written:
            typer.echo(message("predict.not-kept", path=path, count=written), err=True)
        raise


def _is_source(path: Path) -> bool:
    """Return whether a file is a source itself: a table of vectors, a picture or a recording."""
    own = path.suffix == SUFFIX or is_media(str(path))
    return own and not bundled_models.is_run(path)


def _split(words: list[Path]) -> tuple[list[Path], list[str]]:
    """Split the arguments into run folders or bundled models, and the files after them."""
    runs = list(words)
    files: list[str] = []
    while len(runs) > 1 and _is_source(runs[-1]):
        files.insert(0, str(runs.pop()))
    if files:
        return runs, files
    *folders, last = words
    if folders and last.is_dir() and not bundled_models.is_run_folder(last):
        below = sorted(path for path in last.rglob("*") if _is_source(path))
        if not below and not is_pretrained(last):
            reason, fix = "a folder must hold pictures, recordings or .npy files", "name a file"
            raise DataError(str(last), None, f"{reason}, but this one has none", fix)
        return (folders, list(map(str, below))) if below else (words, ["-"])
    if folders and (str(last) == "-" or not bundled_models.is_run(last)):
        return folders, [str(last)]
    return words, ["-"]


def _answer_rows(model: Any, source: Any, output: Any, others: int) -> list[dict[str, Any]]:
    """Return source, answer, confidence and alternatives; of a forecast, a row for each time.

    A source that was left out has an error as its output, and an empty row.
    """
    if isinstance(output, DataError):
        return [{"source": None, "answer": None}]
    if isinstance(output, Forecast):
        time, *names = output.header
        rows = csv.DictReader(io.StringIO(output.text))
        return [{time: row[time], **{name: float(row[name]) for name in names}} for row in rows]
    values = getattr(model, "label_values", {})
    return [{"source": source, **answer_row(output, values, others)}]


def _write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a file, in the format of its ending; lists are JSON in cells of text."""
    suffix = path.suffix.lower()
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["source", "answer"]
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    with atomic_output(path) as file:
        if suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        elif suffix == ".parquet":
            columns = {name: _column([row.get(name) for row in rows]) for name in names}
            arrow.parquet.write_table(arrow.table(columns), file)
        else:
            text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
            csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",").writerows(cells)
            text.detach()


def _column(values: list[Any]) -> Any:
    """Return a column of Arrow; of values of several types, such as labels, their texts."""
    try:
        return arrow.array(values)
    except arrow.ArrowException:
        return arrow.array([None if value is None else f"{_cell(value)}" for value in values])


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
