"""Precisions that a run is loaded in, and compiled steps once they pay."""

import pytest

import regard
from api.test_output import run_folder
from regard.errors import ArgumentError
from regard.models.cpu import CpuModel
from regard.models.int8 import int8_engine, is_int8
from regard.ops.backend import HAS_NUMBA

TEXTS = ["abcd", "bca", "d", "ccab", "adda"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "plain", "transformer")


def files(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_int8_is_a_copy_that_leaves_the_files_alone(path, monkeypatch):
    try:
        int8_engine()
    except ArgumentError:
        pytest.skip("no int8 engine on this chip")
    monkeypatch.setattr("regard.models.int8.LEAST_WEIGHTS", 1)
    before = files(path)
    model, exact = regard.load(path, device="cpu", precision="int8"), regard.load(path)
    assert is_int8(model.module)
    assert not is_int8(exact.module)
    found, expected = model("abcd", max_len=6), exact("abcd", max_len=6)
    assert found.log_prob == pytest.approx(expected.log_prob, rel=0.2)
    assert found.log_prob != expected.log_prob
    assert files(path) == before


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("begin", ["asked", "large"])
def test_answers_stay_the_same_when_compiled_steps_begin(path, monkeypatch, begin):
    model = regard.load(path, device="cpu")
    options = {"attention": False, "beam": 3, "nbest": 2, "max_len": 6}
    searched = []
    decode = regard.api.predictor.decode

    def watched(module, *args, **more):
        searched.append(type(module))
        return decode(module, *args, **more)

    monkeypatch.setattr("regard.api.predictor.decode", watched)
    cold = model(TEXTS, **options)
    assert CpuModel not in searched
    if begin == "asked":
        model.predictor.compile()
    else:
        monkeypatch.setattr("regard.api.predictor.MANY_WEIGHTS", 1)
    searched.clear()
    warm = model(TEXTS, **options)
    assert set(searched) == {CpuModel}
    for one, other in zip(cold, warm, strict=True):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)
        assert [a.text for a in one.alternatives] == [a.text for a in other.alternatives]
    maps = model("abcd", beam=3, max_len=6).maps
    assert maps["cross"], "maps come from the plain steps"
