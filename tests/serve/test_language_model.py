"""A language model of regard behind the server: its checks are bounded by the limits."""

import pytest

from regard.data import Tokenizer
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import client_of
from untrained import write_run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("language") / "lm"
    sizes = {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2}
    tokens = Tokenizer.train("space", ["one two three four five"])
    write_run(path, tokens, tokens, "lm-transformer", seed=3, beam=1, **sizes)
    return Models.load([path], device="cpu")


def test_a_check_compares_the_methods_that_are_asked_for(models):
    with client_of(models, tokens=6) as client:
        asked = {"text": "one two", "methods": "attention,ablation"}
        found = from_json(client.post("/api/check", json=asked).json())
    assert found.derived.keys() == {"attention", "ablation"}
    assert found.source.labels[:3] == ["<s>", "one", "two"]
    assert len(found.target.tokens) <= 6
