"""regard: sequence models that show what they look at."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from regard.version import __version__

if TYPE_CHECKING:
    from regard import masks, ops
    from regard.api import Model, Output, fit, load
    from regard.pretrained import MediaModel, PretrainedModel, generate
    from regard.seeing.capture import capture
    from regard.seeing.show import show

__all__ = [
    "MediaModel",
    "Model",
    "Output",
    "PretrainedModel",
    "__version__",
    "capture",
    "fit",
    "generate",
    "load",
    "masks",
    "ops",
    "show",
]

#: modules of the public names, which are imported on first use
HOMES: Final = {
    "MediaModel": "regard.pretrained",
    "Model": "regard.api",
    "Output": "regard.api",
    "PretrainedModel": "regard.pretrained",
    "capture": "regard.seeing.capture",
    "fit": "regard.api",
    "generate": "regard.pretrained",
    "load": "regard.api",
    "show": "regard.seeing.show",
}


def __dir__() -> list[str]:
    """List the public names, for `dir` and for completion."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name in ("masks", "ops"):
        return import_module(f"regard.{name}")
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
