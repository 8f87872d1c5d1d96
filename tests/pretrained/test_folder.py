"""Folders and hub names: what is opened, and the sentence for what is not."""

import json
import re
import shutil
import sys

import pytest
import torch

import regard
from pretrained.families import build, build_tokenizer
from regard.api import load_run
from regard.errors import ArgumentError, DataError, RegardError
from regard.extras import MissingExtraError
from regard.pretrained import PretrainedError, folder, is_hub_name, is_pretrained

pytestmark = pytest.mark.slow  # transformers takes seconds to load


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of a small model, to damage."""
    return shutil.copytree(saved("gpt2"), tmp_path / "model")


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def truncate(copy):
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def lack_a_weight(copy):
    from safetensors.torch import load_file, save_file

    file = copy / "model.safetensors"
    weights = load_file(file)
    del weights["transformer.h.1.attn.c_attn.weight"]
    save_file(weights, file, metadata={"format": "pt"})


def pickle_weights(copy):
    from safetensors.torch import load_file

    file = copy / "model.safetensors"
    torch.save(load_file(file), copy / "pytorch_model.bin")
    file.unlink()


DAMAGES = {
    "no tokenizer": (
        lambda c: [file.unlink() for file in c.glob("tokenizer*")],
        "must hold a tokenizer, as in tokenizer.json, but it has none: write it with",
    ),
    "broken tokenizer": (
        lambda c: (c / "tokenizer.json").write_text("{}"),
        "must hold a tokenizer that transformers can load, but it cannot",
    ),
    "no weights": (
        lambda c: (c / "model.safetensors").unlink(),
        "must hold weights in model.safetensors, but it has none: write it with",
    ),
    "only pickle": (
        pickle_weights,
        "weights must be in safetensors, but .* has only pickled ones, which can run code",
    ),
    "truncated": (truncate, "must hold whole weights that transformers can load, but it cannot"),
    "lacks a weight": (
        lack_a_weight,
        "but they lack 1 of its parameters, transformer.h.1.attn.c_attn.weight first",
    ),
    "unknown type": (
        lambda c: edit(c / "config.json", model_type="nonesuch"),
        "model_type must be one that this version of transformers has, .* 'nonesuch': update",
    ),
    "no type": (
        lambda c: edit(c / "config.json", model_type=None),
        "model_type must be one that .* it is None",
    ),
    "type that is no name": (
        lambda c: edit(c / "config.json", model_type=["gpt2"]),
        r"model_type must be one that .* it is \['gpt2'\]",
    ),
    "sizes that cannot be": (
        lambda c: edit(c / "config.json", n_embd="wide"),
        "config.json must hold a configuration that transformers can load",
    ),
    "other sizes": (
        lambda c: edit(c / "config.json", n_embd=32),
        "must hold whole weights that transformers can load",
    ),
    "unknown class": (
        lambda c: edit(c / "config.json", architectures=["GPT2DoubleHeadsModel"]),
        "a model must generate, .* classify or encode text, .* but .* GPT2DoubleHeadsModel",
    ),
    "no JSON": (
        lambda c: (c / "config.json").write_text("{oops"),
        "config.json: the file must hold JSON, but it cannot be read",
    ),
    "no object": (
        lambda c: (c / "tokenizer_config.json").write_text("[1]"),
        "tokenizer_config.json must hold a JSON object, but it is a list",
    ),
    "code of its own": (
        lambda c: edit(c / "config.json", auto_map={"AutoModel": "evil.Model"}),
        "config.json asks for code of its own .auto_map., which regard never runs",
    ),
    "a tokenizer with code": (
        lambda c: edit(c / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.T", None]}),
        "tokenizer_config.json asks for code of its own",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(copy, damage):
    spoil, match = DAMAGES[damage]
    (copy / "evil.py").write_text("raise SystemExit('ran')")
    spoil(copy)
    assert is_pretrained(copy)
    with pytest.raises((PretrainedError, DataError), match=match) as caught:
        regard.load(copy)
    sentence = str(caught.value)
    assert str(copy) in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence
    assert "evil" not in sys.modules


def test_pickled_weights_are_read_where_they_are_allowed(copy, saved):
    expected = regard.load(saved("gpt2"))("the cat", max_len=3).text
    pickle_weights(copy)
    assert regard.load(copy, allow_pickle=True)("the cat", max_len=3).text == expected


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return exec, ("import sys; sys.modules['pickle_has_run'] = sys",)


def test_even_allowed_weights_are_not_read_by_a_plain_unpickler(copy):
    pickle_weights(copy)
    torch.save({"transformer.wte.weight": Evil()}, copy / "pytorch_model.bin")
    with pytest.raises(PretrainedError, match="must hold whole weights"):
        regard.load(copy, allow_pickle=True)
    assert "pickle_has_run" not in sys.modules


def test_an_encoder_decoder_without_its_output_layer(hugging, tmp_path):
    build(hugging, "bart", classes="BartModel").save_pretrained(tmp_path)
    build_tokenizer(hugging).save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match=r"must be saved with its output layer, .* BartModel"):
        regard.load(tmp_path)


def test_precision_and_device(saved):
    model = regard.load(saved("gpt2"), precision="bf16", device="cpu")
    assert {weight.dtype for weight in model.module.parameters()} == {torch.bfloat16}
    assert not model.module.training
    with pytest.raises(ArgumentError, match="precision must be one of auto, 32, bf16, int8"):
        regard.load(saved("gpt2"), precision="8")


def test_a_run_is_no_model_of_transformers_and_the_other_way_round(saved):
    assert type(regard.load("g2p")) is regard.Model
    with pytest.raises(ArgumentError, match="allow_pickle must be left out for a run"):
        regard.load("g2p", allow_pickle=True)
    for runs in ([saved("gpt2")], ["g2p", saved("gpt2")]):
        with pytest.raises(RegardError, match=r"a run folder must be given here, but .* transform"):
            load_run(*runs)


def test_the_log_of_transformers_is_as_before(hugging, saved):
    logging = hugging.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    try:
        regard.load(saved("gpt2"))
        assert logging.get_verbosity() == logging.INFO
    finally:
        logging.set_verbosity(before[0])
    assert logging.is_progress_bar_enabled() == before[1]


def test_without_transformers_the_command_that_installs_it_is_told(saved, monkeypatch):
    saved("gpt2")
    monkeypatch.setattr("regard.extras.is_installed", lambda name: name != "transformers")
    with pytest.raises(MissingExtraError, match=re.escape("run `pip install 'regard[hf]'`")):
        regard.load(saved("gpt2"))
    with pytest.raises(MissingExtraError, match=r"regard\.generate needs transformers"):
        regard.generate(None, None, "text")
    with pytest.raises(RegardError, match="must be a run folder or a bundled model"):
        regard.load("organisation/model")


# the hub


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("organisation/model-1.5B", True),
        ("gpt2", False),
        ("runs/abc", False),
        ("here/model", False),
        ("/tmp/model", False),
        ("../model", False),
        ("a/b/c", False),
        ("a b/c", False),
    ],
)
def test_names_that_may_be_those_of_the_hub(name, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert is_hub_name(name) is expected


def test_a_model_of_the_hub_is_fetched_without_code_and_pickles(
    hugging, saved, monkeypatch, capsys
):
    import huggingface_hub

    asked = []

    def download(name, **options):
        asked.append((name, options))
        return str(saved("gpt2"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    model = regard.load("organisation/model")
    assert model.path == saved("gpt2")
    ((name, options),) = asked
    assert name == "organisation/model"
    assert options["ignore_patterns"] == ["*/*"]
    assert not any(end in "".join(options["allow_patterns"]) for end in (".py", ".bin", ".pt"))
    assert capsys.readouterr().err.endswith("looking on the Hugging Face hub.\n")
    folder.fetch("organisation/model", allow_pickle=True)
    assert "*.bin" in asked[1][1]["allow_patterns"]


@pytest.mark.parametrize(
    ("error", "match"),
    [
        ("ConnectionError", "it cannot be reached .no route.: check the name and the network"),
        ("RepositoryNotFoundError", "there is no such model: check the name"),
        ("GatedRepoError", "its owner lets only some in: log in with `hf auth login`"),
    ],
)
def test_a_hub_that_does_not_answer(hugging, monkeypatch, error, match):
    import huggingface_hub
    from huggingface_hub import errors

    kind = getattr(errors, error, ConnectionError)

    def download(name, **options):
        raise kind.__new__(kind, "no route") if kind is not ConnectionError else kind("no route\nx")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(PretrainedError, match=match) as caught:
        regard.load("organisation/model")
    assert "\n" not in str(caught.value)
