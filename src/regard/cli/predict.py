"""`regard predict`: predictions for the lines of a file."""

import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import typer

from regard import api
from regard.api import bundled_models
from regard.atomic_files import incremental_output
from regard.cli.answer_table import LABELS, answer_rows, is_table_file, write_table
from regard.cli.console import note, one_line
from regard.cli.input_lines import InputLines, is_media, refuse_pretrained_options, warn_if_bare
from regard.cli.shard_options import refuse as refuse_options
from regard.data.frame_tables import SUFFIX
from regard.decoding_options import DecodingOptions
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.pretrained import MediaModel, PretrainedModel, PretrainedOutput, is_pretrained
from regard.seeing.trace import storage
from regard.symbols import UNK
from regard.tasks import Forecast, NumberPrediction
from regard.tasks.inputs.text import name_some

AnyOutput = api.Output | PretrainedOutput
#: maps that JSON has of a model of transformers, by its task; with --trace, all are written
SHOWN_MAPS: Final = {
    "text2text-generation": ("cross",),
    "text-generation": ("decoder-self",),
    **dict.fromkeys(
        ("fill-mask", "text-classification", "token-classification", "feature-extraction"),
        ("encoder-self",),
    ),
}


def predict(
    *,
    runs: list[Path],
    beam: int | None,
    prefix: str | None,
    replace_unk: bool,
    as_jsonl: bool,
    trace: Path | None,
    max_chars: int | None,
    skip_bad: bool,
    batch: int | None,
    output: Path | None,
    ray: str | None,
    workers: int | None,
    columns: str | None,
    id: str | None,
    format: str,
    shard_rows: int,
    chat: bool,
    allow_pickle: bool,
    precision: str,
    device: str,
    **decoding: Any,
) -> None:
    """Predict the target of each line of a file: one prediction per line on stdout."""
    table = output if output is not None and is_table_file(output) else None
    if output is not None and table is None:
        refuse: dict[str, object] = {
            "prefix": prefix,
            "jsonl": as_jsonl,
            "trace": trace,
            "chat": chat,
        }
        refuse |= {"skip_bad": skip_bad, "allow_pickle": allow_pickle}
        return _predict_shards(
            runs,
            output,
            refuse,
            options={**decoding, "replace_unk": replace_unk}
            | ({} if beam is None else {"beam": beam}),
            columns=columns,
            id=id,
            max_chars=max_chars,
            batch=api.BATCH if batch is None else batch,
            precision=precision,
            device=device,
            ray=ray,
            workers=workers,
            format=format,
            shard_rows=shard_rows,
        )
    _refuse_shard_options(ray=ray, workers=workers, id=id)
    if table is not None:
        refuse_options("where -o names a table", jsonl=as_jsonl)
    folders, files = _split(runs)
    model = api.load(*folders, device=device, precision=precision, allow_pickle=allow_pickle)
    options = decoding if beam is None else {**decoding, "beam": beam}
    lines = InputLines(files, model, max_chars=max_chars, skip_bad=skip_bad, columns=columns)
    options["attention"] = as_jsonl or trace is not None
    options["batch"] = _batch_size(batch, files)
    several = decoding["num_samples"] or decoding["nbest"]
    rows: list[dict[str, Any]] = []
    read: deque[Any] = deque()

    def sources() -> Iterator[Any]:
        """Yield the sources; a table has them, or their numbers, beside the answers."""
        for number, source in enumerate(lines, start=1):
            read.append(source if isinstance(source, str) else number)
            yield source

    outputs: Iterator[AnyOutput]
    maps: Collection[str]
    if isinstance(model, PretrainedModel | MediaModel):
        _refuse_run_options(prefix=prefix, replace_unk=replace_unk)
        maps = model.shown_maps if isinstance(model, MediaModel) else SHOWN_MAPS[model.task]
        outputs = model.predict(sources(), chat=chat, **options)
    else:
        refuse_pretrained_options(chat=chat)
        maps = model.task.input.facts.maps
        outputs = model.predict(
            warn_if_bare(model, sources()),
            kinds=None if trace is not None else maps,
            replace_unk=replace_unk,
            prefix=None if prefix is None else [_prefix_ids(model, prefix)],
            **options,
        )
    unknown: Counter[str] = Counter()
    notes: dict[str, None] = {}

    def printed(number: int, output: Any) -> str:
        """Return the lines of a source on stdout."""
        if isinstance(output, NumberPrediction | Forecast):
            return output.printed(as_json=as_jsonl)
        return _json(output, maps) if as_jsonl else _text(number, output, several > 1, chat)

    with _trace_writer(trace) as write_traces:
        merged: Iterator[AnyOutput | DataError] = lines.merge_errors(outputs)
        for number, answer in enumerate(merged, start=1):
            if not isinstance(answer, DataError):
                write_traces(answer)
                unknown.update(answer.unknown)
                notes.update(dict.fromkeys(getattr(answer, "notes", ())))
            source = None if isinstance(answer, DataError) else read.popleft()
            if table is not None:
                rows += answer_rows(model, source, answer, several - 1 or LABELS)
                continue
            text = printed(number, answer)
            sys.stdout.write(text)
            sys.stdout.flush()
    if table is not None:
        write_table(table, rows)
        note(message("predict.table", path=table, count=len(rows)))
    for sentence in notes:
        note(message("sentence", text=sentence))
    if unknown:
        names = name_some(name for name, _ in unknown.most_common())
        note(message("predict.unknown", names=names))
    if lines.bad.total:
        note(str(lines.bad))
    return None


def _predict_shards(
    words: list[Path],
    output: Path,
    refuse: dict[str, object],
    options: dict[str, Any],
    **how: Any,
) -> None:
    """Predict the sources of shards into a folder.

    Args:
        words: runs, then inputs.
        output: the folder.
        refuse: options that must not be given.
        options: of `Model.predict`.
        how: columns, device, workers, and format of the shards.
    """
    from regard.cli import jobs  # not above: it loads what reads Parquet

    refuse_options("where -o names a folder for shards", **refuse)
    # before workers start
    DecodingOptions(**{name: value for name, value in options.items() if name != "replace_unk"})
    runs = [word for word in words if bundled_models.is_run_folder(word)] or words[:1]
    inputs = [str(word) for word in words[len(runs) :]]
    if not inputs or words[: len(runs)] != runs:
        fix = "name a file, a folder or a quoted pattern after the runs, as in 'in/*.txt'"
        raise ArgumentError("INPUT", "follow the runs where -o is given", "missing", fix)
    jobs.execute(runs, inputs, output, options=options, **how)


def _refuse_shard_options(**given: object) -> None:
    """Raise for an option that only shards have."""
    for name, value in given.items():
        if value is not None:
            fix = "name the folder for the answers with -o"
            raise ArgumentError(f"--{name}", "stand beside -o", value, fix)


def _batch_size(given: int | None, files: list[str]) -> int:
    """Return the batch size that was given, or 1 for sources typed in a terminal."""
    typed = files == ["-"] and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        note(message("predict.typed"))
    return given if given is not None else 1 if typed else api.BATCH


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


def _refuse_run_options(**given: object) -> None:
    """Raise for an option that only runs have."""
    for name, value in given.items():
        if value:
            option, fix = f"--{name.replace('_', '-')}", "leave it out"
            raise ArgumentError(option, "be left out for a model of transformers", value, fix)


def _text(number: int, output: AnyOutput | DataError, several: bool, chat: bool) -> str:
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


def _shown_text(output: AnyOutput, chat: bool) -> str:
    """Return the output; that of a language model with what it continues, but for a chat."""
    if isinstance(output, PretrainedOutput) and not chat:
        return output.whole_text
    return output.text


def _json(output: AnyOutput | DataError, maps: Collection[str]) -> str:
    """Return the line of a source as a JSON object."""
    if isinstance(output, DataError):
        return json.dumps({"text": "", "error": str(output)}) + "\n"
    found = {
        **_as_object(output, maps),
        "src_tokens": output.src_tokens,
        **_probabilities(output),
        "alternatives": [_as_object(other, maps) for other in output.alternatives],
    }
    return json.dumps(found, ensure_ascii=False) + "\n"


def _probabilities(output: AnyOutput) -> dict[str, object]:
    """Return the probabilities of all labels, if the output is one."""
    found = getattr(output, "probabilities", None)
    if not found:
        return {}
    return {"probabilities": {label: round(share, 6) for label, share in found.items()}}


def _as_object(output: AnyOutput, maps: Collection[str]) -> dict[str, object]:
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
def _trace_writer(path: Path | None) -> Iterator[Callable[[AnyOutput], None]]:
    """Yield a function that writes the traces of an output; it does nothing if there is no path."""
    if path is None:
        yield lambda output: None
        return
    written = 0
    try:
        with incremental_output(path) as write:

            def write_traces(output: AnyOutput) -> None:
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
