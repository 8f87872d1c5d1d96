import re

import pytest
import torch

from decoding.toys import Toy, sources
from regard.decoding import DecodingOptions, decode, force_decode
from regard.errors import ArgumentError

plain = pytest.mark.plain


def refuses(name, rule, value):
    parts = (re.escape(part) for part in (name, rule, value))
    return pytest.raises(
        ArgumentError, match="^{} must .*{}.*, but it is .*{}.*: .+\\.$".format(*parts)
    )


@plain
@pytest.mark.parametrize(
    ("wrong", "name", "rule", "value"),
    [
        ({"beam": 0}, "beam", "at least 1", "0"),
        ({"beam": 2.5}, "beam", "a whole number", "2.5"),
        ({"beam": "2"}, "beam", "a whole number", "'2'"),
        ({"beam": 20_000}, "beam", "at most 10000", "20000"),
        ({"max_len": 9.0}, "max_len", "a whole number", "9.0"),
        ({"max_len": -1}, "max_len", "at least 0", "-1"),
        ({"num_samples": 1, "seed": 0.5}, "seed", "a whole number", "0.5"),
        ({"num_samples": 1, "seed": 2**70}, "seed", "at most 64 bits", str(2**70)),
        ({"nbest": 6}, "nbest", "at most beam = 5", "6"),
        ({"max_len_ratio": float("inf")}, "max_len_ratio", "finite", "inf"),
        ({"min_len": 4, "max_len": 3}, "min_len", "at most max_len = 3", "4"),
        ({"length_penalty": -1.0}, "length_penalty", "from 0 to 10", "-1.0"),
        ({"length_penalty": float("nan")}, "length_penalty", "finite", "nan"),
        ({"prefix": [[4], [5, 2]]}, "prefix", "none of pad, bos, eos", "[5, 2] in row 1"),
        ({"prefix": [[-4]]}, "prefix", "none below 0", "[-4] in row 0"),
        ({"prefix": [[4, 5]], "max_len": 1}, "prefix", "at most max_len = 1", "one of 2"),
        ({"temperature": 0.0, "num_samples": 1}, "temperature", "above 0", "0.0"),
        ({"top_p": 1.5, "num_samples": 1}, "top_p", "above 0 and at most 1", "1.5"),
        ({"top_k": 5}, "num_samples", "at least 1 where temperature", "0"),
        ({"top_p": 0.5}, "num_samples", "at least 1 where temperature", "0"),
        ({"temperature": 2.0}, "num_samples", "at least 1 where temperature", "0"),
    ],
)
def test_wrong_options(wrong, name, rule, value):
    with refuses(name, rule, value):
        DecodingOptions(**wrong)


@plain
@pytest.mark.parametrize(
    ("call", "name", "rule", "value"),
    [
        (lambda toy: decode(toy, *sources(0, 1), DecodingOptions(prefix=[[4]])),
         "prefix", "each of the 2 sources", "a list of 1"),
        (lambda toy: decode(toy, *sources(0, 1), DecodingOptions(prefix=[[4], [7]])),
         "prefix", "ids below 7", "7"),
        (lambda toy: force_decode(toy, *sources(0), []),
         "tgt", "each of the 1 sources", "a list of 0"),
        (lambda toy: force_decode(toy, *sources(0), [[4, 9]]), "tgt", "from 0 to 6", "9"),
        (lambda toy: decode(toy, sources(0)[0], torch.tensor([9])),
         "lengths", "at most the 5 tokens", "9"),
    ],
)  # fmt: skip
def test_wrong_calls(call, name, rule, value):
    with refuses(name, rule, value):
        call(Toy(7, 3))
