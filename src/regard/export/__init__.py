"""Export of models to ONNX and CTranslate2, which run without torch and without regard."""

from regard.errors import ExportError
from regard.export.folder import FORMATS, ExportResult, export

__all__ = ["FORMATS", "ExportError", "ExportResult", "export"]
