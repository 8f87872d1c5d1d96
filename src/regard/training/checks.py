"""Whether the settings of a run go together; asked before anything is read or written."""

from typing import Final

from regard.data.text_files import STDIN, is_pipe
from regard.errors import ArgumentError
from regard.training.config import Config, check_model
from regard.training.frames import check_frames, check_no_frames
from regard.training.pretrained_embeddings import check_vectors

#: the settings that name files, which are read more than once
FILES: Final = ("data", "tgt", "dev", "dev_tgt", "src_vectors", "tgt_vectors")


def check_settings(config: Config) -> None:
    """Raises where settings contradict each other, or no model can be made of them."""
    _check_files(config)
    if config.src_tokenizer == "vectors" and not config.reads_texts:
        check_frames(config)
    elif config.src_tokenizer != "auto" or config.reads_texts:
        check_no_frames(config)
    shared_kind(config)
    if config.model.get("tied") == "all" and not config.shared_vocab:
        raise ArgumentError(
            "tied",
            "be 'all' only where source and target have one vocabulary",
            "'all' without shared_vocab",
            "add shared_vocab=true, or say tied=output",
        )
    if config.copies and not config.shared_vocab:
        raise ArgumentError(
            "shared_vocab",
            f"be true for the preset {config.preset}, which copies tokens of the source",
            "false",
            "leave shared_vocab=false out",
        )
    if config.src_case != "keep" and (config.shared_vocab or config.reads_texts):
        raise ArgumentError(
            "src_case",
            "be keep where one tokeniser cuts what is read and what is written",
            repr(config.src_case),
            "bring the data to one case instead",
        )
    kinds = (config.src_tokenizer, config.tgt_tokenizer)
    if config.bpe_dropout and not {"auto", "bpe"} & set(kinds):
        raise no_bpe(config, *kinds)
    if config.bpe_dropout and config.tags:
        raise ArgumentError(
            "bpe_dropout",
            f"be 0 for the preset {config.preset}, which writes one token for each that it reads",
            f"{config.bpe_dropout:g}",
            "leave it out, or choose seq2seq or another preset",
        )
    check_model(config)
    check_vectors(config)


def _check_files(config: Config) -> None:
    """Raises for a file that can be read but once; stdin is kept, if it is the data."""
    for name in FILES:
        file = getattr(config, name)
        if not file or (name == "data" and file == STDIN) or not is_pipe(file):
            continue
        fix = "write it to a file first"
        if name == "data":
            fix += ", or pipe it to `regard train -`"
        rule = "be a file that can be read more than once"
        raise ArgumentError(name, rule, f"{file!r}, which is a pipe", fix)


def no_bpe(config: Config, src: str, tgt: str) -> ArgumentError:
    """What to say where merges are to be left out, and there are none."""
    return ArgumentError(
        "bpe_dropout",
        "be 0 where no side is cut by bpe",
        f"{config.bpe_dropout:g} with {src} and {tgt}",
        "add src_tokenizer=bpe and tgt_tokenizer=bpe, or leave it out",
    )


def shared_kind(config: Config) -> str:
    """The kind of a tokeniser for both sides, as the user wants it; auto where it is open."""
    asked = {config.src_tokenizer, config.tgt_tokenizer} - {"auto"}
    if config.shared_vocab and len(asked) > 1:
        raise ArgumentError(
            "src_tokenizer and tgt_tokenizer",
            "be the same with shared_vocab",
            f"{config.src_tokenizer} and {config.tgt_tokenizer}",
            "name one of them alone, or leave shared_vocab out",
        )
    return next(iter(asked), "auto")
