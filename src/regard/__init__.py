"""regard: sequence models that show what they look at."""

from typing import TYPE_CHECKING, Any

from regard import masks, ops
from regard.version import __version__

if TYPE_CHECKING:
    from regard.api import Model, Output, fit, load
    from regard.seeing.capture import capture
    from regard.seeing.show import show

__all__ = ["Model", "Output", "__version__", "capture", "fit", "load", "masks", "ops", "show"]


def __getattr__(name: str) -> Any:
    """What trains and predicts is imported when it is first used: attention alone needs little."""
    if name in ("Model", "Output", "fit", "load"):
        from regard import api

        return getattr(api, name)
    if name == "capture":
        from regard.seeing.capture import capture

        return capture
    if name == "show":
        from regard.seeing.show import show

        return show
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
