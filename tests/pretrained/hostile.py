"""A model whose foreign tokenizer has tokens that would run, turn or hide text if they were let."""

from cli.tools import done, regard
from pretrained.families import LLAMA

#: tokens that end scripts, load images, turn text around, or drive a terminal
TOKENS = (
    "</script><script>document.title='run'</script>",
    "<img/src=x/onerror=document.title='run'>",
    "<svg/onload=document.title='run'>",
    "{{7*7}}",
    "\u202eevil",
    "\u2066\u2067",
    "nul\x00",
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b2J",
    "[bold]",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\"'>",
)


def save(hugging, folder, seed=3):
    """Write a Llama and a tokenizer of these words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(("<unk>", "<s>", "</s>", "the", *TOKENS))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer = hugging.PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    torch.manual_seed(seed)
    sizes = {**LLAMA, "vocab_size": len(vocabulary), "bos_token_id": 1, "eos_token_id": 2}
    model = hugging.LlamaForCausalLM(hugging.LlamaConfig(**sizes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


TEXT = " ".join(("the", *TOKENS))


def write_texts(file):
    """Write texts of these tokens, but for NUL, which is no part of a text file."""
    line = " ".join(one for one in TEXT.split(" ") if "\0" not in one)
    file.write_text(f"{line}\n{line} the\n", encoding="utf-8")
    return file


def write_pages(folders, texts, folder):
    """Write every page that shows tokens, and return them by name."""
    commands = {
        "page": ("show", folders[0], TEXT, "--max-len", 2),
        "heads": ("heads", folders[0], texts),
        "compare": ("compare", *folders, texts),
    }
    files = {name: folder / f"{name}.html" for name in commands}
    for name, command in commands.items():
        done(regard(*command, "-o", files[name]))
    return files
