"""Export of models as ONNX graphs, which run without torch and without regard."""

from regard.errors import ExportError
from regard.export.folder import FORMATS, ExportResult, export

__all__ = ["FORMATS", "ExportError", "ExportResult", "export"]
