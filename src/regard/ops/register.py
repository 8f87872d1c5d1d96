# mypy: disable-error-code="no-untyped-call"
"""Kernels as operators of torch's own dispatcher, so that compiling and differentiating work."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

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


def register(
    forward: Operator,
    backward: Operator,
    *,
    differentiate: Callable[..., Any],
    save: Callable[..., Any],
    key: str = "CompositeExplicitAutograd",
) -> torch.library.Library:
    """Both directions under `torch.ops.regard`, as long as the library that is returned lives.

    The way back cannot be differentiated itself, and says so: by itself torch would only warn, and
    return the rest of the gradient.

    Not `torch.library.custom_op`, which costs tens of microseconds more at every call.

    Args:
        forward: what is differentiated.
        backward: what `differentiate` calls.
        differentiate: from a context and the results' gradients to the arguments' ones.
        save: keeps in the context what that needs.
        key: of the dispatcher, for both.
    """
    library = torch.library.Library("regard", "FRAGMENT")
    for operator in (forward, backward):
        name = _name(operator)
        library.define(operator.schema, tags=torch.Tag.pt2_compliant_tag)
        library.impl(name, operator.run, key)
        torch.library.register_fake(f"regard::{name}", operator.shapes, lib=library)
    torch.library.register_autograd(
        f"regard::{_name(forward)}", differentiate, setup_context=save, lib=library
    )
    torch.library.register_autograd(f"regard::{_name(backward)}", _refuse, lib=library)
    return library


def check_first_order() -> None:
    """Raises in a backward pass written by hand that is itself differentiated, or batched."""
    if torch.is_grad_enabled() or is_transformed():
        _refuse()


def _refuse(*_: object) -> None:
    raise BackendError(
        "the gradients of this operator are written by hand and cannot be differentiated or "
        'batched by vmap: run it under use_backend("reference").'
    )


def _name(operator: Operator) -> str:
    return operator.schema.partition("(")[0]
