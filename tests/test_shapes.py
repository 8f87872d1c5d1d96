"""That the run-time checks find what they are there for."""

from dataclasses import dataclass

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


@checked
def twice(a: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, " rows"], ...]:
    return add(a.mT), add(a.mT)


@checked
def count(names: list[str]) -> int:
    return len(names) or None


@checked
@dataclass
class Pair:
    a: Float[Tensor, "rows columns"]
    b: Float[Tensor, "rows columns"]
    name: str = ""


def test_an_axis_has_one_length_in_all_arguments():
    assert add(A, A).shape == (3,)
    with wrong:
        add(A, B)


def test_an_axis_has_one_length_in_what_is_returned():
    assert add(A).shape == (3,)
    with wrong:
        add(A, A.clone())


def test_a_call_within_a_call_has_axes_of_its_own():
    assert len(twice(A)) == 2
    assert len(twice(B)) == 2


def test_types_are_checked_where_there_are_no_axes():
    assert count(["a"]) == 1
    with wrong:
        count([1])
    with wrong:
        count([])


def test_fields_are_checked():
    assert Pair(A, A).a is A
    with wrong:
        Pair(A, B)
    with wrong:
        Pair(A, A, name=1)


def test_the_package_is_checked(pytestconfig):
    if not pytestconfig.getoption("jaxtyping_packages"):
        pytest.skip("needs --jaxtyping-packages=regard,beartype.beartype")
    with wrong:
        masks.document(torch.zeros(2, 3, dtype=torch.long), torch.zeros(3, 2, dtype=torch.long))
    with wrong:
        masks.padding(torch.tensor([2, 3]), "3")
