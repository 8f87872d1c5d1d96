"""Traces as JSON, and back."""

import base64
import json
import zlib

import numpy as np
import pytest

from regard.errors import ArgumentError
from regard.seeing import DecodingInfo, Map, ModelInfo, Text, Token, Trace, TraceError, display
from regard.seeing.trace import storage
from seeing.tools import HOSTILE, of_labels, random_weights, translation


def whole():
    """A trace that has all there is."""
    source = Text("a", (Token("a", (0, 1), 0), Token("</s>", special=True)))
    target = Text(
        "xy",
        (
            Token("x", (0, 1), 0, prob=0.25, alternatives=(("z", 0.5), ("w", 0.125))),
            Token("y", None, None, prob=0.5),
        ),
    )
    return Trace(
        source,
        target,
        (
            Map.of("cross", 0, [[[0.5, 0.25], [0.125, 0.5]]], missing=True),
            Map.of("decoder-self", 3, [[[1.0, 0.0], [0.75, 0.25]]]),
            Map.of("memory", 0, [[[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]]),
        ),
        model=ModelInfo("run", "bahdanau", "abc", 7),
        decoded=DecodingInfo("beam", 5, 1, -1.5),
        derived={"ablation": np.array([[1.5, -2.0], [0.25, 8.0]], dtype=np.float32)},
        checks={"tau": 0.5, "sentences": ["it is so"]},
        notes=("only the last 512 tokens",),
    )


def through_json(trace):
    return storage.from_json(json.loads(json.dumps(storage.to_json(trace))))


def test_all_of_a_trace_comes_back():
    trace = whole()
    again = through_json(trace)
    for name in ("source", "target", "model", "decoded", "checks", "notes"):
        assert getattr(again, name) == getattr(trace, name)
    np.testing.assert_array_equal(again.derived["ablation"], trace.derived["ablation"])
    for found, expected in zip(again.maps, trace.maps, strict=True):
        assert (found.kind, found.layer, found.causal) == (
            expected.kind,
            expected.layer,
            expected.causal,
        )
        assert (found.rows, found.columns) == (expected.rows, expected.columns)
        np.testing.assert_array_equal(found.weights, expected.weights)  # all are sums of halves
    np.testing.assert_array_equal(again.maps[0].missing, trace.maps[0].missing)
    assert again.maps[1].missing is None


def test_hostile_tokens_come_back_from_a_file(tmp_path):
    labels = list(HOSTILE)
    weights = random_weights(1, len(labels), len(labels))
    trace = Trace(Text.of(labels), Text.of(labels), (Map.of("cross", 0, weights),))
    display.save(trace, tmp_path / "x.json")
    again = storage.load(tmp_path / "x.json")
    assert again.source.labels == labels
    np.testing.assert_allclose(again.maps[0].weights, weights, atol=5e-4)


@pytest.mark.parametrize("sharp", [0.5, 3.0])
def test_many_weights_take_a_byte_each_and_their_rows_sum_to_one(monkeypatch, sharp):
    monkeypatch.setattr(storage, "HALF_LIMIT", 3 * 29 * 31 - 1)
    weights = random_weights(3, 29, 31, sharp=sharp)
    trace = Trace(
        Text.of([str(i) for i in range(31)]),
        Text.of([str(i) for i in range(29)]),
        (Map.of("cross", 0, weights),),
    )
    content = storage.to_json(trace)
    assert content["maps"][0]["weights"]["encoding"] == "sqrt8"
    (found,) = storage.from_json(content).maps
    np.testing.assert_allclose(found.weights.sum(axis=-1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found.weights, weights, atol=0.005)
    monkeypatch.setattr(storage, "HALF_LIMIT", 3 * 29 * 31)
    assert storage.to_json(trace)["maps"][0]["weights"]["encoding"] == "float16"


def test_rows_of_which_rounding_leaves_nothing_are_even(monkeypatch):
    monkeypatch.setattr(storage, "HALF_LIMIT", 0)
    monkeypatch.setattr(storage, "STEPS", 4)
    labels = [str(i) for i in range(100)]
    even = np.full((1, 100, 100), 0.01)
    lacks = np.full((1, 100, 100), 0.003)
    past = np.tri(100)[None] / np.arange(1, 101)[:, None]
    maps = (
        Map.of("cross", 0, even),
        Map.of("cross", 1, lacks, missing=True),
        Map.of("decoder-self", 0, past),
    )
    again = through_json(Trace(Text.of(labels), Text.of(labels), maps))
    for found, expected in zip(again.maps, (even, lacks, past), strict=True):
        np.testing.assert_allclose(found.weights[0, 98:], expected[0, 98:], rtol=1e-3)


UNREAD = "a part of it cannot be read"


def nans(*shape):
    return np.full(shape, np.nan, np.float32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(format="other"), "must hold a trace"),
        (lambda c: c.update(version=99), "of version 1, but it is of 99: update"),
        (lambda c: c.update(version="1"), "of version 1, but it is of '1': save"),
        (lambda c: c.pop("maps"), UNREAD),
        (lambda c: c["maps"][0]["weights"].update(data="AAAA"), UNREAD),
        (lambda c: c["maps"][0]["weights"].update(encoding="zip"), UNREAD),
        (lambda c: c["maps"][0]["weights"].update(shape=[9, 9]), UNREAD),
        (lambda c: c["maps"][0]["weights"].update(shape=[1, 4, 10**30]), UNREAD),
        (lambda c: c["maps"][0]["weights"].update(steps=0), UNREAD),
        (lambda c: c["maps"][0].update(missing=storage.pack(nans(3, 3), "float16")), UNREAD),
        (lambda c: c["maps"][0].update(layer="0.5"), UNREAD),
        (lambda c: c["source"]["tokens"].pop(), r"must be \(heads, 4, 4\)"),
        (lambda c: c["source"]["tokens"].__setitem__(0, 5), UNREAD),
        (lambda c: c["source"]["tokens"][0].update(word=-1), UNREAD),
        (lambda c: c["source"]["tokens"][0].update(span=[0, -1]), UNREAD),
        (lambda c: c["source"]["tokens"][0].update(prob=1.5), UNREAD),
        (lambda c: c["source"]["tokens"][0].update(colour="red"), UNREAD),
        (lambda c: c["model"].update(colour="red"), UNREAD),
        (lambda c: c["decoded"].update(log_prob=float("nan")), UNREAD),
        (lambda c: c["model"].update(step=-1), UNREAD),
        (lambda c: c.update(checks={"sentences": 5}), UNREAD),
        (lambda c: c.update(derived={"ablation": storage.pack(nans(4, 5), "float16")}), UNREAD),
    ],
)
def test_a_damaged_trace_is_refused(change, said):
    content = json.loads(json.dumps(storage.to_json(translation())))
    change(content)
    with pytest.raises(TraceError, match=said):
        storage.from_json(content)


@pytest.mark.parametrize("content", [None, "x", {}])
def test_what_is_no_trace_is_refused(content):
    with pytest.raises(TraceError, match="must hold a trace"):
        storage.from_json(content)


@pytest.fixture
def several(tmp_path):
    """Three traces, one on each line, the second with signs that other programs end lines at."""
    path = tmp_path / "several.jsonl"
    made = [of_labels(["a"], ["x"]), of_labels(["\u2028", "\n\x85"], ["x"]), of_labels("abc", "xy")]
    lines = [json.dumps(storage.to_json(one), ensure_ascii=False) for one in made]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_each_line_of_a_file_is_a_trace(several):
    found = [storage.find(several, line) for line in (1, 2, 3)]
    assert [len(one.trace.source.tokens) for one in found] == [1, 2, 3]
    assert [one.total for one in found] == [3, 3, 3]
    assert Trace.load(several).source == found[0].trace.source
    assert Trace.load(several, line=3).source == found[2].trace.source


@pytest.mark.parametrize("line", [0, 4])
def test_a_line_that_is_not_there(several, line):
    with pytest.raises(ArgumentError, match=f"line must be from 1 to 3, .* but it is {line}: "):
        storage.load(several, line)


def test_a_line_that_is_cut_off_is_no_trace(several):
    several.write_bytes(several.read_bytes()[:-20])
    with pytest.raises(TraceError, match="not JSON"):
        storage.load(several, 3)


def with_zeros(shape, count):
    """A trace with a map of this shape, stored as so many zeros."""
    content = storage.to_json(of_labels("ab", "cd"))
    data = base64.b64encode(zlib.compress(bytes(count))).decode()
    packed = {"encoding": "sqrt8", "steps": 255, "data": data, "shape": shape}
    content["maps"][0]["weights"] = packed
    return content


def test_a_small_trace_that_asks_for_much_memory_is_refused_before_it_has_it():
    size = 1 << 19
    content = with_zeros([1 << 13, 2, size // 2], 1 << 20)
    said = f"its weights inflate from 1,3.. to {size << 13:,} bytes"
    with pytest.raises(TraceError, match=said):
        storage.from_json(content)


def test_weights_that_are_more_than_their_shape_says_are_not_inflated(monkeypatch):
    content = with_zeros([1, 2, 2], 1 << 24)
    with pytest.raises(TraceError, match="must inflate to 4 bytes"):
        storage.from_json(content)


def test_a_trace_that_could_not_be_read_again_is_not_saved(tmp_path, monkeypatch):
    trace = of_labels("ab", "cd")
    monkeypatch.setattr("regard.seeing.trace.trace_schema.FREE_BYTES", 0)
    display.save(trace, tmp_path / "x.json")
    monkeypatch.setattr("regard.seeing.trace.trace_schema.MAX_RATIO", 0)
    with pytest.raises(TraceError, match="a trace that is saved must have at most"):
        display.save(trace, tmp_path / "y.json")
    assert not (tmp_path / "y.json").exists()


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_a_text_without_an_end_is_not_read_to_its_end(tmp_path, monkeypatch, name):
    monkeypatch.setattr(storage, "MAX_BYTES", 5000)
    (tmp_path / name).write_text("1" * 6000)
    with pytest.raises(TraceError, match="at most 5,000 bytes"):
        storage.find(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"), [("[" * 100_000, "nested too deeply"), ("\n", "not JSON")]
)
def test_what_is_no_json_is_no_trace(tmp_path, text, said):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TraceError, match=said):
        storage.load(tmp_path / "x.json")
