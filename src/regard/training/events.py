"""TensorBoard events, when they are asked for."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError
from regard.training.config import Config


def check_events(config: Config) -> None:
    """Raises where events are asked for and cannot be written."""
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ArgumentError(
            "tensorboard",
            "be false where its package is not installed",
            "true",
            "install it with `pip install 'regard[tensorboard]'`, or leave the setting out",
        )


class Events:
    """Writes the numbers of each evaluation to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # events of steps that a resumed run takes again are hidden
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a line of metrics.jsonl."""
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()


def open_events(config: Config, folder: Path, step: int) -> Events | None:
    """Where to write events to, or None if they are not asked for."""
    return Events(folder, step) if config.tensorboard else None
