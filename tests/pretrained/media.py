"""Small models of pictures and of sound with random weights, and files for them to read."""

import json

import numpy as np
import torch
from torch import nn

from pretrained.families import VOCABULARY, build_tokenizer

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 11,
}
#: 5 x 5 patches of 4 x 4 pixels
PICTURE = {"image_size": 20, "patch_size": 4, "num_labels": 3}
PICTURE |= {"id2label": {0: "cat", 1: "dog", 2: "mat"}}
#: a second, in 50 positions of 0.02 s
WHISPER = {
    "vocab_size": VOCABULARY,
    "num_mel_bins": 7,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 11,
    "decoder_ffn_dim": 11,
    "max_source_positions": 50,
    "max_target_positions": 30,
    # padding is the end, as in the models that were published
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
WAV2VEC2 = {
    **SIZES,
    "vocab_size": 9,
    "pad_token_id": 0,
    "conv_dim": (8, 8),
    "conv_kernel": (10, 8),
    "conv_stride": (10, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
FAMILIES = {
    "vit": ("ViTConfig", "ViTForImageClassification", {**SIZES, **PICTURE}),
    "deit": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", {**SIZES, **PICTURE}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration", WHISPER),
    "wav2vec2": ("Wav2Vec2Config", "Wav2Vec2ForCTC", WAV2VEC2),
}
RATE = 16000


def build(hugging, family, how="sdpa", dtype=torch.float32, classes=None, **sizes):
    """A model with weights so large that its maps are not flat."""
    config, model, own = FAMILIES[family]
    torch.manual_seed(2)
    config = getattr(hugging, config)(**{**own, **sizes})
    config._attn_implementation = how
    model = getattr(hugging, classes or model)(config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.to(dtype)


def build_processor(hugging, family):
    if family == "whisper":
        return hugging.WhisperFeatureExtractor(feature_size=7, chunk_length=1)
    if family == "wav2vec2":
        return hugging.Wav2Vec2FeatureExtractor()
    size = {"height": 20, "width": 20}
    kind = hugging.ViTImageProcessorPil if family == "vit" else hugging.DeiTImageProcessorPil
    own = {"size": size} if family == "vit" else {"size": size, "crop_size": size}
    return kind(**own)


def save(hugging, folder, family, **options):
    """Write a model with what prepares its inputs, as a user would."""
    build(hugging, family, **options).save_pretrained(folder)
    build_processor(hugging, family).save_pretrained(folder)
    if family == "whisper":
        build_tokenizer(hugging).save_pretrained(folder)
    if family == "wav2vec2":
        letters = ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b", "c", "d"]
        vocabulary = {letter: i for i, letter in enumerate(letters)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        hugging.Wav2Vec2CTCTokenizer(folder / "vocab.json").save_pretrained(folder)
    return folder


def picture(width=40, height=30):
    """A bright disc on a dark ground, (height, width, 3)."""
    y, x = np.mgrid[:height, :width]
    inside = (x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2
    ground = np.stack([x * 3 % 256, y * 5 % 256, np.full_like(x, 60)], axis=-1)
    return np.where(inside[..., None], [250, 210, 40], ground).astype(np.uint8)


def sweep(seconds=0.7, rate=RATE):
    """A rising tone in a little noise."""
    t = np.arange(round(seconds * rate)) / rate
    noise = 0.01 * np.random.default_rng(5).normal(size=t.shape)
    return (0.4 * np.sin(2 * np.pi * (300 + 900 * t) * t) + noise).astype(np.float32)
