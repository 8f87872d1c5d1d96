"""The tokenisers of a causal language model: of prompts, framed by its chat template, and answers.

The template is rendered once with marks in the place of what is said, and cut there.
"""

from pathlib import Path
from typing import Any, Final

from regard.data import Tokenizer
from regard.data.lookup_codecs import ImportedCodec, PromptCodec
from regard.data.tokenizers import FRAMES
from regard.pretrained.folder import load_config, load_tokenizer, quiet_transformers
from regard.pretrained.folder_checks import PretrainedError, check_files, explained
from regard.safe_read import parse_json
from regard.symbols import SYMBOLS

#: what stands in a template for a system, a user, an answer and a user again
MARKS: Final = ("QZXS", "QZXU", "QZXA", "QZXV")
#: between a prompt and its answer, for a model without a template
LINE: Final = "\n"


def prompt_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenisers of the prompts and of the answers of a model."""
    check_files(path)
    with quiet_transformers():
        config = load_config(path)
        theirs = load_tokenizer(path, config)
    if not getattr(theirs, "is_fast", False):
        raise PretrainedError(
            f"{path} must hold a tokenizer that the library tokenizers can run, as in "
            f"tokenizer.json, but it has none: save it again with use_fast=True."
        )
    with explained(path, "a chat template"):
        frames = _frames(theirs)
    after = theirs(frames["to_user"], add_special_tokens=False)["input_ids"][:1]
    end = after[0] if after and after[0] in theirs.all_special_ids else theirs.eos_token_id
    count = config.get_text_config().vocab_size
    if end is None or not 0 <= end < count:
        raise PretrainedError(
            f"{path} must hold a tokenizer with a token for the end of a text, but it has none: "
            f"give it an eos_token, and save it again."
        )
    ids = [-1, -1, end, -1, *(number for number in range(count) if number != end)]
    names = {number: piece for piece, number in theirs.get_vocab().items()}
    pieces = [*SYMBOLS, *(f"{names.get(number, '')}<{number}>" for number in ids[len(SYMBOLS) :])]
    described = parse_json(theirs.backend_tokenizer.to_str())
    described |= {"padding": None, "truncation": None}
    arguments = {"tokenizer": described, "ids": ids, "pieces": pieces}
    first = [] if theirs.chat_template else [ids.index(number) for number in _before(theirs)]
    return (
        Tokenizer("prompt", PromptCodec(frames, **arguments, prefix=first), nfc=False),
        Tokenizer("imported", ImportedCodec(**arguments), nfc=False),
    )


def _frames(tokenizer: Any) -> dict[str, str]:
    """Return the texts around turns."""
    if not tokenizer.chat_template:
        return {**dict.fromkeys(FRAMES, LINE), "opening": "", "system": ""}
    system, user, answer, again = MARKS

    def rendered(*turns: tuple[str, str]) -> str:
        messages = [{"role": role, "content": text} for role, text in turns]
        options = {"tokenize": False, "add_generation_prompt": True}
        return str(tokenizer.apply_chat_template(messages, **options))

    opening, rest = rendered(("user", user)).split(user)
    talk = rendered(("user", user), ("assistant", answer), ("user", again))
    to_assistant, to_user = talk.split(user)[1].split(again)[0].split(answer)
    try:
        before, after = rendered(("system", system), ("user", user)).split(user)[0].split(system)
    except Exception:  # jinja has many, and templates raise their own: there is no system
        before, after = opening, LINE
    found = {"opening": opening, "system": before, "after_system": after}
    return {**found, "to_assistant": to_assistant, "to_user": to_user, "to_answer": rest}


def _before(tokenizer: Any) -> list[int]:
    """Return the ids that a tokenizer puts before texts."""
    probe = "a"
    whole, plain = (
        list(tokenizer(probe, add_special_tokens=special)["input_ids"]) for special in (True, False)
    )
    start = next(i for i in range(len(whole) + 1) if whole[i : i + len(plain)] == plain)
    return whole[:start]
