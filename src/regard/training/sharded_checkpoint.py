"""Files of sharded checkpoints, written by all processes and read by any number of them.

torch.distributed.checkpoint writes one safetensors file for each process, with the place of each
part in its tensor, and reads a state back into tensors that are sharded in another way, or whole.
"""

import os
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from regard.atomic_files import file_checksum, fsync_folder
from regard.errors import RegardError
from regard.training.distributed import Processes
from regard.training.optimization import TensorFacts


class ShardedTensors(NamedTuple):
    """Tensors in the files of a folder, which are read when they are needed."""

    folder: Path

    def facts(self) -> dict[str, TensorFacts]:
        """Return shape and type of each tensor, by name."""
        found = self._reader().read_metadata().state_dict_metadata
        return {
            name: TensorFacts(about.size, about.properties.dtype)
            for name, about in found.items()
            if isinstance(about, TensorStorageMetadata)
        }

    def read_into(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Fill tensors of the saved shapes, each process the parts that it has; returns them."""
        with warnings.catch_warnings():
            # each process reads for itself, so that an error in one is not waited for by others
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=self._reader(), no_dist=True)
        return tensors

    def read(self) -> dict[str, Tensor]:
        """Return all tensors, whole."""
        return self.read_into({n: torch.empty(s, dtype=t) for n, (s, t) in self.facts().items()})

    def _reader(self) -> HuggingFaceStorageReader:
        return HuggingFaceStorageReader(str(self.folder))


def verify_shards(folder: Path, checksums: Mapping[str, str]) -> None:
    """Raise ValueError unless a folder has these files and no others, each with its checksum."""
    if folder.is_symlink() or not folder.is_dir():
        raise ValueError(f"{folder.name} is not a folder")
    if (found := set(os.listdir(folder))) != set(checksums):
        differ = min(found ^ set(checksums))
        raise ValueError(f"{differ} is {'not its own' if differ in found else 'missing'}")
    for name, checksum in checksums.items():
        file = folder / name
        if file.is_symlink() or not file.is_file():
            raise ValueError(f"{name} is not a regular file")
        if file_checksum(file) != checksum:
            raise ValueError(f"{name} does not match its checksum")


#: moves the written folder to its place, given the checksums of its files
Seal = Callable[[Path, dict[str, str]], None]


@final
class ShardWriter:
    """Writes the shards of all processes beside the training, one checkpoint at a time.

    Each process copies its parts to the host, and a thread writes the copies. When the files of all
    are on the disk, the first process seals them. The threads have a process group of their own, so
    that they do not meet the messages of the training.

    Args:
        folder: of the checkpoints.
        processes: those that write.
    """

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.group = dist.new_group(backend="gloo")
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, name: str, tensors: Mapping[str, Tensor], seal: Seal) -> None:
        """Begin to write tensors; all processes must call it, after `wait`."""
        copies = {n: tensor.detach().to("cpu", copy=True) for n, tensor in tensors.items()}

        def work() -> None:
            try:
                self._write(name, copies, seal)
            except BaseException as error:
                self._error = error

        # a daemon does not keep a process alive whose training has failed
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def wait(self) -> bool:
        """Wait for the last checkpoint, and return whether there was one to wait for.

        Raises RegardError if it could not be written.
        """
        if self._thread is None:
            return False
        self._thread.join()
        self._thread, error = None, self._error
        if error is not None:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise RegardError(
                f"all processes must be able to write checkpoints to {self.folder}, but one is not "
                f"({reason}): check that its disk has room and is the same for all of them, and go "
                f"on with `regard train --resume`."
            ) from error
        return True

    def _write(self, name: str, tensors: dict[str, Tensor], seal: Seal) -> None:
        part = self.folder / f".{name}.0.part"
        if self.processes.is_first:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        dist.barrier(self.group)
        writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
        save(dict(tensors), storage_writer=writer, process_group=self.group)
        files = sorted(os.listdir(part))[self.processes.rank :: self.processes.count]
        mine = {file: file_checksum(part / file) for file in files}
        found: list[dict[str, str]] = [{}] * self.processes.count
        dist.all_gather_object(found, mine, group=self.group)
        if self.processes.is_first:
            fsync_folder(part)
            seal(part, {file: checksum for each in found for file, checksum in each.items()})
