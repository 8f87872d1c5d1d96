"""Models of transformers in our own layers: folders read as runs, and runs written back."""

from regard.imported.families import FAMILIES, ImportRefusedError
from regard.imported.folder import ImportedFolder

__all__ = ["FAMILIES", "ImportRefusedError", "ImportedFolder"]
