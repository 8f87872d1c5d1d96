"""Runs of models that transformers has trained: their folder becomes a run folder."""

from pathlib import Path

from regard import safe_read
from regard.atomic_files import atomic_folder, write_atomic
from regard.errors import ArgumentError
from regard.imported import ImportedFolder, write_folder
from regard.pretrained import PromptModel, is_pretrained
from regard.training.adapters import save_merged
from regard.training.run_folder import RunFolder, load_imported

CARD = """# {name}

A {kind} of transformers in regard's own layers, from the folder `{source}`. Its outputs are
those of transformers up to rounding.

| | |
|---|---|
| preset | {preset} |
| weights | {weights:,} |
| reads | {reads} |
| writes | {writes} |
"""


def write_transformers(run: str | Path, output: str | Path | None = None) -> Path:
    """Write a run as a folder that `from_pretrained` of transformers opens, with equal outputs.

    Nothing is written unless the run was imported, or trained from an imported one, or trains
    layers of transformers, whose adapter is merged.

    Args:
        run: a run folder.
        output: a new folder; `NAME-transformers` if None.
    """
    folder = RunFolder(run)
    name = folder.path.resolve().name
    path = Path(f"{name}-transformers" if output is None else output)
    if path.exists() or path.is_symlink():
        raise ArgumentError("-o", "be a new folder", f"{path}, which exists", "choose another")
    saved = folder.load()
    card = safe_read.read_text(folder.card_file) if folder.card_file.is_file() else ""
    with atomic_folder(path) as made:
        if isinstance(saved.model, PromptModel):
            save_merged(saved.model, saved.config.start, made)
        else:
            preset = saved.config.preset
            write_folder(saved.model, saved.task.encoders, preset, made, name=name, card=card)
    return path


def import_run(
    folder: str | Path,
    output: str | Path,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Path:
    """Write a model of transformers as a run folder, which `regard.load` opens as any other.

    Nothing is written if it cannot be imported.

    Args:
        folder: that `save_pretrained` wrote.
        output: a new folder.
        source_language: of a model of many languages, as its tokenizer calls it: "en_XX".
        target_language: of the targets.
    """
    path = Path(folder)
    if not is_pretrained(path):
        rule = "be a folder that save_pretrained of transformers wrote"
        raise ArgumentError("folder", rule, repr(str(path)), "check the name")
    run = RunFolder(output)
    run.check_new()
    imported = ImportedFolder(
        path, source_language=source_language, target_language=target_language
    )
    saved = load_imported(imported)
    run.create()
    with run.held():
        for encoder, file in zip(
            saved.task.encoders, (run.src_tokenizer_file, run.tgt_tokenizer_file), strict=True
        ):
            encoder.save(file)
        run.write_config(saved.config)
        run.write_model(saved.model.state_dict())
        card = CARD.format(
            name=run.path.resolve().name,
            kind=imported.family.classes[0],
            source=path.resolve().name,
            preset=saved.config.preset,
            weights=sum(weight.numel() for weight in saved.model.parameters()),
            reads=saved.src_tokenizer.summary,
            writes=saved.tgt_tokenizer.summary,
        )
        write_atomic(run.card_file, card.encode())
    return run.path
