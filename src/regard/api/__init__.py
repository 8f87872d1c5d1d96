"""The Python interface: `fit` and `load`, and the `Model` that they return."""

from regard.api.fit_load import fit, load, load_own, load_run
from regard.api.model import Model
from regard.api.predictor import BATCH
from regard.seeing.trace.output import Output
from regard.tasks.inputs.text import Source

__all__ = ["BATCH", "Model", "Output", "Source", "fit", "load", "load_own", "load_run"]
