"""What an export needs, and the error where it has not got it."""

from importlib.util import find_spec
from typing import Final

from regard.errors import RegardError

#: what makes graphs and what runs them
PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")


class ExportError(RegardError):
    """A model cannot be exported, or what was written does not say what the model says."""


def check_installed() -> None:
    """Raises where a package of the extra is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ExportError(
            f"an export to onnx must have {', '.join(PACKAGES)}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed: pip install 'regard[onnx]'."
        )
