"""The folder of an exported model, kept only if it computes what the model computes."""

import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from jinja2 import StrictUndefined, Template
from torch import Tensor, nn

from regard import decoding_options, errors, extras, ops, safe_read, symbols
from regard.api import bundled_models
from regard.atomic_files import atomic_folder
from regard.data import lookup_codecs, text_codec
from regard.decoding import DecodingOptions, decode
from regard.errors import ArgumentError, ExportError
from regard.export import beam_search
from regard.layers import LearnedPositions
from regard.models import NumberModel, SequenceModel
from regard.models.protocol import inference
from regard.pretrained import PromptModel
from regard.symbols import BOS, EOS, PAD, UNK
from regard.tasks.inputs.graph_inputs import GraphInputs
from regard.training import RunFolder, Saved
from regard.version import __version__

if TYPE_CHECKING:
    from regard.export.decode import Exported

TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch: one alone, the shortest that there is, and mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: steps to compare at most
MAX_STEPS: Final = 24


def verify(saved: Saved, folder: Path) -> float:
    """Return the largest difference of a log-probability or an attention weight.

    Both follow the model's greedy search, and the log-probabilities of all tokens are compared at
    each step. Raises ExportError if they differ by more than the tolerance, or are NaN.
    """
    from regard.export.decode import Exported  # not above: the extra may be missing

    model, inputs = saved.sequence_model, saved.task.input.graph_inputs()
    chance = torch.Generator().manual_seed(1)
    with inference(model), ops.use_backend("reference"):
        exported = Exported(folder)
        batches = [_differences(model, exported, inputs, n, chance) for n in BATCHES]
        worst = float(np.max([one for batch in batches for one in batch]))
    if not worst <= TOLERANCE:  # so that NaN fails too
        raise ExportError(
            f"the graphs must give the model's log-probabilities within {TOLERANCE:g}, but the "
            f"largest difference is {worst:.2g}, so that nothing was kept: report it with the "
            f"versions of torch, onnx and onnxruntime."
        )
    return worst


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the errors of onnxruntime into a sentence."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ExportError(
            f"the graphs must run by onnxruntime, but version {version('onnxruntime')} says "
            f"{str(error).splitlines()[0]!r}, so that nothing was kept: try another version, or "
            f"report it."
        ) from error


def _differences(
    model: SequenceModel,
    exported: "Exported",
    inputs: GraphInputs,
    batch: tuple[int, ...],
    chance: torch.Generator,
) -> Iterator[float]:
    lengths = inputs.possible(torch.tensor(batch))
    plain = inputs.draw(lengths, chance)
    src = inputs.as_read(plain)
    answers = [found[0].tokens for found in decode(model, src, lengths, DecodingOptions(beam=1))]
    tokens = torch.full_like(lengths, BOS)
    state = model.start(model.encode(src, lengths))
    graph_state = exported.first(plain.numpy(), lengths.numpy())
    for step in range(min(max(map(len, answers)) + 1, MAX_STEPS)):
        out = model.step(tokens, state, need_weights=True)
        log_probs, graph_state, looked = exported.next(tokens.numpy(), graph_state)
        yield _largest(out.logits.log_softmax(-1), log_probs)
        for weights, seen in zip(out.maps.get("cross", ()), looked, strict=False):
            yield _largest(weights.squeeze(2), seen)
        state = out.state
        tokens = torch.tensor([row[step] if step < len(row) else EOS for row in answers])


def _largest(ours: Tensor, theirs: Any) -> float:
    return float(np.abs(ours.numpy() - theirs).max())


#: packages that write graphs and run them
PACKAGES: Final = ("onnx", "onnxscript", "onnxruntime")
#: the program of a folder, and the modules that it imports
PROGRAM: Final = "decode.py"
MODULES: Final = (beam_search, decoding_options, text_codec, lookup_codecs, symbols, errors)
#: version of manifest.json
VERSION: Final = 2


class ExportResult(NamedTuple):
    """The folder of an exported model, and its largest difference from the model."""

    path: Path
    difference: float
    manifest: dict[str, Any]

    @property
    def program(self) -> Path:
        """The program in the folder that predicts."""
        return self.path / str(self.manifest["program"])


def export(run: str | Path, output: str | Path | None = None) -> ExportResult:
    """Export a run as a folder with graphs, tokenizers and a program that predicts by these alone.

    Args:
        run: a run folder, or the name of a bundled model.
        output: a new folder; `NAME-onnx` if None.
    """
    extras.require(*PACKAGES, extra="onnx", for_="`regard export`")
    found = bundled_models.find(run)
    path = Path(f"{found.resolve().name}-onnx" if output is None else output)
    if path.exists() or path.is_symlink():
        raise ArgumentError("-o", "be a new folder", f"{path}, which exists", "choose another")
    saved = RunFolder(found).load("cpu")
    if not saved.task.has_sources:
        raise ExportError(
            f"an exported model must turn a source into a target, but {found} is a language model "
            f"({saved.config.preset}), which reads none: use `regard predict`."
        )
    if isinstance(saved.model, PromptModel):
        raise ExportError(
            f"an exported model must have regard's own layers, but {found} trains one of "
            f"transformers: `regard export {found} --to transformers` writes it merged."
        )
    with atomic_folder(path) as folder:
        manifest = _write(saved, found, folder)
        _write_manifest(manifest, folder)
        (folder / "README.md").write_text(_readme(manifest), encoding="utf-8")
    return ExportResult(path, manifest["verified"]["largest_difference"], manifest)


def _write(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    """Write all files and compare them with the model; returns the manifest."""
    from regard.export.graphs import (  # not above: the extra may be missing
        simplify,
        verify_numbers,
        write_graphs,
        write_number_graph,
    )

    compare: Callable[[Saved, Path], float] = verify
    if isinstance(saved.model, NumberModel):
        graphs: tuple[str, ...] = ("model.onnx",)
        described = write_number_graph(saved, folder)
        compare = verify_numbers
    else:
        inputs = saved.task.input.graph_inputs()
        ports = write_graphs(saved.sequence_model, inputs, folder)
        simplify(folder)
        graphs = ("encoder.onnx", "step.onnx")
        described = _search(saved) | ports.graphs(inputs, saved.text_target.vocab_size)
    manifest = _manifest(saved, run, folder, graphs) | described
    _write_manifest(manifest, folder)
    with readable_errors():
        manifest["verified"] = {"largest_difference": compare(saved, folder)}
    return manifest


def _write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _search(saved: Saved) -> dict[str, Any]:
    found = {"beam": saved.config.beam, "length_penalty": DecodingOptions().length_penalty}
    names = {field.name for field in fields(DecodingOptions)}
    fixed = saved.task.tokens.decoding()
    found |= saved.text_target.decoding | fixed
    search = {name: value for name, value in found.items() if name in names}
    return {"search": search, "fixed": sorted(names & fixed.keys())}


def _manifest(saved: Saved, run: Path, folder: Path, graphs: tuple[str, ...]) -> dict[str, Any]:
    """Write the tokenizers, and the program that predicts; returns what is known of the folder."""
    options, codec = DecodingOptions(), saved.task.input.facts.codec
    target, own = saved.tgt_tokenizer, saved.task.input.describe().manifest
    saved.src_tokenizer.save(folder / "tokenizer.src.json")
    target.save(folder / "tokenizer.tgt.json")
    modules = (str(module.__file__) for module in MODULES)
    code = (str(Path(__file__).with_name(PROGRAM)), *modules, inspect.getfile(codec))
    for file in map(Path, dict.fromkeys(code)):
        shutil.copyfile(file, folder / file.name)
    weights = (safe_read.read_bytes(folder / name, None) for name in graphs)
    subwords = {own.get("tokenizer", own["kind"]), target.kind} & {"bpe", "unigram", "imported"}
    made = {name: version(name) for name in ("torch", *PACKAGES)}
    return {
        "format": "onnx",
        "version": VERSION,
        "name": run.resolve().name,
        "preset": saved.config.preset,
        "made_by": {"regard": __version__, **made},
        "program": PROGRAM,
        "sha256": hashlib.sha256(b"".join(weights)).hexdigest(),
        "needs": [
            *("numpy", "onnxruntime"),
            *(["tokenizers"] if subwords else []),
            *own.pop("needs", ()),
        ],
        "symbols": {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK},
        "limits": {
            "per_source_token": options.max_len_ratio,
            "extra": options.max_len_extra,
            "positions": positions(saved.model),
            "one_per_source_token": saved.task.output.one_per_input,
        },
        "tokenizers": {
            "source": {**own, "codec": [Path(inspect.getfile(codec)).stem, codec.__name__]},
            "target": {"kind": target.kind, "tokens": target.vocab_size},
        },
    }


def _readme(manifest: dict[str, Any]) -> str:
    answers = "numbers" if "numbers" in manifest else "tokens"
    text = safe_read.read_text(Path(__file__).with_name(f"README.{answers}.md.jinja"))
    template = Template(
        text, trim_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    source = manifest["tokenizers"]["source"]
    outputs = manifest.get("step", {}).get("outputs", ())
    return str(
        template.render(
            manifest,
            source=source,
            example=source.get("example"),
            vectors="stack" in source,
            pictures="patch" in source,
            stories="words" in source,
            series="look_back" in source,
            attention=any(port["name"].startswith("attention.") for port in outputs),
        )
    )


def positions(model: nn.Module) -> int | None:
    """Return the longest source or target, or None if there is no limit."""
    tables = [len(m.table) for m in model.modules() if isinstance(m, LearnedPositions)]
    return min(tables, default=None)
