"""A language model of regard behind the server: its checks are bounded by the limits."""

import pytest
import torch

from regard.data import Tokenizer
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from regard.tasks import open_task
from regard.training import RunFolder, make_config
from serve.conftest import client_of
from serve.test_http_errors import error


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("language") / "lm")
    sizes = {"dim": 12, "heads": 3, "feed_forward": 19, "layers": 2}
    config = make_config({"preset": "lm-transformer", "beam": 1, **sizes})
    folder.create()
    folder.write_config(config)
    tokens = Tokenizer.train("space", ["one two three four five"])
    tokens.save(folder.src_tokenizer_file)
    tokens.save(folder.tgt_tokenizer_file)
    torch.manual_seed(3)
    model = open_task(config, tokens, tokens).build_model()
    folder.write_model({k: 3 * w if w.ndim > 1 else w for k, w in model.state_dict().items()})
    return Models.load([folder.path], device="cpu")


def test_a_check_compares_the_methods_that_are_asked_for(models):
    with client_of(models, tokens=6) as client:
        asked = {"text": "one two", "methods": "attention,ablation"}
        found = from_json(client.post("/api/check", json=asked).json())
    assert found.derived.keys() == {"attention", "ablation"}
    assert found.source.labels[:3] == ["<s>", "one", "two"]
    assert len(found.target.tokens) <= 6


def test_a_check_of_all_methods_is_bounded_by_the_work_that_is_allowed(models):
    with client_of(models, tokens=6, work=20_000) as client:
        assert client.post("/api/run", json={"text": "one two"}).status_code == 200
        told = error(client.post("/api/check", json={"text": "one two"}), 413, "too_much_work")
        assert "20,000 tokens of work" in told["message"]
