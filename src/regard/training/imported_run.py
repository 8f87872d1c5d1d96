"""Runs of models that transformers has trained: their folder becomes a run folder."""

from pathlib import Path

from regard.atomic_files import write_atomic
from regard.errors import ArgumentError
from regard.imported import ImportedFolder
from regard.pretrained import is_pretrained
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
