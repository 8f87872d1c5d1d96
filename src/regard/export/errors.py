"""The error of a failed export."""

from regard.errors import RegardError


class ExportError(RegardError):
    """A model cannot be exported, or its graphs do not compute what the model computes."""
