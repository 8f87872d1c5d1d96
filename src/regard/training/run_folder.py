"""The folder of a run: everything that is needed to use a model, or to resume its training.

metrics.jsonl and report.jsonl grow by a row at each evaluation. A checkpoint records their lengths
and checksums, so that every earlier row is verified when the run is resumed, and later rows, whole
or cut off, are known by their place.

Files of weights with a checksum, verified against the model that they are for.

The checksum is in the metadata of the safetensors header and covers every other byte of the file,
so that weights and checksum are replaced together, in one rename.

The settings of an untrusted folder may name any size in a few bytes. Memory is therefore allocated
only for weights that the file really has: the shapes in its header are compared with those of the
model, which is first built on the meta device.

Matrices may be stored in int8: a row is 8-bit integers and one float32 scale, the largest magnitude
of the row divided by 127, so that rounding changes a weight by half a scale at most. They are only
stored so; `read_weights` returns float32, and a model computes as ever.
"""

import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from regard import safe_read
from regard.atomic_files import content_checksum, json_checksum, locked_folder, write_atomic
from regard.data import SourceEncoder, TargetEncoder, Tokenizer, load_target
from regard.device import WithoutDraws, shapes_only
from regard.errors import ArgumentError, RegardError
from regard.imported import ImportedFolder
from regard.models import AnyModel, SequenceModel
from regard.models.protocol import require_sequence_model
from regard.pretrained import is_pretrained
from regard.tasks import Task, load_encoder, open_task
from regard.training.adapters import build_network
from regard.training.config import Config, make_config
from regard.version import __version__

WeightShapes = Mapping[str, tuple[int, ...]]

#: maximum number of tensors; a model of a hundred layers has some thousands
MAX_TENSORS: Final = 10_000
MAX_HEADER: Final = 1 << 22
#: dtypes of weights, as safetensors names them
DTYPES: Final = ("F64", "F32", "F16", "BF16")
INT8: Final = "I8"
#: maximum value of a setting that is not the size of a weight, such as the width of a window
MAX_FREE: Final = 1_000_000
FREE: Final = ("half_width", "window", "max_distance")
#: a header begins with its length in eight bytes, and metadata come first in it
HEAD: Final = re.compile(rb'.{8}\{"__metadata__":\{"checksum":"([0-9a-f]{8})"\}', re.DOTALL)
#: placeholder of the checksum while it is computed
BLANK: Final = b"0" * 8

#: end of the name of the scales of a matrix; no parameter of a module can be called so
SCALES: Final = ":scales"


class UnusableWeightsError(ValueError):
    """Weights that are damaged or of another model: says why."""


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors with their checksum to a file, atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    content = bytearray(save(plain, metadata={"checksum": BLANK.decode()}))
    head = HEAD.match(content)
    assert head is not None, "safetensors writes metadata first"
    start, end = head.span(1)
    content[start:end] = b"%08x" % zlib.crc32(content)
    write_atomic(path, bytes(content))


def read_weights(path: Path, *, inside: Path | None = None) -> dict[str, Tensor]:
    """Return the tensors of a file, which must be inside the folder `inside` if given.

    Those that are stored in int8 become float32. Raises UnusableWeightsError if the file does not
    match its checksum. A file without metadata, like that of an older run, has no checksum.
    """
    with safe_read.open_regular(path, inside=inside) as file:
        _check_memory(os.fstat(file.fileno()).st_size)
    content = safe_read.read_bytes(path, None, inside=inside)
    head = HEAD.match(content)
    if head is not None:
        start, end = head.span(1)
        view = memoryview(content)
        found = zlib.crc32(view[end:], zlib.crc32(BLANK, zlib.crc32(view[:start])))
        if found != int(head[1], 16):
            raise UnusableWeightsError("its content does not match its checksum")
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise UnusableWeightsError(_first_line(error)) from None
    if head is None and b'"__metadata__"' in content[8 : 8 + int.from_bytes(content[:8], "little")]:
        raise UnusableWeightsError("its header has no checksum")
    try:
        return dequantize_rows(tensors)
    except ValueError as error:
        raise UnusableWeightsError(str(error)) from None


def read_shapes(path: Path, *, inside: Path) -> WeightShapes:
    """Return the shape of each weight of a safetensors file; reads only its header."""
    with safe_read.open_regular(path, inside=inside) as file:
        size, claimed = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size < 8 or not 2 <= claimed <= min(MAX_HEADER, size - 8):
        raise UnusableWeightsError(f"its header claims {claimed:,} bytes of {size:,}")
    _check_memory(size)
    try:
        with safe_read.open_tensors(path, inside=inside) as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            dtypes = {name: str(one.get_dtype()) for name, one in slices.items()}
            shapes = {name: tuple(one.get_shape()) for name, one in slices.items()}
    except SafetensorError as error:
        raise UnusableWeightsError(_first_line(error)) from None
    odd = [name for name, dtype in dtypes.items() if dtype not in (*DTYPES, INT8)]
    if odd:
        raise UnusableWeightsError(f"{odd[0]!r:.80} does not hold floating point numbers")
    if len(shapes) > MAX_TENSORS:
        raise UnusableWeightsError(
            f"it has {len(shapes):,} tensors, and {MAX_TENSORS:,} is the limit"
        )
    try:
        return weight_shapes(shapes, {name for name, dtype in dtypes.items() if dtype == INT8})
    except ValueError as error:
        raise UnusableWeightsError(str(error)) from None


def check_sizes(settings: Mapping[str, object], shapes: WeightShapes) -> None:
    """Raise UnusableWeightsError if a size or number of layers exceeds all sizes in the file."""
    longest = max((axis for shape in shapes.values() for axis in shape), default=0)
    most = max(longest, len(shapes))
    for name, value in settings.items():
        no_table = name == "max_positions" and settings.get("positions") != "learned"
        limit = MAX_FREE if name in FREE or no_table else most
        if isinstance(value, int) and value > limit:
            raise UnusableWeightsError(
                f"config.json asks for {name}={value!r:.80}, and the largest size that they have "
                f"is {limit:,}"
            )


def build_checked(build: Callable[[], nn.Module], shapes: WeightShapes) -> None:
    """Build a model on the meta device; raises UnusableWeightsError if its shapes differ."""
    try:
        with shapes_only():
            model = build()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise UnusableWeightsError(_first_line(error)) from None
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() | shapes.keys()):
        if expected.get(name) != shapes.get(name):
            raise UnusableWeightsError(
                f"{name!r:.80} is {_shown(shapes.get(name))} in the file and "
                f"{_shown(expected.get(name))} in the model"
            )


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"


def physical_memory() -> int:
    """Return the bytes of memory of this machine, or 2**62 if unknown."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(size: int) -> None:
    """Raise UnusableWeightsError if a file, perhaps sparse, is larger than the memory."""
    memory = physical_memory()
    if size > memory:
        raise UnusableWeightsError(
            f"they take {size / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f} GB of memory"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200].rstrip(". ")


def dequantize_rows(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of stored tensors: float32 for each in int8, all others as they are.

    Raises ValueError as `weight_shapes` does.
    """
    int8 = {name for name, tensor in stored.items() if tensor.dtype == torch.int8}
    shapes = weight_shapes({name: tuple(one.shape) for name, one in stored.items()}, int8)
    found = {name: stored[name] for name in shapes}
    for name in int8 & shapes.keys():
        scales = stored[name + SCALES].float()
        found[name] = found[name].float() * scales.view(-1, *[1] * (found[name].dim() - 1))
    return found


def weight_shapes(
    shapes: Mapping[str, tuple[int, ...]], int8: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a file, without those of their scales.

    Raises ValueError unless each tensor in int8 has a scale for each row, and scales have their
    tensor.

    Args:
        shapes: of all tensors, by name.
        int8: names of those in int8.
    """
    found = {name: shape for name, shape in shapes.items() if not name.endswith(SCALES)}
    for name in found.keys() & set(int8):
        if not shapes[name] or shapes.get(name + SCALES) != shapes[name][:1]:
            raise ValueError(f"{name!r:.80} is in int8 and lacks a scale for each of its rows")
    for name in shapes.keys() - found.keys():
        if name.removesuffix(SCALES) not in int8:
            raise ValueError(f"{name!r:.80} are scales of no tensor in int8")
    return found


#: format of config.json; 2 since some settings follow from the data
FORMAT: Final = 2
#: maximum number of bytes of config.json
MAX_CONFIG: Final = 1 << 20
#: settings of earlier versions that are not read any more, which changed training alone
GONE: Final = frozenset(
    {"bpe_dropout", "deduplicate", "encode_processes", "join_lines"}
    | {"look_ahead", "entropy", "warp", "cell_dropout"}
)
#: the report of a run, and the log that it is drawn from
REPORT: Final = ("report.html", "report.jsonl")
#: the dev set of what a model that a run starts from could do, beside the run's own
BEFORE: Final = "before"
#: the labels that are no texts, as they were given in Python
LABELS: Final = "labels.json"


#: the models of the package, each a run folder
BUNDLED: Final = Path(__file__).parents[1] / "bundled"


class RunError(RegardError):
    """A run folder lacks something, or holds something damaged."""


class Saved(NamedTuple):
    """A model with its encoders and settings."""

    model: AnyModel
    src_tokenizer: SourceEncoder
    tgt_tokenizer: TargetEncoder
    config: Config
    task: Task

    @property
    def sequence_model(self) -> SequenceModel:
        """The model; raises RegardError if it predicts numbers."""
        return require_sequence_model(self.model, "what is asked for")

    @property
    def text_target(self) -> Tokenizer:
        """The tokeniser of the targets; raises RegardError if these are numbers."""
        return self.task.target


class RunFolder:
    """The folder of a run, and the names of its files.

    Attributes:
        stopped_by: the signal after which training in this process has saved and stopped, if any.
    """

    stopped_by: int | None = None

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.json"
        self.model_file = self.path / "model.safetensors"
        self.src_tokenizer_file = self.path / "tokenizer.src.json"
        self.tgt_tokenizer_file = self.path / "tokenizer.tgt.json"
        self.calibration_file = self.path / "calibration.safetensors"
        self.metrics_file = self.path / "metrics.jsonl"
        self.card_file = self.path / "README.md"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.data = self.path / "data"
        self.search = self.path / "search"
        self.stdin_file = self.data / "stdin.tsv"
        self.sources_file = self.data / "sources.json"
        self.launch_file = self.data / "launch.json"
        self.metrics = RowLog(self.metrics_file, lambda row: row["step"])
        self.report = RowLog(self.path / REPORT[1], lambda row: row["row"]["step"])

    def check_links(self) -> None:
        """Raise RunError if a part of the run is a link that leads out of its folder.

        Files there belong to somebody else, and a run writes and removes files.
        """
        home = self.path.resolve()
        folders = [self.checkpoints, self.best, self.data, self.search]
        for part in (*folders, self.metrics.path, self.report.path, *self._made):
            if part.is_symlink() and not Path(os.path.realpath(part)).is_relative_to(home):
                raise RunError(
                    f"all parts of a run must be in its folder, but {part} is a link to "
                    f"{os.path.realpath(part)}: put a copy in its place, or choose another folder."
                )

    def create(self) -> None:
        """Make the folder; raises RunError if it cannot be written."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise RunError(
                f"the output folder must be writable, but {self.path} is not ({error.strerror}): "
                f"choose another with -o."
            ) from None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for this process, since two would mix their checkpoints and metrics."""
        busy = RunError(
            f"a run must be trained by one process, but another one is at work in {self.path}: "
            f"wait for it, or stop it."
        )
        with locked_folder(self.path, busy):
            yield

    def sweep(self) -> None:
        """Remove temporary files of a killed run."""
        for place in (self.path, self.data, self.best, self.checkpoints):
            for path in place.glob(".*"):
                if re.fullmatch(r"\..+\.\d+\.(tmp|part)", path.name) and not path.is_dir():
                    path.unlink(missing_ok=True)

    def check_new(self) -> None:
        """Raise RunError if a run has begun here, or files of the user would be overwritten."""
        if self.started:
            raise RunError(
                f"the output folder must be new, but {self.path} holds a run: go on with `regard "
                f"train --resume {self.path}`, or choose another with -o."
            )
        files = (*self._made, *self.learned, self.path / LABELS)
        taken = [path.name for path in files if os.path.lexists(path)]
        if taken:
            raise RunError(
                f"the output folder must have no other files of a run's names, but {self.path} has "
                f"{taken[0]}: choose another with -o."
            )

    def check_stdin(self) -> None:
        """Raise RunError if the run has read from stdin, and that was not saved."""
        if not self.stdin_file.exists():
            raise RunError(
                f"{self.path} must hold what the run has read from stdin, but it was stopped "
                f"before that was kept: remove the folder, and start it again."
            )

    def discard(self) -> None:
        """Remove a run that could not begin, so that its folder is free again."""
        for path in self._made:
            path.unlink(missing_ok=True)
        for folder in (self.data, self.path):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    @property
    def learned(self) -> list[Path]:
        """Files and folders that a run makes once it trains, and the card, which is the last."""
        files = [self.metrics_file, self.model_file, self.calibration_file]
        others = [self.path / name for name in (*REPORT, "tensorboard")]
        return [*files, self.checkpoints, self.best, *others, self.card_file]

    @property
    def _made(self) -> list[Path]:
        """Files that a run makes before its first step, and the card."""
        corpora = [
            self.data / f"{part}.arrow" for part in ("train", "dev", "replay", "links", BEFORE)
        ]
        notes = [path.with_name(f"{path.name}.json") for path in corpora]
        tokenizers = [self.src_tokenizer_file, self.tgt_tokenizer_file]
        read = [self.read_file(part) for part in ("train", "dev")]
        others = [self.stdin_file, self.sources_file, self.launch_file]
        others += [self.card_file, self.config_file]
        return [*tokenizers, *corpora, *notes, *read, *others]

    def read_file(self, part: str) -> Path:
        """Return the file of parsed pairs that are not encoded yet, of `train` or `dev`."""
        return self.data / f"read-{part}.arrow"

    @property
    def started(self) -> bool:
        """True if a run has begun here."""
        return self.config_file.exists()

    @property
    def finished(self) -> bool:
        """True if the run has come to its end: the card is written last."""
        return self.card_file.exists()

    def write_config(self, config: Config, *, chosen: bool = True) -> None:
        """Write the settings of the run; those that are given alone until the others are chosen."""
        settings = config.model_dump(exclude_unset=not chosen)
        record = {"format": FORMAT, "regard": __version__, "config": settings}
        record["checksum"] = json_checksum(record)
        write_atomic(self.config_file, (json.dumps(record, indent=2) + "\n").encode())

    @cached_property
    def imported(self) -> ImportedFolder | None:
        """The folder as one of transformers, if it is one; None for a run."""
        return ImportedFolder(self.path) if is_pretrained(self.path) else None

    def read_config(self) -> Config:
        """Read the settings of the run."""
        if self.imported is not None:
            return make_config(self.imported.settings)
        if not self.config_file.exists():
            trouble = "has no config.json" if self.path.is_dir() else "is no folder"
            raise RunError(
                f"{self.path} must be a run folder, but it {trouble}: give the folder that `regard "
                f"train` or `save_pretrained` of transformers has written."
            )
        content = safe_read.read_bytes(self.config_file, MAX_CONFIG, inside=self.path)
        try:
            record = safe_read.parse_json(content)
        except safe_read.InvalidJSONError as error:
            raise self._no_config(str(error)) from None
        if not isinstance(record, dict) or "format" not in record:
            raise self._no_config("it does not say which format it has")
        writer = record.get("regard")
        safe_read.check_format(self.config_file, record["format"], FORMAT, writer=writer)
        self._check_settings(record)
        settings = record.get("config")
        if not isinstance(settings, dict):
            raise self._no_config("it has no settings")
        try:
            return make_config(_with_old_defaults(settings, record["format"]))
        except ArgumentError as error:
            raise self._no_config(str(error).removesuffix(".")) from None

    def _no_config(self, reason: str) -> RunError:
        return RunError(
            f"{self.config_file} must be a run's settings, but it cannot be read ({reason}): "
            f"copy it again from where the run was made."
        )

    def _check_settings(self, record: dict[str, Any]) -> None:
        """Raise RunError if settings do not match their checksum, which those of old runs lack."""
        unknown = set(record) - {"format", "regard", "config", "checksum"}
        if unknown:
            raise self._no_config(f"it has an entry {min(unknown)!r:.80}")
        content = {name: value for name, value in record.items() if name != "checksum"}
        if "checksum" in record and json_checksum(content) != record["checksum"]:
            raise self._no_config(
                "its content does not match its checksum; whoever has edited it can remove its "
                '"checksum"'
            )

    def write_model(self, weights: Mapping[str, Tensor]) -> None:
        """Write the weights that `regard.load` reads."""
        write_weights(self.model_file, weights)

    def load(
        self, device: torch.device | str = "cpu", weights: Mapping[str, Tensor] | None = None
    ) -> Saved:
        """Load the model of this run, ready to use, with its best weights or with others."""
        if self.imported is not None:
            return load_imported(self.imported, device)
        config = self.read_config()
        if weights is None and not self.model_file.exists():
            raise RunError(
                f"{self.path} must hold model.safetensors, but it was removed, or no evaluation "
                f"has written it yet: go on with `regard train --resume {self.path}`."
            )
        task = self.read_task(config)
        model = self._checked_model(config, task, weights)
        try:
            if weights is None:
                weights = read_weights(self.model_file, inside=self.path)
        except UnusableWeightsError as error:
            raise self._no_weights(config, str(error)) from None
        if not all(bool(weight.isfinite().all()) for weight in weights.values()):
            raise self._no_weights(config, "some of them are not finite numbers")
        model.load_state_dict(weights)
        if self.calibration_file.exists():
            task.output.use_calibration(self._calibration(config))
        return Saved(model.to(device).eval(), *task.encoders, config, task)

    def read_task(self, config: Config) -> Task:
        """Return the kind of data of this run with its encoders, without loading the model."""
        if self.imported is not None:
            return open_task(config, *self.imported.encoders)
        for file in (self.src_tokenizer_file, self.tgt_tokenizer_file):
            safe_read.open_regular(file, inside=self.path).close()
        encoders = load_encoder(self.src_tokenizer_file), load_target(self.tgt_tokenizer_file)
        return open_task(config, *encoders)

    def _calibration(self, config: Config) -> Mapping[str, Tensor]:
        """Return the tensors that predictions need beside the weights."""
        try:
            return read_weights(self.calibration_file, inside=self.path)
        except UnusableWeightsError as error:
            raise RunError(
                f"{self.calibration_file} must hold the calibration of the preset {config.preset}, "
                f"but it cannot be used ({error}): copy it again, or remove it to predict without."
            ) from None

    def write_calibration(self, tensors: Mapping[str, Tensor]) -> None:
        """Write what predictions need beside the weights, if there is anything."""
        if tensors:
            write_weights(self.calibration_file, tensors)

    def _checked_model(
        self, config: Config, task: Task, weights: Mapping[str, Tensor] | None
    ) -> AnyModel:
        """Build the model of the run, if its weights have the sizes of its settings."""
        try:
            if weights is None:
                shapes = read_shapes(self.model_file, inside=self.path)
            else:
                shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
            check_sizes({**config.model, "stack": config.stack}, shapes)
            task.type.check_settings(config)
            check_sizes(task.input.describe().sizes, shapes)
            model = None if config.adapter is None else build_network(task)
            build_checked(task.build_model if model is None else lambda: model, shapes)
        except (UnusableWeightsError, ArgumentError) as error:
            raise self._no_weights(config, str(error).removesuffix(".")) from None
        with WithoutDraws():
            return task.build_model() if model is None else model

    def _no_weights(self, config: Config, reason: str) -> RunError:
        return RunError(
            f"{self.model_file} must hold the weights of the preset {config.preset}, but it "
            f"cannot be used ({reason}): copy it again, or resume the run."
        )

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        self.metrics.append(row)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all rows of metrics.jsonl; warns of damaged lines, and skips them."""
        for number in self.metrics.damaged_lines():
            warnings.warn(
                f"{self.metrics_file}, line {number} is damaged and left out", stacklevel=2
            )
        return self.metrics.rows()


def load_imported(folder: ImportedFolder, device: torch.device | str = "cpu") -> Saved:
    """Load a model of transformers; what its network has of its own is drawn at random."""
    config = make_config(folder.settings)
    task = open_task(config, *folder.encoders)
    with shapes_only():
        weights = folder.weights(task.build_model())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = task.build_model()
    if all(weight.dtype == torch.float64 for weight in weights.values()):
        model.double()
    model.load_state_dict({**model.state_dict(), **weights})
    return Saved(model.to(device).eval(), *task.encoders, config, task)


def _with_old_defaults(settings: Mapping[str, Any], version: int) -> Mapping[str, Any]:
    """Return recorded settings as they are now, with old values of defaults that have changed."""
    settings = {name: value for name, value in settings.items() if name not in GONE}
    for table in ("model", "task_options"):
        if isinstance(own := settings.get(table), dict):
            settings[table] = {name: value for name, value in own.items() if name not in GONE}
    if version < 2 and settings.get("eval_every") is None:
        return {**settings, "eval_every": "epoch"}
    return settings


def find_run(name: str | Path) -> Path:
    """Return the folder of a run: the user's own, or that of a bundled model of this name."""
    path = Path(name)
    is_bundled = len(path.parts) == 1 and RunFolder(BUNDLED / path).started
    return BUNDLED / path if is_bundled and not path.is_dir() else path


def split_step(run: str | Path) -> tuple[str | Path, int | None]:
    """Split RUN@STEP; a folder may have such a name itself."""
    name, at, step = str(run).rpartition("@")
    is_step = at and step.isascii() and step.isdecimal() and not Path(run).is_dir()
    return (name, int(step)) if is_step else (run, None)


LogRow = dict[str, Any]
#: bytes of a log; tens of thousands of evaluations with their maps have less
MAX_LOG: Final = 1 << 30


@final
class RowLog:
    """A JSONL file of evaluations.

    Args:
        path: the file.
        step_of: returns the step of a row; raises KeyError or TypeError for anything else.
    """

    def __init__(self, path: Path, step_of: Callable[[LogRow], int]) -> None:
        self.path, self.step_of = path, step_of

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row, synced to disk before a checkpoint can record it."""
        with open(self.path, "ab") as file:
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def seal(self) -> dict[str, Any] | None:
        """Return the length and the checksum of the file; None if it is missing."""
        if not self.path.exists():
            return None
        content = self._content()
        return {"bytes": len(content), "checksum": content_checksum(content)}

    def problem(self, seal: Mapping[str, Any] | None) -> str | None:
        """Return how the file differs from the seal of a checkpoint, or None."""
        if seal is None:
            damaged = self.damaged_lines()
            return f"line {damaged[0]} is not a row of it" if damaged else None
        if not self.path.exists():
            return "it is missing"
        content = self._content()
        if content_checksum(content[: seal["bytes"]]) == seal["checksum"]:
            return None
        if len(content) < seal["bytes"]:
            return f"it has {len(content)} bytes of {seal['bytes']}"
        damaged = self.damaged_lines()
        where = f"line {damaged[0]} is not a row of it" if damaged else "a row was changed"
        return f"{where}, and its content does not match its checksum"

    def cut(self, seal: Mapping[str, Any] | None, step: int) -> None:
        """Drop the rows that a resumed run will write again.

        Args:
            seal: length and checksum in the checkpoint. Without one, or if the file does not match
                it, all readable rows are kept, up to
            step: the last evaluation of the checkpoint.
        """
        if not self.path.exists():
            return
        content = self._content()
        if seal is not None and self.problem(seal) is None:
            kept = content[: seal["bytes"]]
        else:
            kept = b"".join(
                raw + b"\n"
                for _, raw, row in self.lines()
                if row is not None and self.step_of(row) <= step
            )
        if kept != content:
            write_atomic(self.path, kept)

    def lines(self) -> list[tuple[int, bytes, LogRow | None]]:
        """Return number, text and row of all lines, without a last one that was cut off; the row is
        None if a line is none."""
        if not self.path.exists():
            return []
        whole, _, _ = self._content().rpartition(b"\n")
        return [(i, raw, self._row(raw)) for i, raw in enumerate(whole.split(b"\n"), 1) if raw]

    def rows(self) -> list[LogRow]:
        """Return all readable rows."""
        return [row for _, _, row in self.lines() if row is not None]

    def damaged_lines(self) -> list[int]:
        """Return the numbers of the lines that are not rows."""
        return [number for number, _, row in self.lines() if row is None]

    def _content(self) -> bytes:
        return safe_read.read_bytes(self.path, MAX_LOG)

    def _row(self, raw: bytes) -> LogRow | None:
        try:
            row = safe_read.parse_json(raw)
            int(self.step_of(row))
        except (ValueError, KeyError, TypeError):
            return None
        return dict(row)
