"""Models as files that other programs run, without torch and without regard."""

from regard.export.errors import ExportError
from regard.export.folder import FORMATS, ExportResult, export

__all__ = ["FORMATS", "ExportError", "ExportResult", "export"]
