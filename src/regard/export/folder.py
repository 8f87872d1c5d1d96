"""A folder that holds a model for other programs, left only if it says what the model says."""

import hashlib
import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from torch import nn

from regard import extras
from regard.api import bundled_models
from regard.data import FrameScaler, SourceEncoder
from regard.decoding import DecodingOptions
from regard.errors import ArgumentError
from regard.export.errors import ExportError
from regard.export.readme import readme
from regard.layers import LearnedPositions
from regard.symbols import BOS, EOS, PAD, UNK
from regard.training import RunFolder, Saved
from regard.version import __version__

FORMATS: Final = ("onnx",)
#: make the graphs, and run them
PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
DECODER: Final = Path(__file__).with_name("decode.py")
#: of manifest.json
VERSION: Final = 1


class ExportResult(NamedTuple):
    """Where a model was exported to, and how far it is from the model itself."""

    path: Path
    difference: float
    manifest: dict[str, Any]


def export(
    run: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "onnx",
    attention: bool = False,
) -> ExportResult:
    """Writes a run as a folder of graphs, tokenisers and a program that needs neither torch nor us.

    Args:
        run: a run folder, or the name of a bundled model.
        output: a new folder; `NAME-onnx` if None.
        to: the format; onnx is all there is.
        attention: whether a step also says where it looked.
    """
    if to not in FORMATS:
        raise ArgumentError("--to", f"be one of {', '.join(FORMATS)}", repr(to), "leave it out")
    extras.require(*PACKAGES, extra="onnx", for_="`regard export`")
    found = bundled_models.find(run)
    path = Path(f"{found.resolve().name}-onnx") if output is None else Path(output)
    if path.exists() or path.is_symlink():
        raise ArgumentError("-o", "be a new folder", f"{path}, which exists", "choose another")
    saved = RunFolder(found).load("cpu")
    _check_kind(saved, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        folder = Path(name) / path.name
        folder.mkdir()
        manifest = _write(saved, found, folder, attention)
        folder.rename(path)
    return ExportResult(path, manifest["verified"]["largest_difference"], manifest)


def _check_kind(saved: Saved, path: Path) -> None:
    if saved.config.reads_texts:
        raise ExportError(
            f"an exported model must turn a source into a target, but {path} is a language model "
            f"({saved.config.preset}), which reads none: use `regard predict`."
        )


def _write(saved: Saved, run: Path, folder: Path, attention: bool) -> dict[str, Any]:
    """Writes everything and compares it with the model."""
    from regard.export.graphs import write_graphs  # not above: the extra may be missing
    from regard.export.verify import verify

    given = saved.kind.sources.graph_inputs()
    ports = write_graphs(saved.model, given, folder, attention=attention)
    saved.src_tokenizer.save(folder / "tokenizer.src.json")
    saved.tgt_tokenizer.save(folder / "tokenizer.tgt.json")
    shutil.copyfile(DECODER, folder / DECODER.name)
    manifest = {
        **_manifest(saved, run, folder),
        **ports.graphs(given, saved.tgt_tokenizer.vocab_size),
    }
    _write_manifest(manifest, folder)
    manifest["verified"] = {"largest_difference": verify(saved.model, given, folder)}
    _write_manifest(manifest, folder)
    (folder / "README.md").write_text(readme(manifest), encoding="utf-8")
    return manifest


def _write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _manifest(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    options = DecodingOptions()
    sides = {"source": saved.src_tokenizer, "target": saved.tgt_tokenizer}
    subwords = any(side.kind in ("bpe", "unigram") for side in sides.values())
    made = {name: version(name) for name in ("torch", *PACKAGES)}
    weights = (folder / "encoder.onnx").read_bytes() + (folder / "step.onnx").read_bytes()
    return {
        "format": "onnx",
        "version": VERSION,
        "name": run.resolve().name,
        "preset": saved.config.preset,
        "made_by": {"regard": __version__, **made},
        "sha256": hashlib.sha256(weights).hexdigest(),
        "needs": ["numpy", "onnxruntime", *(["tokenizers"] if subwords else [])],
        "symbols": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK},
        "limits": {
            "per_source_token": options.max_len_ratio,
            "extra": options.max_len_extra,
            "positions": positions(saved.model),
            "one_per_source_token": saved.config.tags,
        },
        "tokenizers": {name: _described(side) for name, side in sides.items()},
    }


def _described(side: SourceEncoder) -> dict[str, Any]:
    if isinstance(side, FrameScaler):
        return {"kind": side.kind, "features": side.features, "stack": side.stack}
    return {"kind": side.kind, "tokens": side.vocab_size}


def positions(model: nn.Module) -> int | None:
    """How long a source or a target may be; None if there is no limit."""
    tables = [len(m.table) for m in model.modules() if isinstance(m, LearnedPositions)]
    return min(tables, default=None)
