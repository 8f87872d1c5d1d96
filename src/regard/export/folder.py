"""The folder of an exported model, kept only if it computes what the model computes."""

import hashlib
import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import StrictUndefined, Template
from torch import nn

from regard import extras
from regard.api import bundled_models
from regard.decoding import DecodingOptions
from regard.errors import ArgumentError, ExportError
from regard.layers import LearnedPositions
from regard.symbols import BOS, EOS, PAD, UNK
from regard.training import RunFolder, Saved
from regard.version import __version__

#: packages that write a format and run it; each format is an extra of regard
FORMATS: Final = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
}
#: the program of each format, which predicts without regard
PROGRAMS: Final = {"onnx": "decode.py", "ctranslate2": "translate.py"}
#: the modules that it imports
MODULES: Final = {
    "onnx": ("beam_search.py", "text_codec.py"),
    "ctranslate2": ("text_codec.py",),
}
#: version of manifest.json
VERSION: Final = 1


class ExportResult(NamedTuple):
    """The folder of an exported model, and its largest difference from the model."""

    path: Path
    difference: float
    manifest: dict[str, Any]

    @property
    def program(self) -> Path:
        """The program in the folder that predicts."""
        return self.path / PROGRAMS[self.manifest["format"]]


def export(
    run: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "onnx",
    attention: bool = False,
) -> ExportResult:
    """Export a run as a folder with tokenizers and a program that predicts without regard.

    Args:
        run: a run folder, or the name of a bundled model.
        output: a new folder; `NAME-FORMAT` if None.
        to: the format: `onnx`, or `ctranslate2` for the preset `transformer`.
        attention: export the attention weights of each step, too; of onnx only.
    """
    if to not in FORMATS:
        raise ArgumentError("--to", f"be one of {', '.join(FORMATS)}", repr(to), "leave it out")
    if attention and to != "onnx":
        raise ArgumentError(
            "--attention", "be left out for ctranslate2", "given", "export to onnx for it"
        )
    extras.require(*FORMATS[to], extra=to, for_=f"`regard export --to {to}`")
    found = bundled_models.find(run)
    path = Path(f"{found.resolve().name}-{to}") if output is None else Path(output)
    if path.exists() or path.is_symlink():
        raise ArgumentError("-o", "be a new folder", f"{path}, which exists", "choose another")
    saved = RunFolder(found).load("cpu")
    if not saved.kind.has_sources:
        raise ExportError(
            f"an exported model must turn a source into a target, but {found} is a language model "
            f"({saved.config.preset}), which reads none: use `regard predict`."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        folder = Path(name) / path.name
        folder.mkdir()
        if to == "onnx":
            manifest = _write_onnx(saved, found, folder, attention)
        else:
            manifest = _write_ctranslate2(saved, found, folder)
        folder.rename(path)
    return ExportResult(path, manifest["verified"]["largest_difference"], manifest)


def _write_onnx(saved: Saved, run: Path, folder: Path, attention: bool) -> dict[str, Any]:
    """Write all files and compare the graphs with the model; returns the manifest."""
    from regard.export.graphs import write_graphs  # not above: the extra may be missing
    from regard.export.verify import verify

    inputs = saved.kind.sources.graph_inputs()
    ports = write_graphs(saved.model, inputs, folder, attention=attention)
    _write_programs(saved, folder, "onnx")
    manifest = {
        **_manifest(saved, run, folder, "onnx"),
        **ports.graphs(inputs, saved.tgt_tokenizer.vocab_size),
    }
    _write_manifest(manifest, folder)
    manifest["verified"] = {"largest_difference": verify(saved.model, inputs, folder)}
    return _finish(manifest, folder)


def _write_ctranslate2(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    """Write all files and compare the engine with the model; returns the manifest."""
    from regard.export.ctranslate2_model import MAX_POSITIONS, verify, write_model

    write_model(saved, run, folder)
    _write_programs(saved, folder, "ctranslate2")
    manifest = _manifest(saved, run, folder, "ctranslate2")
    manifest["limits"]["positions"] = min(
        manifest["limits"]["positions"] or MAX_POSITIONS, MAX_POSITIONS
    )
    _write_manifest(manifest, folder)
    manifest["verified"] = {"largest_difference": verify(saved, folder)}
    return _finish(manifest, folder)


def _write_programs(saved: Saved, folder: Path, to: str) -> None:
    """Write the tokenizers, and the program that predicts."""
    saved.src_tokenizer.save(folder / "tokenizer.src.json")
    saved.tgt_tokenizer.save(folder / "tokenizer.tgt.json")
    for name in (PROGRAMS[to], *MODULES[to]):
        shutil.copyfile(Path(__file__).with_name(name), folder / name)


def _finish(manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the complete manifest and the README; returns the manifest."""
    _write_manifest(manifest, folder)
    (folder / "README.md").write_text(_readme(manifest), encoding="utf-8")
    return manifest


def _write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _manifest(saved: Saved, run: Path, folder: Path, to: str) -> dict[str, Any]:
    options = DecodingOptions()
    target = saved.tgt_tokenizer
    subwords = {saved.src_tokenizer.kind, target.kind} & {"bpe", "unigram"}
    made = {name: version(name) for name in ("torch", *FORMATS[to])}
    parts = ("encoder.onnx", "step.onnx") if to == "onnx" else ("model.bin",)
    runtime = ["numpy", "onnxruntime"] if to == "onnx" else ["ctranslate2"]
    return {
        "format": to,
        "version": VERSION,
        "name": run.resolve().name,
        "preset": saved.config.preset,
        "made_by": {"regard": __version__, **made},
        "sha256": hashlib.sha256(
            b"".join((folder / part).read_bytes() for part in parts)
        ).hexdigest(),
        "needs": [*runtime, *(["tokenizers"] if subwords else [])],
        "symbols": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK},
        "limits": {
            "per_source_token": options.max_len_ratio,
            "extra": options.max_len_extra,
            "positions": positions(saved.model),
            "one_per_source_token": saved.kind.one_output_per_input,
        },
        "search": {"beam": saved.config.beam, "length_penalty": options.length_penalty},
        "tokenizers": {
            "source": saved.kind.sources.manifest(),
            "target": {"kind": target.kind, "tokens": target.vocab_size},
        },
    }


def _readme(manifest: dict[str, Any]) -> str:
    name = f"README.{manifest['format']}.md.jinja"
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    template = Template(
        text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    source = manifest["tokenizers"]["source"]
    return str(template.render(manifest, source=source, vectors="stack" in source))


def positions(model: nn.Module) -> int | None:
    """Return the longest source or target, or None if there is no limit."""
    tables = [len(m.table) for m in model.modules() if isinstance(m, LearnedPositions)]
    return min(tables, default=None)
