import itertools
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.normalization import normaliser, origins
from regard.errors import ArgumentError

nfc = normaliser(nfc=True, case="keep")
lower = normaliser(nfc=True, case="lower")
upper = normaliser(nfc=True, case="upper")


def test_normal_forms():
    assert nfc("e\u0301A") == "éA"
    assert lower("E\u0301A") == "éa"
    assert normaliser(nfc=False, case="keep")("e\u0301A") == "e\u0301A"


def test_capitals():
    assert upper("naïve ß") == "NAÏVE SS"
    assert upper("e\u0301") == "É"
    assert origins("aßb", upper) == [(0, 1), (1, 2), (1, 2), (2, 3)]


@pytest.mark.plain
def test_no_such_case():
    with pytest.raises(ArgumentError, match="keep, lower, upper"):
        normaliser(nfc=True, case="title")


def test_origins():
    assert origins("abc", nfc) == [(0, 1), (1, 2), (2, 3)]
    assert origins("ae\u0301\u0323b", nfc) == [(0, 1), (1, 4), (1, 4), (4, 5)]
    assert nfc("ae\u0301\u0323b") == "a\u1eb9\u0301b"
    assert origins("xİy", lower) == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert origins("", nfc) == []


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_each_character_comes_from_somewhere(text):
    for normalise in (nfc, lower):
        spans = origins(text, normalise)
        assert len(spans) == len(normalise(text))
        # all spans together are the text, without gaps
        edges = sorted({0, len(text)} | {edge for span in spans for edge in span})
        assert sorted(set(spans)) == list(itertools.pairwise(edges))
        parts = [normalise(text[start:end]) for start, end in sorted(set(spans))]
        assert "".join(parts) == normalise(text)


def test_text_in_normal_form_is_not_touched():
    text = unicodedata.normalize("NFC", "Żółć 한국어 हिन्दी")
    assert origins(text, nfc) == [(i, i + 1) for i in range(len(text))]
