"""The folder of a run: everything that is needed to use a model, or to resume its training."""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from regard import safe_read
from regard.atomic_files import json_checksum, locked_folder, write_atomic
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
from regard.training.row_log import RowLog
from regard.training.weights_file import (
    UnusableWeightsError,
    build_checked,
    check_sizes,
    read_shapes,
    read_weights,
    write_weights,
)
from regard.version import __version__

#: format of config.json
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
        self.card_file = self.path / "README.md"
        self.checkpoints = self.path / "checkpoints"
        self.best = self.path / "best"
        self.data = self.path / "data"
        self.search = self.path / "search"
        self.stdin_file = self.data / "stdin.tsv"
        self.sources_file = self.data / "sources.json"
        self.launch_file = self.data / "launch.json"
        self.metrics = RowLog(self.path / "metrics.jsonl", lambda row: row["step"])
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
            os.fspath(self.path).encode()  # safetensors opens no other names
            self.data.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except (OSError, UnicodeEncodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its name is not UTF-8"
            raise RunError(
                f"the output folder must be writable, but {self.path} is not ({reason}): choose "
                f"another with -o."
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
        files = [self.metrics.path, self.model_file, self.calibration_file]
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
            return make_config(_without_gone(settings))
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

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return all rows of metrics.jsonl; warns of damaged lines, and skips them."""
        for number in self.metrics.damaged_lines():
            warnings.warn(
                f"{self.metrics.path}, line {number} is damaged and left out", stacklevel=2
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


def _without_gone(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return recorded settings without those that are not read any more."""
    settings = {name: value for name, value in settings.items() if name not in GONE}
    for table in ("model", "task_options"):
        if isinstance(own := settings.get(table), dict):
            settings[table] = {name: value for name, value in own.items() if name not in GONE}
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
