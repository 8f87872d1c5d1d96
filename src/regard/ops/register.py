# mypy: disable-error-code="no-untyped-call"
"""Kernels as operators of torch's dispatcher, so that they compile and differentiate."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from regard.device import is_transformed
from regard.errors import BackendError


class Operator(NamedTuple):
    """One direction of a kernel.

    Attributes:
        schema: name, arguments and results as torch writes them.
        run: the kernel.
        shapes: takes the same arguments and returns empty results, for the compiler.
    """

    schema: str
    run: Callable[..., Any]
    shapes: Callable[..., Any]


SCHEMA_TYPES: Final = {Tensor: "Tensor", Tensor | None: "Tensor?", float: "float", bool: "bool"}


def operator_of(
    name: str,
    arguments: type[Any],
    results: int,
    run: Callable[..., Any],
    shapes: Callable[..., Any],
) -> Operator:
    """An operator whose arguments are the fields of a named tuple.

    Args:
        name: as in `torch.ops.regard`.
        arguments: the class of the tuple; types other than those in `SCHEMA_TYPES` are strings.
        results: number of tensors that are returned.
        run: takes such a tuple.
        shapes: likewise.
    """
    fields = ", ".join(
        f"{SCHEMA_TYPES.get(kind, 'str')} {field}"
        for field, kind in arguments.__annotations__.items()
    )
    return Operator(
        f"{name}({fields}) -> ({', '.join(['Tensor'] * results)})",
        lambda *args: run(arguments(*args)),
        lambda *args: shapes(arguments(*args)),
    )


def register(
    forward: Operator,
    backward: Operator,
    *,
    differentiate: Callable[..., Any],
    save: Callable[..., Any],
) -> torch.library.Library:
    """Register both directions under `torch.ops.regard` while the returned library is alive.

    Differentiating the backward pass raises: by itself torch would only warn and return an
    incomplete gradient.

    Not `torch.library.custom_op`, which costs tens of microseconds more at every call.

    Args:
        forward: the operator that is differentiated.
        backward: the operator that `differentiate` calls.
        differentiate: from a context and the gradients of the results to those of the arguments.
        save: stores in the context what `differentiate` needs.
    """
    library = torch.library.Library("regard", "FRAGMENT")
    for operator in (forward, backward):
        name = _name(operator)
        library.define(operator.schema, tags=torch.Tag.pt2_compliant_tag)
        library.impl(name, operator.run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"regard::{name}", operator.shapes, lib=library)
    torch.library.register_autograd(
        f"regard::{_name(forward)}", differentiate, setup_context=save, lib=library
    )
    torch.library.register_autograd(f"regard::{_name(backward)}", _refuse, lib=library)
    return library


def is_traced(*tensors: Tensor) -> bool:
    """Return whether something records or transforms this call, or tensors are of other classes.

    If not, a kernel may run without torch's dispatcher, whose Python around an operator takes
    longer than a small kernel does.
    """
    return (
        torch.compiler.is_compiling()
        or is_transformed()
        or torch._C._get_tracing_state() is not None
        or torch._C._len_torch_dispatch_stack() > 0  # no public function counts the modes
        or any(type(x) not in (Tensor, Parameter) for x in tensors)
    )


def check_first_order() -> None:
    """Raises if a hand-written backward pass is itself differentiated, or batched."""
    if torch.is_grad_enabled() or is_transformed():
        _refuse()


def _refuse(*_: object) -> None:
    raise BackendError(
        "the gradients of this operator are written by hand and cannot be differentiated or "
        'batched by vmap: run it under use_backend("reference").'
    )


def _name(operator: Operator) -> str:
    return operator.schema.partition("(")[0]
