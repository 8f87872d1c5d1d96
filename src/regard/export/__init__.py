"""Models as files that other programs run, without torch and without regard."""

from regard.export.folder import FORMATS, Written, export
from regard.export.needs import ExportError

__all__ = ["FORMATS", "ExportError", "Written", "export"]
