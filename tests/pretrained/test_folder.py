"""Folders and hub names: what is opened, and the sentence for what is not."""

import json
import os
import re
import shutil
import sys

import pytest
import torch

import regard
from pretrained.families import build, build_tokenizer
from regard.api import load_run
from regard.errors import DataError, RegardError
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


def shard(copy, name):
    """Let an index say where the weights are."""
    from safetensors.torch import load_file

    weights = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    torch.save(weights, copy / "w.bin")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, name)}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))


def link_out(file):
    outside = file.parent.parent / file.name
    file.rename(outside)
    file.symlink_to(outside)


def sequence(name):
    """Eight steps, of which each writes thirty characters for one."""
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 30}
    return {"type": "Sequence", name: [step] * 8}


DAMAGES = {
    "no tokenizer": (
        lambda c: [file.unlink() for file in c.glob("tokenizer*")],
        "must hold a tokenizer, as in tokenizer.json, but it has none: write it with",
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
    "code in a part of the configuration": (
        lambda c: edit(c / "config.json", text_config={"auto_map": {"AutoConfig": "evil.C"}}),
        "config.json asks for code of its own",
    ),
    "an adapter": (
        lambda c: (c / "adapter_config.json").write_text('{"base_model_name_or_path": "a/b"}'),
        "must hold a whole model, but it has an adapter",
    ),
    "an index that leads out": (
        lambda c: shard(c, "../out.safetensors"),
        r"but one is in '../out.safetensors'",
    ),
    "a link that leads out": (
        lambda c: link_out(c / "model.safetensors"),
        "must be a file of its folder, but it is a link out of",
    ),
    "a pipe": (
        lambda c: os.mkfifo(c / "added_tokens.json"),
        "added_tokens.json: this must be a file, but it is a pipe",
    ),
    "many layers": (
        lambda c: edit(c / "config.json", n_layer=10**6),
        "n_layer must be at most 1,000, but it is 1e[+]06",
    ),
    "more layers than weights": (
        lambda c: edit(c / "config.json", n_layer=1000),
        "config.json must describe the weights of its folder, 28 tensors of .* has far more",
    ),
    "many positions": (
        lambda c: edit(c / "config.json", n_positions=10**9),
        "config.json must describe the weights of its folder, 28 tensors of .* has far more",
    ),
    "many labels": (
        lambda c: edit(c / "config.json", num_labels=10**12),
        "num_labels must be at most 100,000",
    ),
    "many beams": (
        lambda c: edit(c / "generation_config.json", num_beams=10**6),
        "num_beams must be a value that generate.. can use, .* it is 1000000: correct it",
    ),
    "an odd end": (
        lambda c: edit(c / "generation_config.json", eos_token_id="y"),
        "must hold a model that transformers can use, but it cannot",
    ),
    "another search": (
        lambda c: edit(c / "generation_config.json", penalty_alpha=0.5, top_k=4),
        "must generate greedily, by beam search or by sampling, but .* sets penalty_alpha",
    ),
    "an exploding normaliser": (
        lambda c: edit(c / "tokenizer.json", normalizer=sequence("normalizers")),
        "must lengthen a text at most 1,000 times, but it may do so 6.56e[+]11 times",
    ),
    "a template that repeats the text": (
        lambda c: edit(
            c / "tokenizer.json",
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 5000,
                "pair": [],
                "special_tokens": {},
            },
        ),
        "must lengthen a text at most 1,000 times",
    ),
    "a huge vocabulary": (
        lambda c: edit(
            c / "tokenizer.json",
            model={"type": "WordLevel", "vocab": dict.fromkeys(map(str, range(300_000)), 0)},
        ),
        "the vocabulary must have at most 262,144 tokens, but it has 300,000",
    ),
    "words without an end": (
        lambda c: edit(
            c / "tokenizer.json",
            model={"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 10**9},
        ),
        "max_input_chars_per_word must be at most 10,000",
    ),
}


@pytest.mark.sample(11)
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


def test_a_folder_of_the_hubs_cache_has_links_to_its_blobs(saved, tmp_path):
    blobs, own = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    shutil.copytree(saved("gpt2"), blobs)
    own.mkdir(parents=True)
    for file in blobs.iterdir():
        (own / file.name).symlink_to(f"../../blobs/{file.name}")
    assert regard.load(own).info.checkpoint


@pytest.mark.parametrize("deep", [False, True])
def test_no_kernel_is_taken_from_a_configuration(copy, deep):
    """The name of one with a slash would be that of a repository with code."""
    name = {"_attn_implementation": "evil/kernel", "attn_implementation": "evil/kernel"}
    edit(copy / "config.json", **({"text_config": name} if deep else name))
    assert folder.checked_config(copy).get("text_config", {}) == {}
    if not deep:
        assert regard.load(copy).module.config._attn_implementation == "sdpa"


BOMB = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
NO_UNKNOWN = {
    "type": "WordPiece",
    "vocab": {"the": 0},
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}


@pytest.mark.parametrize("change", [{"normalizer": BOMB}, {"model": NO_UNKNOWN}])
def test_a_tokenizer_that_fails_at_a_text_says_so(copy, change):
    """Its Rust code panics, which is no Exception, or has no token for what it does not know."""
    edit(copy / "tokenizer.json", added_tokens=[], post_processor=None, **change)
    edit(copy / "tokenizer_config.json", unk_token=None, bos_token=None, added_tokens_decoder={})
    model = regard.load(copy)
    with pytest.raises(PretrainedError, match="must hold a tokenizer that transformers can use"):
        model("a" * 30 + "!", max_len=2)


def test_a_text_that_no_tokenizer_should_be_given_is_refused(copy, monkeypatch):
    monkeypatch.setattr("regard.pretrained.folder_checks.MAX_CHARS", 20)
    with pytest.raises(DataError, match="the text must have at most 20 characters, but it has 21"):
        regard.load(copy)("a" * 21)


def test_an_encoder_decoder_without_its_output_layer(hugging, tmp_path):
    build(hugging, "bart", classes="BartModel").save_pretrained(tmp_path)
    build_tokenizer(hugging).save_pretrained(tmp_path)
    with pytest.raises(PretrainedError, match=r"must be saved with its output layer, .* BartModel"):
        regard.load(tmp_path)


def test_a_run_is_no_model_of_transformers_and_the_other_way_round(saved):
    assert type(regard.load("g2p")) is regard.Model
    with pytest.raises(RegardError, match="runs must have the same tokens"):
        load_run("g2p", saved("gpt2"))


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
