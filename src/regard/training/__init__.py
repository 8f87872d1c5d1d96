"""Training: from a config and pairs to a run folder."""

from regard.training.config import Config, make_config, parse_overrides, read_toml
from regard.training.run_folder import RunError, RunFolder, Saved
from regard.training.start import resume_run, start_run

__all__ = [
    "Config",
    "RunError",
    "RunFolder",
    "Saved",
    "make_config",
    "parse_overrides",
    "read_toml",
    "resume_run",
    "start_run",
]
