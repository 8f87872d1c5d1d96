"""AttnLRP: layer-wise relevance propagation through attention, as rules of differentiation.

Achtibat et al. (2024, https://arxiv.org/abs/2402.05602) derive how relevance goes back through a
Transformer. Where a rule passes on the relevance `R = y g` of an output y, with g its gradient, it
can be written as another gradient g, so that all of it is one backward pass and a product with the
input at the end (section 3.3 and appendix A.2 of the paper):

- a linear layer, a sum and a softmax have their own gradients;
- an activation `y = f(x)` passes on what it gets: its slope is `f(x) / x`;
- a product of two factors that depend on the input, as in attention, gives each of them half;
- layer normalisation passes on what it gets: its standard deviation counts as a constant.

The rules replace torch's functions while the model runs, so that they hold for any module that
calls these functions, `F.scaled_dot_product_attention` included.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.layers import ContentMemory, GatedConvolution, RNNStack, SelfAttentiveRNN
from regard.messages import message
from regard.seeing.attribution.input_scorer import MethodUnavailableError, hooked

#: layers for which the paper has no rule
WITHOUT_RULE: Final = (
    nn.RNNBase,
    nn.RNNCellBase,
    RNNStack,
    SelfAttentiveRNN,
    ContentMemory,
    GatedConvolution,
)


def check_layers(model: nn.Module) -> None:
    """Raise MethodUnavailableError if a layer of the model has no rule."""
    for module in model.modules():
        if isinstance(module, WITHOUT_RULE):
            kind = type(module).__name__
            raise MethodUnavailableError(message("check.why.only-transformers", layer=kind))


@contextmanager
def relevance_rules(model: nn.Module) -> Iterator[None]:
    """Let gradients of the model follow the rules inside the block; values are unchanged.

    Parameters require no gradient meanwhile: then a tensor requires one if it depends on the input.
    """
    # those of `transformers` are written out in other functions, as GELU by tanh
    written_out = [m for m in model.modules() if type(m).__module__ == "transformers.activations"]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        with hooked(after=[(part, _activation_hook) for part in written_out]), _Rules():
            yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def _activation_hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return _with_slope(inputs[0], output)


class _Rules(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        rule = RULES.get(func)
        if rule is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return rule(func, *args, **(kwargs or {}))


def _part(x: Any, share: float) -> Any:
    """Return `x` with a share of its gradient."""
    return share * x + ((1 - share) * x).detach()


def _activation(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    kwargs.pop("inplace", None)
    return _with_slope(x, func(x, *args, **kwargs))


def _with_slope(x: Tensor, y: Tensor) -> Tensor:
    """Return `y` with the slope `y / x`; where x is 0, so is y, and no relevance arrives."""
    slope = torch.where(x == 0, 0.0, y / torch.where(x == 0, 1.0, x)).detach()
    linear = slope * x
    return linear + (y - linear).detach()


def _depends_on_input(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _product(func: Callable[..., Tensor], a: Any, b: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Give half of the relevance to each factor if both depend on the input."""
    if _depends_on_input(a) and _depends_on_input(b):
        a, b = _part(a, 0.5), _part(b, 0.5)
    return func(a, b, *args, **kwargs)


def _attention(
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Weights and values share the relevance, then queries and keys that of the weights."""
    ours = [_depends_on_input(part) for part in (query, key, value)]
    of_weights = 0.5 if ours[2] else 1.0
    of_each = of_weights / 2 if ours[0] and ours[1] else of_weights
    of_value = 0.5 if ours[0] or ours[1] else 1.0
    return func(_part(query, of_each), _part(key, of_each), _part(value, of_value), *args, **kwargs)


def _layer_norm(
    func: Callable[..., Tensor],
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    centred = x - x.mean(dim=axes, keepdim=True)
    deviation = (centred.pow(2).mean(dim=axes, keepdim=True) + eps).sqrt().detach()
    scaled = centred / deviation
    scaled = scaled if weight is None else scaled * weight
    return scaled if bias is None else scaled + bias


def _rms_norm(
    func: Callable[..., Tensor],
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = tuple(range(-len(shape), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    scaled = x / (x.pow(2).mean(dim=axes, keepdim=True) + least).sqrt().detach()
    return scaled if weight is None else scaled * weight


def _constant(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Treat the result as a constant: the deviation of a norm that is written out."""
    return func(*args, **kwargs).detach()


ACTIVATIONS: Final = (
    *(F.relu, torch.relu, Tensor.relu, F.tanh, torch.tanh, Tensor.tanh),
    *(F.gelu, F.silu, F.elu, F.leaky_relu, F.mish, F.relu6, F.hardswish),
)
PRODUCTS: Final = (
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
)
#: rules by the function that they replace; each takes the function and its arguments
RULES: Final[dict[Callable[..., Any], Callable[..., Tensor]]] = {
    **dict.fromkeys(ACTIVATIONS, _activation),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys((torch.rsqrt, Tensor.rsqrt), _constant),
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
}
