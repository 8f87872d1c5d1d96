"""Attention of many architectures of transformers is that of the models, or there is a reason.

`pretrained.zoo` compares; docs/guides/zoo.md has its table, which this holds true.
"""

import pytest

from pretrained import zoo

pytest.importorskip("transformers")

#: one of each sort that was once shown wrongly
SORTS = ("bloom", "deberta-v2", "fsmt", "gpt_neo", "gpt_oss", "big_bird (blocks)", "pvt")
OTHERS = [name for name in zoo.ZOO if name not in SORTS]


def check(name):
    found = zoo.study(name)
    documented = next(row for row in zoo.in_page().splitlines() if row.startswith(f"| {name} |"))
    for mode, word in zip(zoo.MODES, documented.split(" | ")[2:], strict=True):
        # kernels of other chips may lack float64, or have it
        if found[mode].word != "none" and word.strip(" |") != "-":
            assert found[mode].word == word.strip(" |"), mode
    assert all(line in zoo.in_page() for line in zoo.reasons(name, found))


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", SORTS)
def test_attention_that_was_once_wrong(name):
    check(name)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OTHERS)
def test_attention_is_that_of_the_model_or_there_is_a_reason(name):
    check(name)


def test_the_page_has_every_architecture():
    rows = [row.split(" | ")[0].strip("| ") for row in zoo.in_page().splitlines() if "|" in row]
    assert rows[2:] == list(zoo.ZOO)
    assert len(zoo.ZOO) > 100


def test_another_map_is_found_out():
    """The comparison itself fails for a map with two rows exchanged."""
    import torch

    own = torch.rand(2, 5, 5).softmax(-1)
    assert zoo.matches([own.clone()], [own], [1e-5], "")
    with pytest.raises(zoo.DifferentError):
        zoo.matches([own.flip(1)], [own], [1e-5], "")
