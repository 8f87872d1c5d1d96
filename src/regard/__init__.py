"""regard: sequence models that show what they look at.

Train or load a model, and see where each of its outputs looked:

    load        a run folder, a bundled model, or a model of transformers
    fit         train on pairs, texts, pictures, recordings or series
    show        draw attention weights in a terminal or a notebook
    capture     record the weights of any torch module
    generate    answer with a model of transformers, and record its weights

    Model, Output, PretrainedModel    what these return

Build models of your own from parts:

    masks       boolean masks, True where a query may attend
    ops         operators: the definition of each, and its kernels
    attention   mechanisms, one paper per file
    layers      Transformers, RNNs, convolutions, positions
    models      encoders, decoders and presets
    sklearn     estimators of scikit-learn, which must be installed

Names are imported on first use, so that `import regard` takes next to no time. The command line
does the same things: see `regard --help`.

Example:
    >>> import regard
    >>> out = regard.load("g2p")("attention")
    >>> out.text
    'AH T EH N SH AH N'
    >>> out.maps["cross"][0].shape  # (heads, outputs, inputs)
    torch.Size([1, 8, 10])
    >>> mask = regard.masks.causal(3)
    >>> x = torch.randn(1, 2, 3, 5)
    >>> regard.ops.dot_product_attention(x, x, x, mask).context.shape
    torch.Size([1, 2, 3, 5])
    >>> regard.attention.AdditiveAttention, regard.layers.RNNStack
    (<class 'regard.attention.additive.AdditiveAttention'>, <class 'regard.layers.rnn.RNNStack'>)
    >>> "transformer" in regard.models.PRESETS
    True
    >>> print(f"regard {regard.__version__}")
    regard ...
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from regard.version import __version__

if TYPE_CHECKING:
    from regard import attention, layers, masks, models, ops, sklearn
    from regard.api import Model, Output, fit, load
    from regard.pretrained import PretrainedModel, generate
    from regard.seeing.capture.recorder import capture
    from regard.seeing.display import show

__all__ = [
    "Model",
    "Output",
    "PretrainedModel",
    "__version__",
    "attention",
    "capture",
    "fit",
    "generate",
    "layers",
    "load",
    "masks",
    "models",
    "ops",
    "show",
    "sklearn",
]

#: modules of the public names, which are imported on first use
HOMES: Final = {
    "Model": "regard.api",
    "Output": "regard.api",
    "PretrainedModel": "regard.pretrained",
    "capture": "regard.seeing.capture.recorder",
    "fit": "regard.api",
    "generate": "regard.pretrained",
    "load": "regard.api",
    "show": "regard.seeing.display",
}
#: modules that are public names themselves
PARTS: Final = ("attention", "layers", "masks", "models", "ops", "sklearn")


def __dir__() -> list[str]:
    """List the public names, for `dir` and for completion."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name in PARTS:
        return import_module(f"regard.{name}")
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
