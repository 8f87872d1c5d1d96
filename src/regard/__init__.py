"""regard: sequence models that show what they look at."""

from regard import masks, ops

__version__ = "0.1.0"

__all__ = ["__version__", "masks", "ops"]
