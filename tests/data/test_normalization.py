from regard.data.lookup_codecs import normaliser, origins

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


def test_origins():
    assert origins("abc", nfc) == [(0, 1), (1, 2), (2, 3)]
    assert origins("ae\u0301\u0323b", nfc) == [(0, 1), (1, 4), (1, 4), (4, 5)]
    assert nfc("ae\u0301\u0323b") == "a\u1eb9\u0301b"
    assert origins("xİy", lower) == [(0, 1), (1, 2), (1, 2), (2, 3)]
    assert origins("", nfc) == []
