"""Models of transformers in our own layers: folders read as runs, and runs written back."""

from regard.imported.families import FAMILIES, ImportRefusedError
from regard.imported.folder import ImportedFolder
from regard.imported.writer import write_folder

__all__ = ["FAMILIES", "ImportRefusedError", "ImportedFolder", "write_folder"]
