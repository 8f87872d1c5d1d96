"""Export of models to ONNX, which runs without torch and without regard."""

from regard.errors import ExportError
from regard.export.folder import ExportResult, export

__all__ = ["FORMATS", "ExportError", "ExportResult", "export"]
