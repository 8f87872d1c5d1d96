"""Small models of each family with random weights, and tokenizers trained on the spot."""

import json
import random
import re
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

WORDS = "the cat sat on a mat and dogs ran to trees birds flew over houses in sun rain snow"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "[en]", "[fr]")
PAD, BOS, EOS, UNK = range(4)
VOCABULARY, ROWS = 90, 97
IDS = {"vocab_size": ROWS, "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 19,
    "max_position_embeddings": 71,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
BART = {
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 19,
    "decoder_ffn_dim": 19,
    "max_position_embeddings": 71,
    "forced_eos_token_id": None,
}
M2M_100 = {**BART, "decoder_start_token_id": EOS, "pad_token_id": 1, "bos_token_id": 0}
M2M_100 |= {"scale_embedding": True}
T5 = {"d_model": 24, "d_kv": 5, "d_ff": 19, "num_layers": 2}
T5 |= {"num_heads": 4, "decoder_start_token_id": PAD, "relative_attention_num_buckets": 8}
T5 |= {"relative_attention_max_distance": 20}
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

#: family: class, sizes, what its tokenizer puts before and after a text
ZOO = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2, "n_head": 4, "n_embd": 24, "n_positions": 71,
                                 "bos_token_id": EOS}, "", ""),
    "llama": ("LlamaForCausalLM", {**GROUPED, "head_dim": 10}, "<s>", ""),
    "llama3": ("LlamaForCausalLM", {**GROUPED, "rope_parameters": LLAMA_3,
                                    "tie_word_embeddings": True}, "<s>", ""),
    "llama-chat": ("LlamaForCausalLM", {**GROUPED, "eos_token_id": [EOS, 11, 17]}, "<s>", ""),
    "mistral": ("MistralForCausalLM", {**GROUPED, "sliding_window": 5}, "<s>", ""),
    "qwen2": ("Qwen2ForCausalLM", {**GROUPED, "bos_token_id": None}, "", ""),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 8, "num_key_value_heads": 1}, "<s>", ""),
    "bert": ("BertForMaskedLM", SIZES, "<s>", "</s>"),
    "roberta": ("RobertaModel", {**SIZES, "pad_token_id": 1, "bos_token_id": 0}, "<s>", "</s>"),
    "xlm-roberta": ("XLMRobertaForSequenceClassification",
                    {**SIZES, "pad_token_id": 1, "bos_token_id": 0}, "<s>", "</s>"),
    "distilbert": ("DistilBertModel", {"dim": 24, "hidden_dim": 19, "n_layers": 2, "n_heads": 4,
                                       "max_position_embeddings": 71}, "<s>", "</s>"),
    "albert": ("AlbertForPreTraining", {**SIZES, "embedding_size": 10}, "<s>", "</s>"),
    "vit": ("ViTForImageClassification",
            {**{n: v for n, v in SIZES.items() if n != "max_position_embeddings"},
             "image_size": 12, "patch_size": 4, "num_labels": 3}, "", ""),
    "marian": ("MarianMTModel", {**BART, "scale_embedding": True, "decoder_start_token_id": PAD,
                                 "activation_function": "swish"}, "", "</s>"),
    "bart": ("BartForConditionalGeneration", {**BART, "decoder_start_token_id": EOS},
             "<s>", "</s>"),
    "mbart": ("MBartForConditionalGeneration", {**BART, "decoder_start_token_id": EOS,
                                                "scale_embedding": True}, "[en]", "</s>"),
    "mbart-cc25": ("MBartForConditionalGeneration", {**BART, "decoder_start_token_id": 6,
                                                     "scale_embedding": True}, "", "</s> [en]"),
    "pegasus": ("PegasusForConditionalGeneration", {**BART, "decoder_start_token_id": PAD,
                                                    "scale_embedding": True}, "", "</s>"),
    "nllb": ("M2M100ForConditionalGeneration", M2M_100, "[en]", "</s>"),
    "m2m_100": ("M2M100ForConditionalGeneration", {**M2M_100, "vocab_size": 190},
                "__en__", "</s>"),
    "whisper": ("WhisperForConditionalGeneration",
                {**BART, "decoder_start_token_id": 6, "num_mel_bins": 12,
                 "max_source_positions": 50, "max_target_positions": 71, "suppress_tokens": [7, 9],
                 "begin_suppress_tokens": [8, EOS]}, "", ""),
    "t5": ("T5ForConditionalGeneration", T5, "", "</s>"),
    "byt5": ("T5ForConditionalGeneration", {**T5, "vocab_size": 384, "eos_token_id": 1},
             "", "</s>"),
    "t5-gated": ("T5ForConditionalGeneration", {**T5, "feed_forward_proj": "gated-gelu",
                                                "tie_word_embeddings": False}, "", "</s>"),
    "mt5": ("MT5ForConditionalGeneration", T5, "", "</s>"),
}  # fmt: skip
LANGUAGE = ("gpt2", "llama", "llama3", "llama-chat", "mistral", "qwen2", "gemma")
ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "albert")
PICTURES, SOUNDS = ("vit",), ("whisper",)
SEQ2SEQ = tuple(name for name in ZOO if name not in LANGUAGE + ENCODERS + PICTURES + SOUNDS)


def long(*families):
    """Return families that `make long` runs."""
    return [pytest.param(family, marks=pytest.mark.long) for family in families]


def sentences(count, longest=9, seed=3):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, longest))) for _ in range(count)]


#: how pictures are scaled, in numbers that float32 holds exactly
MEAN, STD, FACTOR = (0.5, 0.25, 0.75), (0.5, 0.25, 1.0), 1 / 256


def pictures(count, side=12, seed=3):
    """Random pictures, dark and light ones."""
    draw = np.random.default_rng(seed)
    levels = draw.integers(0, 256, (count, side, side, 3))
    return list((levels * draw.uniform(0.2, 1.0, (count, 1, 1, 1))).astype(np.uint8))


def recordings(count, seed=3):
    """Noise and tones of up to a second, at 16 kHz."""
    draw, found = np.random.default_rng(seed), []
    for length in draw.integers(4_000, 16_001, count):
        tone = np.sin(np.arange(length) * draw.uniform(0.02, 2.0)) * draw.uniform(0.1, 0.8)
        found.append(((tone + draw.normal(0, 0.05, length)).clip(-1, 1).astype(np.float32), 16_000))
    return found


def spectra(found):
    """Recordings as Whisper reads them."""
    from transformers import WhisperFeatureExtractor

    extract = WhisperFeatureExtractor(feature_size=12, chunk_length=1)
    waves = [samples for samples, _ in found]
    return extract(waves, sampling_rate=16_000, return_tensors="pt").input_features


def pixels(found):
    """Pictures as their models read them."""
    levels = torch.from_numpy(np.stack(found)).double()
    scaled = (levels * FACTOR - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
    return scaled.permute(0, 3, 1, 2)


def build_tokenizer(family):
    """Subwords as the family cuts them, with the special tokens of its texts."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )
    from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

    if family in PICTURES:
        from transformers import ViTImageProcessor

        return ViTImageProcessor(image_mean=MEAN, image_std=STD, rescale_factor=FACTOR)
    if family == "marian":
        return marian_tokenizer()
    if family == "m2m_100":
        return m2m_tokenizer()
    if family == "byt5":
        return ByT5Tokenizer()
    ids = {**IDS, **ZOO[family][1]}
    special = list(SPECIAL)
    special[ids["pad_token_id"]] = "<pad>"
    special[EOS] = "</s>"
    special[1 - ids["pad_token_id"]] = "<s>"
    options = {"vocab_size": VOCABULARY, "special_tokens": special, "show_progress": False}
    if family in ("gpt2", "qwen2", "roberta", "bart"):
        found = Tokenizer(models.BPE())
        found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        found.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(**options)
    elif family in ("bert", "distilbert"):
        found = Tokenizer(models.WordPiece(unk_token="<unk>"))
        found.normalizer = normalizers.BertNormalizer()
        found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        found.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**options)
    elif family in ("llama", "llama3", "llama-chat", "mistral", "gemma"):
        found = Tokenizer(models.BPE(unk_token="<unk>"))
        found.pre_tokenizer, found.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.BpeTrainer(**options)
    else:
        found = Tokenizer(models.Unigram())
        found.normalizer = normalizers.NFKC()
        found.pre_tokenizer, found.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(**options, unk_token="<unk>")
    found.train_from_iterator(sentences(200), trainer)
    _, _, before, after = ZOO[family]
    if before or after:
        found.post_processor = processors.TemplateProcessing(
            single=f"{before} $A {after}".strip(),
            special_tokens=[(t, special.index(t)) for t in f"{before} {after}".split()],
        )
    named = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    named |= {"bos_token": "<s>"} if ids["bos_token_id"] is not None else {}
    return PreTrainedTokenizerFast(tokenizer_object=found, **named)


#: first tokens of targets: a special token, or a language
FORCED = {"bart": BOS, "mbart": 6, "nllb": 6, "m2m_100": 106}
#: standard deviations of weights, by their names
SPREAD = {r"bias$": 0.2, "position|wpe|encoder_attn": 1.2, "shared|embed|wte": 0.3, "": 0.6}
#: weights of norms, which are near 1
NORM = re.compile(r"(norm|ln_\w)[^.]*\.weight$", re.IGNORECASE)


def marian_tokenizer():
    """Two models of sentencepiece, of different sizes, and the vocabulary of both."""
    import sentencepiece
    from transformers import MarianTokenizer

    with tempfile.TemporaryDirectory() as name:
        folder, pieces = Path(name), dict.fromkeys(["<pad>", ">>fr<<", "</s>", "<unk>"])
        for side, size in (("source", 38), ("target", 41)):
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(sentences(300)), model_prefix=str(folder / side),
                vocab_size=size, bos_id=-1, eos_id=0, unk_id=1, minloglevel=2,
            )  # fmt: skip
            (folder / f"{side}.model").rename(folder / f"{side}.spm")
            model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
            pieces |= dict.fromkeys(map(model.id_to_piece, range(model.get_piece_size())))
        (folder / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate(pieces)}))
        files = {f"{side}_spm": str(folder / f"{side}.spm") for side in ("source", "target")}
        return MarianTokenizer(**files, vocab=str(folder / "vocab.json"))


def m2m_tokenizer(kind="bpe"):
    """A model of sentencepiece, and the vocabulary that has other ids."""
    import sentencepiece
    from transformers import M2M100Tokenizer
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    with tempfile.TemporaryDirectory() as name:
        folder, pieces = Path(name), dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>"])
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences(300)), model_prefix=str(folder / "spm"),
            vocab_size=41, model_type=kind, minloglevel=2,
        )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
        pieces |= dict.fromkeys(map(model.id_to_piece, range(model.get_piece_size())))
        (folder / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate(pieces)}))
        files = {"vocab_file": str(folder / "vocab.json"), "spm_file": str(folder / "spm.model")}
        named = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
        return M2M100Tokenizer(
            **files, src_lang="en", tgt_lang="fr", additional_special_tokens=named
        )


def build(family, dtype=torch.float64, **sizes):
    """A model with weights so large that its outputs are not flat."""
    import transformers

    kind, own, *_ = ZOO[family]
    torch.manual_seed(5 if family == "bart" else 2)  # with 2, its texts never end
    made = getattr(transformers, kind)
    config = made.config_class(**{**({} if family in PICTURES else IDS), **own, **sizes})
    config._attn_implementation = "eager"
    model = made(config).eval()
    for name, weight in model.named_parameters():
        std = next(std for pattern, std in SPREAD.items() if re.search(pattern, name))
        sines = family in SINES or (family in SOUNDS and "encoder" in name)
        if "embed_positions" not in name or not sines:
            nn.init.normal_(weight, mean=float(bool(NORM.search(name))), std=std)
    if model.can_generate():  # which ends its texts now and then
        model.get_output_embeddings().weight.data[config.eos_token_id] *= 2.5
        model.generation_config.forced_bos_token_id = FORCED.get(family)
        for name, value in SPOKEN.items() if family in SOUNDS else ():
            setattr(model.generation_config, name, value)
            model.generation_config._from_model_config = False
        model.generation_config.forced_eos_token_id = (
            config.eos_token_id if family in SEQ2SEQ + SOUNDS else None
        )
    model = model.to(dtype)
    if dtype == torch.float64:
        make_exact(model, family)
    return model


#: what `generate` begins the answers of Whisper with
SPOKEN = {
    "language": "en",
    "task": "transcribe",
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": 4, "<|fr|>": 5},
    "task_to_id": {"transcribe": 11, "translate": 12},
    "no_timestamps_token_id": ROWS - 1,
    "return_timestamps": False,
}
FAIRSEQ = ("nllb", "m2m_100")
SINES = ("marian", "pegasus", *FAIRSEQ)


def make_exact(model, family):
    """Compute in float64 the angles that transformers has in float32."""
    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.forward = partial(exact_angles, model.config)
        if isinstance(getattr(module, "embed_scale", None), torch.Tensor):
            module.embed_scale = torch.tensor(model.config.hidden_size, dtype=torch.float64).sqrt()
    sides = {**dict.fromkeys(SINES, ("encoder", "decoder")), **dict.fromkeys(SOUNDS, ("encoder",))}
    for side in sides.get(family, ()):
        places = getattr(model.model, side).embed_positions
        table = places.weights if family in FAIRSEQ else places.weight
        half = table.shape[1] // 2
        span = half - 1 if family in FAIRSEQ + SOUNDS else half
        waves = 10000.0 ** (-np.arange(half) / span)
        angles = np.arange(len(table))[:, None] * waves
        table.data = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))


def exact_angles(config, x, position_ids):
    rope = config.rope_parameters
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    waves = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
    if rope["rope_type"] == "llama3":
        length, factor = rope["original_max_position_embeddings"], rope["factor"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        for i, wave in enumerate(waves):
            times = length * wave / (2 * np.pi)
            kept = (min(max(times, low), high) - low) / (high - low)
            waves[i] = wave * kept + wave / factor * (1 - kept)
    angles = position_ids[..., None].double() * torch.from_numpy(waves)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos().to(x.dtype), both.sin().to(x.dtype)


def save(family, folder, **options):
    """Write a model and its tokenizer, as a user would; returns the model."""
    model = build(family, **options)
    model.save_pretrained(folder)
    build_tokenizer(family).save_pretrained(folder)
    if family in SOUNDS:
        from transformers import WhisperFeatureExtractor

        WhisperFeatureExtractor(feature_size=12, chunk_length=1).save_pretrained(folder)
    return model
