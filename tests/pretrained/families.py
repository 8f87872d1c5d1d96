"""Small models of transformers with random weights, each in a folder that it was saved in."""

import torch
from torch import nn

WORDS = "the cat sat on a mat and dog ran to tree bird flew over house in sun"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "<|user|>", "<|bot|>")
CHAT = (
    "{% for m in messages %}<|user|> {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|bot|>{% endif %}"
)
VOCABULARY = 76
SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BERT = {
    "hidden_size": 16,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 50,
}
LLAMA = {**BERT, "num_attention_heads": 4, "num_key_value_heads": 2}
BART = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 11,
    "decoder_ffn_dim": 11,
    "decoder_start_token_id": 1,
    "max_position_embeddings": 50,
    "forced_eos_token_id": None,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 11, "num_layers": 2, "num_heads": 2}
T5 |= {"decoder_start_token_id": 0}

#: family: configuration, class, sizes
ENCODERS = {
    "bert": ("BertConfig", "BertForMaskedLM", BERT),
    "albert": ("AlbertConfig", "AlbertForMaskedLM", {**BERT, "embedding_size": 8}),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", BERT),
}
DECODERS = {
    "gpt2": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 50},
    ),
    "llama": ("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**LLAMA, "sliding_window": 4}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**LLAMA, "head_dim": 8}),
}
SEQ2SEQ = {
    "marian": ("MarianConfig", "MarianMTModel", BART),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
}
FAMILIES = {**ENCODERS, **DECODERS, **SEQ2SEQ}


def build_tokenizer(hugging, *, chat=False, bos=True):
    """Byte-pair encoding of a few words, trained on them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    found = Tokenizer(models.BPE(unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), show_progress=False
    )
    found.train_from_iterator([WORDS] * 3 + ["mats cats dogs trees"], trainer)
    if bos:
        found.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    made = hugging.PreTrainedTokenizerFast(
        tokenizer_object=found,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        additional_special_tokens=["<|user|>", "<|bot|>"],
    )
    if chat:
        made.chat_template = CHAT
    return made


def build(hugging, family, how="sdpa", dtype=torch.float32, classes=None, **sizes):
    """A model with weights so large that its maps are not flat."""
    config, model, own = FAMILIES[family]
    torch.manual_seed(2)
    config = getattr(hugging, config)(**{**own, **SIZES, **sizes})
    config._attn_implementation = how
    model = getattr(hugging, classes or model)(config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model.to(dtype)


def save(hugging, folder, family, **options):
    """Write a model and its tokenizer, as a user would."""
    build(hugging, family, **options).save_pretrained(folder)
    build_tokenizer(hugging, chat=family == "llama").save_pretrained(folder)
    return folder
