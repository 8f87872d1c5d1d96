"""That the run-time checks find what they are there for."""

import beartype
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from regard import masks
from shapes import jaxtyped

checked = jaxtyped(typechecker=beartype.beartype)
wrong = pytest.raises(beartype.roar.BeartypeCallHintViolation)
A, B = torch.zeros(2, 3), torch.zeros(3, 2)


@checked
def add(
    a: Float[Tensor, "rows columns"], b: Float[Tensor, "rows columns"] | None = None
) -> Float[Tensor, " columns"]:
    return a.sum(dim=0) if b is None else b.sum(dim=0 if b is a else 1)


def test_an_axis_has_one_length_in_all_arguments():
    assert add(A, A).shape == (3,)
    with wrong:
        add(A, B)


def test_an_axis_has_one_length_in_what_is_returned():
    assert add(A).shape == (3,)
    with wrong:
        add(A, A.clone())


def test_the_package_is_checked(pytestconfig):
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("needs --jaxtyping-packages=regard,beartype.beartype")
    with wrong:
        masks.padding(torch.tensor([2, 3]), "3")
