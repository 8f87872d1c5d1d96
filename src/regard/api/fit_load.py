"""`fit` and `load`: train a model, or load trained ones."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from regard import device as devices
from regard import extras
from regard.api import bundled_models
from regard.api.evaluate_pairs import check_pairs, pair_row
from regard.api.model import Model
from regard.api.tables import (
    choose_named,
    column_type,
    pair_with,
    target_settings,
    write_labels,
)
from regard.data.file_formats import ALL, JOINED, left_out
from regard.errors import ArgumentError
from regard.messages import message
from regard.models.int8 import int8_copy, int8_engine
from regard.ops.check import check_choice
from regard.pretrained import (
    PretrainedModel,
    fetch,
    is_hub_name,
    is_pretrained,
)
from regard.pretrained.folder import is_heard
from regard.tasks.inputs.base import is_table
from regard.training import RunFolder
from regard.training.run_folder import split_step

#: types of the weights that a model can answer with; int8 is quantised from 32 bits
PRECISIONS: Final = {
    "auto": torch.float32,
    "32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.float32,
}
#: what computes a model of transformers
ENGINES: Final = ("transformers", "regard")


def load(
    *runs: str | Path,
    device: str = "auto",
    precision: str = "32",
    engine: str = "transformers",
) -> Model | PretrainedModel:
    """Load a model: a `Model` of a run, an ensemble of several, or a model of transformers.


    Args:
        runs: run folders, or names of bundled models, as "g2p", or RUN@STEP for the weights that a
            run had at a step of its checkpoints or best evaluations; or one folder that
            `save_pretrained` of transformers wrote, or one name of the Hugging Face hub, as
            "organisation/model".
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: type of the weights: "32", which "auto" stands for; "bf16", which is faster
            where the chip supports it; or "int8" on a CPU, which is faster where the chip has
            instructions for it. Both may change an output if two are almost equally likely, see
            `regard evaluate --precision`. The files of the run stay as they are.
        engine: of a model of transformers: "transformers", or "regard" to import it into our own
            layers, as `import_run` does; raises ImportRefusedError for a model that they do not
            compute. Models that read recordings are always imported.

    Examples:
        >>> model = regard.load("g2p")
        >>> model("attention").text
        'AH T EH N SH AH N'
    """
    one = _checked(runs[0]) if len(runs) == 1 else None
    of_run = one is None or split_step(one)[1] is not None
    folder = None if of_run or one is None else find_pretrained(one)
    if folder is None:
        return load_run(*runs, device=device, precision=precision)
    check_choice("engine", engine, ENGINES)
    if engine == "regard" or is_heard(folder):
        return load_run(folder, device=device, precision=precision)
    if str(precision) == "int8":
        raise ArgumentError(
            "precision", "be 32 or bf16 for a model of transformers", "int8", "use one of them"
        )
    return PretrainedModel.load(folder, devices.pick(device), _dtype(precision))


def load_own(run: str | Path, *, device: str = "auto", precision: str = "32") -> Model:
    """Load a model in our own layers: a run, or a model of transformers that is imported."""
    found = load(run, device=device, precision=precision, engine="regard")
    assert isinstance(found, Model)
    return found


def find_pretrained(name: str | Path) -> Path | None:
    """Return the folder of a model of transformers, fetched from the hub if need be.

    None for a run, a bundled model, and what does not exist.
    """
    path = Path(name)
    if path.is_dir():
        return path if is_pretrained(path) else None
    asks_hub = is_hub_name(name) and str(name) not in bundled_models.names()
    if path.exists() or not asks_hub or not extras.is_installed("transformers"):
        return None
    return fetch(str(name))


def load_run(*runs: str | Path, device: str = "auto", precision: str = "32") -> Model:
    """Load the model of a run; of several, their ensemble; see `load`."""
    if not runs:
        raise ArgumentError("runs", "be one folder or more", "missing", "name a run folder")
    dtype = _dtype(precision)
    where = devices.pick(device)
    named = [split_step(_checked(run)) for run in runs]
    folders = [bundled_models.find(name) for name, _ in named]
    if str(precision) == "int8":
        if where.type != "cpu":
            fix = "give device='cpu', or --device cpu"
            raise ArgumentError("precision", "be 32 or bf16 on a GPU", "int8", fix)
        int8_engine()  # raises unless this chip and build of torch have int8 products
    saved = [
        RunFolder(folder).load(where, _weights(folder, step))
        for folder, (_, step) in zip(folders, named, strict=True)
    ]
    for run in saved:
        run.model.to(dtype)
    if str(precision) == "int8":
        saved = [run._replace(model=int8_copy(run.sequence_model)) for run in saved]
    return Model(saved, folders, where)


def _weights(folder: Path, step: int | None) -> dict[str, torch.Tensor] | None:
    if step is None:
        return None
    from regard.training.checkpoint import weights_of_step  # imports what only training needs

    return weights_of_step(RunFolder(folder), step)


def _dtype(precision: str) -> torch.dtype:
    if str(precision) not in PRECISIONS:
        raise ArgumentError(
            "precision", f"be one of {', '.join(PRECISIONS)}", repr(precision), "the default is 32"
        )
    return PRECISIONS[str(precision)]


def _checked(run: Any) -> str | Path:
    if isinstance(run, str | Path):
        return run
    rule = "be a folder, or the name of a bundled model"
    several = isinstance(run, list | tuple)
    fix = "name several one after another, as in load(*runs)" if several else 'as in load("runs/x")'
    raise ArgumentError("run", rule, repr(run), fix)


def fit(
    pairs: str | Path | Iterable[Any],
    y: Any = None,
    preset: str | None = None,
    *,
    target: str | None = None,
    source: str | Sequence[str] | None = None,
    output: str | Path | None = None,
    search: int | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Model:
    """Train a model and return it.

    Args:
        pairs: a file; a table of pandas, polars, pyarrow or datasets; tuples of source and target,
            or dictionaries; for a language model, texts. A source may be vectors: an array, a
            tensor or lists, (frames, features). With `y`, sources alone: a list of texts, or an
            array of pictures (n, height, width) of bytes, (n, height, width, channels), or of
            frames (n, frames, features).
        y: the targets, if they are given apart: labels, numbers or texts. Floats are numbers to
            predict, and so are integers of which few come again; other targets that come again are
            labels.
        preset: the model, by name; by default that which suits the settings, mostly "bahdanau". It
            may stand second, where no `y` is given.
        target: the column of the targets in a table or in dictionaries.
        source: that of the sources; two are a passage and a question. Columns that are not named
            are chosen as those of files are.
        output: the run folder; a temporary one if None, which `Model.save` copies.
        search: trials of a search for rate, dropout, smoothing, width and batch: the first has the
            settings as they are, the best is returned, and `minutes` are those of all.
        quiet: whether to show nothing.
        settings: those of `regard.training.Config`, and sizes of the preset: `steps=2000`, ...

    Examples:
        >>> pairs = [("ab", "b a"), ("abc", "c b a"), ("bc", "c b"), ("ca", "a c")] * 5
        >>> model = regard.fit(pairs, "bahdanau", size="tiny", epochs=1, quiet=True)
        >>> model.config.preset, model.config.epochs
        ('bahdanau', 1)
        >>> texts, labels = [f"{n} and {n}" for n in range(60)], [0, 1, 2] * 20
        >>> regard.fit(texts, labels, size="tiny", steps=1, quiet=True).classes_.tolist()
        [0, 1, 2]
    """
    # imports libraries that only training needs
    from regard.training import new_config, start_run
    from regard.training.reporting import StderrConsole, say
    from regard.training.search import start_search

    begin = start_run if search is None else partial(start_search, trials=search)
    if isinstance(y, str):
        y, preset = None, y
    if preset is not None:
        settings["preset"] = preset
    folder = Path(tempfile.mkdtemp(prefix="regard-")) / "run" if output is None else Path(output)
    device = str(settings.get("device", "auto"))
    if isinstance(pairs, str | Path):
        begin(new_config({"data": str(pairs), **settings}), folder, quiet=quiet)
        return load_run(folder, device=device)
    rows, columns, targets = _examples(pairs, y, source, target, settings)
    one_named = (source is None) != (target is None)
    if columns is not None and columns[0] != ALL and one_named:
        told = {"src": columns[0], "tgt": columns[1], "option": f"source={columns[0]!r}"}
        used = {*columns[0].split(JOINED), columns[1]}
        rest = left_out([name for name in map(str, rows[0]) if name not in used])
        say(StderrConsole(quiet=quiet), message("data.chosen", file="table", **told) + rest)
    begin(new_config(settings), folder, pairs=rows, quiet=quiet)
    model = load_run(folder, device=device)
    if model.task.labels:
        model.label_values = write_labels(folder, targets)
        model.label_types = column_type(pairs, columns)
    return model


def _examples(
    pairs: Any,
    y: Any,
    source: str | Sequence[str] | None,
    target: str | None,
    settings: dict[str, Any],
) -> tuple[list[Any], Sequence[str] | None, list[Any]]:
    """Return examples, their columns if these have names, and the targets if these are known.

    Settings that follow from the types of the examples are added.
    """
    asked = target is not None or source is not None
    if y is not None:
        if asked:
            name = repr(source if target is None else target)
            raise ArgumentError("a column", "be left out beside y", name, "leave one of them out")
        if getattr(pairs, "ndim", 0) == 3 and str(pairs.dtype).endswith("uint8"):
            settings.setdefault("src_tokenizer", "pictures")
        rows = pair_with(None, pairs, y)
        targets = [pair[1] for pair in rows]
        settings |= target_settings(targets, settings)
        return rows, None, targets
    rows = [*map(pair_row, check_pairs(pairs))]
    columns = settings.get("columns")
    columns = [*map(str.strip, columns.split(","))] if isinstance(columns, str) else columns
    named = bool(rows) and isinstance(rows[0], Mapping)
    if columns is None and asked:
        settings["columns"] = columns = choose_named(rows, source, target)
    elif columns is None and named and is_table(pairs):
        columns = choose_named(rows, None, None)
    if columns and columns[0] == ALL and source is not None:
        kept = [*([source] if isinstance(source, str) else map(str, source)), columns[1]]
        rows = [{name: row[name] for name in kept} for row in rows]
    targets = [row.get(columns[1]) for row in rows] if named and columns else []
    settings |= target_settings(targets, settings) if asked else {}
    return rows, columns, targets
