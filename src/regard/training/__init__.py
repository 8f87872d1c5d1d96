"""Training of a model: from settings and data to a run folder."""

from typing import TYPE_CHECKING, Any

from regard.training.config import Config, make_config, parse_overrides, read_toml
from regard.training.run_folder import RunError, RunFolder, Saved

if TYPE_CHECKING:
    from regard.training.fine_tuning import new_config
    from regard.training.run import rehearse_run, resume_run, start_run

__all__ = [
    "Config",
    "RunError",
    "RunFolder",
    "Saved",
    "make_config",
    "new_config",
    "parse_overrides",
    "read_toml",
    "rehearse_run",
    "resume_run",
    "start_run",
]


def __getattr__(name: str) -> Any:
    """Import the trainer when it is first used, since using a model does not need it."""
    if name == "new_config":
        from regard.training.fine_tuning import new_config

        return new_config
    if name in ("rehearse_run", "resume_run", "start_run"):
        from regard.training import run

        return getattr(run, name)
    raise AttributeError(f"module 'regard.training' has no attribute {name!r}")
