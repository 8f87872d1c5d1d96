"""The folder of an exported model, kept only if its graphs compute what the model computes."""

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

FORMATS: Final = ("onnx",)
#: make the graphs, and run them
PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
DECODER: Final = Path(__file__).with_name("decode.py")
README: Final = Path(__file__).with_name("README.md.jinja")
#: version of manifest.json
VERSION: Final = 1


class ExportResult(NamedTuple):
    """The folder of an exported model, and its largest difference from the model."""

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
    """Export a run as a folder of graphs, tokenisers and a program that runs them without regard.

    Args:
        run: a run folder, or the name of a bundled model.
        output: a new folder; `NAME-onnx` if None.
        to: the format; only onnx is supported.
        attention: export the attention weights of each step, too.
    """
    if to not in FORMATS:
        raise ArgumentError("--to", f"be one of {', '.join(FORMATS)}", repr(to), "leave it out")
    extras.require(*PACKAGES, extra="onnx", for_="`regard export`")
    found = bundled_models.find(run)
    path = Path(f"{found.resolve().name}-onnx") if output is None else Path(output)
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
        manifest = _write(saved, found, folder, attention)
        folder.rename(path)
    return ExportResult(path, manifest["verified"]["largest_difference"], manifest)


def _write(saved: Saved, run: Path, folder: Path, attention: bool) -> dict[str, Any]:
    """Write all files and compare the graphs with the model; returns the manifest."""
    from regard.export.graphs import write_graphs  # not above: the extra may be missing
    from regard.export.verify import verify

    inputs = saved.kind.sources.graph_inputs()
    ports = write_graphs(saved.model, inputs, folder, attention=attention)
    saved.src_tokenizer.save(folder / "tokenizer.src.json")
    saved.tgt_tokenizer.save(folder / "tokenizer.tgt.json")
    shutil.copyfile(DECODER, folder / DECODER.name)
    manifest = {
        **_manifest(saved, run, folder),
        **ports.graphs(inputs, saved.tgt_tokenizer.vocab_size),
    }
    _write_manifest(manifest, folder)
    manifest["verified"] = {"largest_difference": verify(saved.model, inputs, folder)}
    _write_manifest(manifest, folder)
    (folder / "README.md").write_text(_readme(manifest), encoding="utf-8")
    return manifest


def _write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _manifest(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    options = DecodingOptions()
    target = saved.tgt_tokenizer
    subwords = {saved.src_tokenizer.kind, target.kind} & {"bpe", "unigram"}
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
            "one_per_source_token": saved.kind.one_output_per_input,
        },
        "tokenizers": {
            "source": saved.kind.sources.manifest(),
            "target": {"kind": target.kind, "tokens": target.vocab_size},
        },
    }


def _readme(manifest: dict[str, Any]) -> str:
    text = README.read_text(encoding="utf-8")
    template = Template(
        text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    source = manifest["tokenizers"]["source"]
    return str(template.render(manifest, source=source, vectors="stack" in source))


def positions(model: nn.Module) -> int | None:
    """Return the longest source or target, or None if there is no limit."""
    tables = [len(m.table) for m in model.modules() if isinstance(m, LearnedPositions)]
    return min(tables, default=None)
