"""Causal language models of transformers, trained in their own layers by the loop of all runs."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F

import regard
from cli.tools import regard as command
from cli.tools import sentence
from pretrained import families
from regard.data.stories import Turn, join_turns
from regard.decoding import DecodingOptions, decode
from regard.errors import RegardError
from regard.pretrained import PromptModel
from regard.pretrained.prompts import prompt_tokenizers
from regard.training import RunFolder, new_config, resume_run, start_run
from training.tools import assert_same, last_checkpoint

# whole runs, whose parts are tested with the checks of shapes
pytestmark = pytest.mark.plain

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

NAMES = ["cat", "sat", "mat", "dog", "ran", "tree", "bird", "flew", "house", "sun"]
CHATS = [
    [{"role": "user", "content": f"the {a} {b}"}, {"role": "assistant", "content": f"{b} {a}"}]
    for a in NAMES
    for b in NAMES
]
BRIEF = {"device": "cpu", "precision": "32", "report": False, "steps": 6, "eval_every": 3}
BRIEF |= {"save_every": 3, "max_src_len": 24, "max_tgt_len": 12, "schedule": "constant"}
ANSWER = 6


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    families.save(transformers, folder / "base", "llama", tie_word_embeddings=True)
    lines = [json.dumps({"messages": chat}) for chat in CHATS]
    (folder / "chats.jsonl").write_text("\n".join(lines))
    return folder


def train(home, place, **settings):
    given = {"data": str(home / "chats.jsonl"), "start": str(home / "base"), **BRIEF, **settings}
    return start_run(new_config({"adapter": "lora", **given}), place, quiet=True)


@pytest.fixture(scope="module")
def run(home, tmp_path_factory):
    return train(home, tmp_path_factory.mktemp("runs") / "run", lr=0.02, steps=24)


def hub(home, dtype=torch.float32):
    found = transformers.AutoModelForCausalLM.from_pretrained(home / "base", dtype=dtype)
    return found, transformers.AutoTokenizer.from_pretrained(home / "base")


def numbers(tokenizer):
    """The ids of transformers by those of regard."""
    return tokenizer.to_json()["model"]["ids"]


def logits_alone(module, ids):
    return module(input_ids=torch.tensor([ids])).logits[0]


#: families that regard has no layers for: configuration, class, sizes
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SMALL, "intermediate_size": 11, "max_position_embeddings": 50}
OTHERS = {
    "opt": (
        "OPTConfig",
        "OPTForCausalLM",
        {**SMALL, "ffn_dim": 11, "max_position_embeddings": 50, "word_embed_proj_dim": 16},
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", WIDE),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", WIDE),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("family", [*families.DECODERS, *OTHERS])
def test_logits_are_those_of_each_row_alone(family, tmp_path, monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", {**families.FAMILIES, **OTHERS})
    families.save(transformers, tmp_path, family, how="eager")
    module = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    _, answers = prompt_tokenizers(tmp_path)
    theirs, ours = numbers(answers), {}
    ours = {number: i for i, number in enumerate(theirs) if number >= 0}
    model = PromptModel(module.eval(), theirs)
    rows = [([1, 40, 17, 33, 9], [20, 21, 22]), ([11, 50], [30]), ([7, 8, 60], [12, 44])]
    src, tgt = torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 4, dtype=torch.long)
    for i, (prompt, answer) in enumerate(rows):
        src[i, : len(prompt) + 1] = torch.tensor([*(ours[n] for n in prompt), 2])
        tgt[i, : len(answer) + 1] = torch.tensor([1, *(ours[n] for n in answer)])
    lengths = torch.tensor([len(prompt) + 1 for prompt, _ in rows])
    with torch.no_grad():
        found = model(src, lengths, tgt).logits
        state = model.start(model.encode(src, lengths))
        steps = []
        for place in range(4):
            out = model.step(tgt[:, place], state)
            state, steps = out.state, [*steps, out.logits]
        for i, (prompt, answer) in enumerate(rows):
            alone = logits_alone(module, [*prompt, *answer])[len(prompt) - 1 :]
            real = [place for place, number in enumerate(theirs) if number >= 0]
            expected = alone[:, [theirs[place] for place in real]]
            for got in (found[i], torch.stack(steps)[:, i]):
                torch.testing.assert_close(
                    got[: len(answer) + 1, real], expected, atol=1e-9, rtol=0
                )
    assert (found[..., [0, 1, 3]] < -9000).all()


TALK = [
    [("user", "the cat sat")],
    [("user", "the cat"), ("assistant", "a mat"), ("user", "dog ran")],
    [("system", "in house"), ("user", "the cat")],
]


@pytest.mark.parametrize("talk", TALK)
def test_prompts_are_those_of_the_chat_template(talk, home):
    prompts, _ = prompt_tokenizers(home / "base")
    theirs, (_, tokenizer) = numbers(prompts), hub(home)
    text = join_turns([Turn(*turn) for turn in talk]) if len(talk) > 1 else talk[0][1]
    ids = prompts.encode(text)
    messages = [{"role": role, "content": content} for role, content in talk]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert [theirs[i] for i in ids] == expected
    spans = prompts.spans(text)
    assert len(spans) == len(ids)
    shown = [text[slice(*span)].strip() for span in spans]
    assert "".join(shown) == "".join(content for _, content in talk).replace(" ", "")


#: a template whose roles differ, and that knows no system
ROLES = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|user|> {{ m['content'] }} "
    "{% elif m['role'] == 'assistant' %}<|bot|> {{ m['content'] }}<mask>"
    "{% else %}{{ raise_exception('no system') }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)


def test_turns_are_framed_by_role_and_end_with_the_end_of_a_turn(tmp_path):
    families.save(transformers, tmp_path, "llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.chat_template = ROLES
    tokenizer.save_pretrained(tmp_path)
    prompts, answers = prompt_tokenizers(tmp_path)
    talk = TALK[1]
    messages = [{"role": role, "content": content} for role, content in talk]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    found = prompts.encode(join_turns([Turn(*turn) for turn in talk]))
    assert [numbers(prompts)[i] for i in found] == expected
    assert numbers(answers)[2] == tokenizer.convert_tokens_to_ids("<mask>")
    system = join_turns([Turn("system", "in house"), Turn("user", "the cat")])
    expected = tokenizer("<|user|> in house\nthe cat <|bot|>", add_special_tokens=False)
    assert [numbers(prompts)[i] for i in prompts.encode(system)] == expected["input_ids"]


def test_a_tokenizer_without_a_template_has_a_line_between(tmp_path):
    families.save(transformers, tmp_path, "gpt2")
    prompts, _ = prompt_tokenizers(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    expected = tokenizer("the cat\n")["input_ids"]
    assert [numbers(prompts)[i] for i in prompts.encode("the cat")] == expected


def test_the_loss_is_that_of_the_answers_alone(home, tmp_path):
    chats = CHATS[:7]
    (tmp_path / "dev.jsonl").write_text("\n".join(json.dumps({"messages": c}) for c in chats))
    train(home, tmp_path / "run", steps=1, eval_every=1, dev=str(tmp_path / "dev.jsonl"))
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    module, tokenizer = hub(home)
    total, count = 0.0, 0
    for asked, said in chats:
        prompt = tokenizer.apply_chat_template([asked], add_generation_prompt=True)["input_ids"]
        answer = [*tokenizer(said["content"], add_special_tokens=False)["input_ids"], 2]
        with torch.no_grad():
            alone = logits_alone(module, [*prompt, *answer])[len(prompt) - 1 : -1]
        total += F.cross_entropy(alone, torch.tensor(answer), reduction="sum").item()
        count += len(answer)
    assert first["step"] == 0
    assert first["dev_loss"] == pytest.approx(total / count, rel=1e-4)


def test_it_learns_and_only_additions_are_stored(run, home):
    rows = RunFolder(run.path).read_metrics()
    assert rows[-1]["dev_loss"] < rows[0]["dev_loss"] - 0.3
    names = last_checkpoint(run.path).keys()
    assert {n for n in names if n.startswith("model.")} == {
        n for n in names if ".lora_" in n and n.startswith("model.")
    }


def test_additions_and_their_gradients_are_those_of_peft(run):
    model = RunFolder(run.path).load().model
    layer = next(m for m in model.modules() if isinstance(m, peft.tuners.lora.Linear))
    weights = [layer.lora_A.default.weight, layer.lora_B.default.weight]
    results = []
    for forward in (layer, lambda x: peft.tuners.lora.Linear.forward(layer, x)):
        x = torch.randn(3, 5, layer.in_features, generator=torch.Generator().manual_seed(2))
        out = forward(x.requires_grad_())
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *weights])])
    assert results[0][3].abs().sum() > 0
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_frozen_weights_in_half_precision_change_the_loss_by_rounding(run, home, tmp_path):
    half = train(home, tmp_path / "half", lr=0.02, steps=24, precision="bf16")
    pairs = zip(half.read_metrics(), run.read_metrics(), strict=True)
    for ours, theirs in pairs:
        assert ours["dev_loss"] == pytest.approx(theirs["dev_loss"], rel=0.03)


@pytest.mark.long
def test_it_resumes_exactly(home, tmp_path):
    whole = train(home, tmp_path / "whole")
    train(home, tmp_path / "parts", steps=3)
    resumed = resume_run(tmp_path / "parts", {"steps": 6}, quiet=True)
    assert_same(last_checkpoint(resumed.path), last_checkpoint(whole.path))


def test_answers_are_those_of_generate_with_the_adapter_of_peft(run, home):
    module, tokenizer = hub(home)
    tuned = peft.PeftModel.from_pretrained(module, run.path / "adapter").eval()
    model = regard.load(run.path, device="cpu")
    for chat in CHATS[:20]:
        prompt = torch.tensor(
            [tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True)["input_ids"]]
        )
        with torch.no_grad():
            written = tuned.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=ANSWER,
                do_sample=False,
                suppress_tokens=[0, 1, 3],
            )[0]
        expected = tokenizer.decode(written[prompt.shape[1] :], skip_special_tokens=True)
        (out,) = model.predict([chat[0]["content"]], beam=1, max_len=ANSWER, attention=False)
        assert out.text == expected


def test_a_merged_export_is_what_transformers_opens(run, home, tmp_path):
    result = command("export", run.path, "--to", "transformers", "-o", tmp_path / "merged")
    assert result.exit_code == 0, result.output
    module, tokenizer = hub(home)
    tuned = peft.PeftModel.from_pretrained(module, run.path / "adapter").eval()
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    ids = tokenizer("the cat sat on a mat")["input_ids"]
    with torch.no_grad():
        found, expected = logits_alone(merged, ids), logits_alone(tuned, ids)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert not torch.allclose(found, logits_alone(hub(home)[0], ids), atol=1e-2)
    again = regard.load(tmp_path / "merged", device="cpu")
    assert again.task == "text-generation"
    result = command("export", run.path, "--to", "transformers", "-o", tmp_path / "merged")
    assert "must be a new folder" in result.stderr


@pytest.mark.parametrize("words", [("check", "the cat"), ("export",)])
def test_what_needs_our_own_layers_says_so(run, tmp_path, words):
    verb, *rest = words
    output = ["-o", tmp_path / "out"] if verb == "export" else []
    said = sentence(command(verb, run.path, *rest, *output), 1)
    assert "own layers" in said
    assert "--to transformers" in said
    assert not (tmp_path / "out").exists()


def test_all_weights_can_be_trained(home, tmp_path):
    found = train(home, tmp_path / "run", adapter="full", lr=1e-3)
    module, _ = hub(home)
    after = last_checkpoint(found.path)
    for name, weight in module.state_dict().items():
        if name != "lm_head.weight":
            assert not torch.equal(after[f"model.module.{name}"], weight), name


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"start": None}, "adapter must be left out where start is not given"),
        ({"start": "g2p"}, "adapter must be left out unless a run starts from a folder of transf"),
        ({"hidden": 16}, "hidden must be left out where a model of transformers"),
        ({"src_tokenizer": "char"}, "src_tokenizer must be left out where"),
        ({"adapter_targets": "nothing"}, "adapter_targets must match names of layers, such as "),
        ({"adapter": "prefix"}, "adapter must be 'lora' or 'full'"),
        ({"max_src_len": 40}, "max_src_len and max_tgt_len must be at most 50 together"),
        ({"start_checksum": "00"}, "start must be the model with the checksum 00"),
    ],
)
def test_settings_that_make_no_adapter(home, tmp_path, settings, reason):
    with pytest.raises(RegardError, match=reason):
        train(home, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_an_encoder_continues_nothing(home, tmp_path):
    families.save(transformers, tmp_path / "bert", "bert")
    with pytest.raises(RegardError, match="start must be a causal language model for an adapter"):
        train(home, tmp_path / "run", start=str(tmp_path / "bert"))
    assert not (tmp_path / "run").exists()


def test_additions_to_another_model_are_refused(run, home, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    shutil.copytree(home / "base", tmp_path / "base")
    config = RunFolder(run.path).read_config()
    moved = config.model_copy(update={"start": str(tmp_path / "base")})
    RunFolder(tmp_path / "run").write_config(moved)
    regard.load(tmp_path / "run", device="cpu")
    families.save(transformers, tmp_path / "base", "llama", rms_norm_eps=1e-4)
    with pytest.raises(RegardError, match=r"start must be the model with the checksum .* another"):
        regard.load(tmp_path / "run", device="cpu")
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(RegardError, match=r"start must be the model with the checksum .* is gone"):
        regard.load(tmp_path / "run", device="cpu")


def test_a_run_with_an_adapter_is_merged_before_another_starts_from_it(run, home, tmp_path):
    with pytest.raises(RegardError, match=r"start must be a model of its own, but .* an adapter"):
        train(home, tmp_path / "run", start=str(run.path), adapter=None)
    assert not (tmp_path / "run").exists()


def test_a_search_of_many_prompts_is_that_of_each(run):
    saved = RunFolder(run.path).load()
    task, options = saved.task, DecodingOptions(beam=3, max_len=ANSWER)
    rows = task.input.rows(["the cat", "the bird flew over the house", "a sun"])
    together = decode(saved.sequence_model, *task.input.batch(rows), options)
    for row, found in zip(rows, together, strict=True):
        (alone,) = decode(saved.sequence_model, *task.input.batch([row]), options)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert found[0].score == pytest.approx(alone[0].score, abs=1e-4)
