"""The folder of an exported model, kept only if it computes what the model computes."""

import hashlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import onnxruntime
import torch
from jinja2 import StrictUndefined, Template
from torch import Tensor, nn

from regard import extras, ops, safe_read, symbols
from regard.api import bundled_models
from regard.data import lookup_codecs, text_codec
from regard.decoding import DecodingOptions, decode
from regard.errors import ArgumentError, ExportError
from regard.export import beam_search
from regard.export.decode import Exported
from regard.layers import LearnedPositions
from regard.models import NumberModel, SequenceModel
from regard.models.protocol import inference
from regard.pretrained import PromptModel
from regard.symbols import BOS, EOS, PAD, UNK
from regard.tasks.inputs.graph_inputs import GraphInputs
from regard.training import RunFolder, Saved
from regard.version import __version__

TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch: one alone, the shortest that there is, and mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: steps to compare at most
MAX_STEPS: Final = 24
#: random sources whose predictions are compared, and their longest
SOURCES: Final = 100
LONGEST: Final = 20
BATCH: Final = 32
#: share of equal predictions below which graphs of 32 bits are refused: rounding may change the
#: places of two hypotheses whose scores differ in the sixth digit, but seldom does
LEAST_EQUAL: Final = 0.95


class ExportCheck(NamedTuple):
    """Result of a comparison of exported graphs with their model.

    Attributes:
        largest_difference: of a log-probability or an attention weight.
        beam: width of the search whose predictions are compared.
        sources: number of these.
        equal_predictions: number of sources for which both find the same tokens.
    """

    largest_difference: float
    beam: int
    sources: int
    equal_predictions: int


def verify(
    saved: Saved, folder: Path, sources: Sequence[str] | None = None, *, exact: bool = True
) -> ExportCheck:
    """Compare graphs with their model: log-probabilities, then predictions by beam search.

    Args:
        saved: the model.
        folder: with the graphs and all that `decode.py` needs.
        sources: whose predictions are compared, or none; random ones if None.
        exact: raise ExportError if log-probabilities differ by more than `TOLERANCE`, or more than
            a few predictions do.
    """
    with readable_errors():
        exported = Exported(folder)
        worst = _verify_log_probs(saved, exported, TOLERANCE if exact else float("inf"))
        equal = _equal_predictions(saved, exported, sources)
    found = ExportCheck(worst, exported.options.beam, len(equal), sum(equal))
    if exact and found.equal_predictions < LEAST_EQUAL * found.sources:
        raise ExportError(
            f"the graphs must find the model's predictions by beam search, but "
            f"{found.equal_predictions} of {found.sources} are equal, so that nothing was kept: "
            f"report it with the versions of torch, onnx and onnxruntime."
        )
    return found


def _verify_log_probs(saved: Saved, exported: Exported, tolerance: float) -> float:
    """Return the largest difference of a log-probability or an attention weight.

    Both follow the model's greedy search, and the log-probabilities of all tokens are compared at
    each step. Raises ExportError if they differ by more than the tolerance, or are NaN.
    """
    model, inputs = saved.sequence_model, saved.task.input.graph_inputs()
    chance = torch.Generator().manual_seed(1)
    with inference(model), ops.use_backend("reference"):
        batches = [_differences(model, exported, inputs, n, chance) for n in BATCHES]
        worst = float(np.max([one for batch in batches for one in batch]))
    if not worst <= tolerance:  # so that NaN fails too
        raise ExportError(
            f"the graphs must give the model's log-probabilities within {tolerance:g}, but the "
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
            f"the graphs must run by onnxruntime, but version {onnxruntime.__version__} says "
            f"{str(error).splitlines()[0]!r}, so that nothing was kept: try another version, or "
            f"report it."
        ) from error


def _differences(
    model: SequenceModel,
    exported: Exported,
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


def _equal_predictions(
    saved: Saved, exported: Exported, sources: Sequence[str] | None
) -> list[bool]:
    """Return whether the model and its graphs find the same tokens, for each source."""
    names = ("ends", "suppressed", "suppressed_first")
    own = {name: saved.task.target.decoding.get(name, ()) for name in names}
    options = DecodingOptions(beam=exported.options.beam, **own)
    batches = _random_batches(saved) if sources is None else _batches(saved, exported, sources)
    return [
        ours[0].tokens == theirs[0].tokens
        for rows, src, lengths in batches
        for ours, theirs in zip(
            decode(saved.sequence_model, src, lengths, saved.task.prefixed(options, rows)),
            exported.search(rows, batch=len(rows)),
            strict=True,
        )
    ]


#: sources as the graphs read them, as the model does, and their lengths
_Batch = tuple[list[Any], Tensor, Tensor]


def _random_batches(saved: Saved) -> Iterator[_Batch]:
    """Yield batches of random sources of several lengths."""
    inputs, chance = saved.task.input.graph_inputs(), torch.Generator().manual_seed(2)
    positions = torch.randint(2, LONGEST + 1, (SOURCES,), generator=chance).sort().values
    for part in torch.split(positions, BATCH):
        lengths = inputs.lengths(part)
        plain = inputs.draw(lengths, chance)
        rows = [row[:length].numpy() for row, length in zip(plain, lengths.tolist(), strict=True)]
        if not plain.is_floating_point():
            rows = [row.tolist() for row in rows]
        yield rows, inputs.as_read(plain), lengths


def _batches(saved: Saved, exported: Exported, sources: Sequence[str]) -> Iterator[_Batch]:
    """Yield batches of a user's sources, of similar lengths."""
    given = sorted(sources, key=len)
    for start in range(0, len(given), BATCH):
        part = given[start : start + BATCH]
        own = saved.task.input.rows(part)
        yield [exported.source.encode(source) for source in part], *saved.task.input.batch(own)


#: packages that write a format and run it; each format is an extra of regard
FORMATS: Final = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "ctranslate2": ("ctranslate2",),
}
#: the program of each format, which predicts without regard
PROGRAMS: Final = {"onnx": "decode.py", "ctranslate2": "translate.py"}
#: that of models that predict numbers
NUMBER_PROGRAM: Final = "predict.py"
#: the modules that a program imports
MODULES: Final = {
    "decode.py": (beam_search, text_codec, lookup_codecs, symbols),
    "predict.py": (text_codec, lookup_codecs, symbols),
    "translate.py": (text_codec, lookup_codecs, symbols),
}
#: the templates of the README of a folder, by its program
READMES: Final = {
    "decode.py": "README.onnx.md.jinja",
    "predict.py": "README.numbers.md.jinja",
    "translate.py": "README.ctranslate2.md.jinja",
}
#: precisions of the weights of onnx
PRECISIONS: Final = ("32", "int8")
#: version of manifest.json
VERSION: Final = 2


class ExportResult(NamedTuple):
    """The folder of an exported model, and its largest difference from the model.

    The number of equal predictions is in `manifest["verified"]`.
    """

    path: Path
    difference: float
    manifest: dict[str, Any]

    @property
    def program(self) -> Path:
        """The program in the folder that predicts."""
        usual = PROGRAMS[self.manifest["format"]]
        return self.path / str(self.manifest.get("program", usual))


def export(
    run: str | Path,
    output: str | Path | None = None,
    *,
    to: str = "onnx",
    precision: str = "32",
    attention: bool = False,
    check: Sequence[str] | None = None,
) -> ExportResult:
    """Export a run as a folder with tokenizers and a program that predicts without regard.

    Args:
        run: a run folder, or the name of a bundled model.
        output: a new folder; `NAME-FORMAT`, or `NAME-FORMAT-int8`, if None.
        to: the format: `onnx`, or `ctranslate2` for the preset `transformer`.
        precision: of the weights of onnx: `32`, or `int8`, whose predictions may differ.
        attention: export the attention weights of each step, too; of onnx only.
        check: sources whose predictions are compared with the model's, for onnx; random ones if
            None.
    """
    if to not in FORMATS:
        raise ArgumentError("--to", f"be one of {', '.join(FORMATS)}", repr(to), "leave it out")
    if precision not in PRECISIONS:
        rule = f"be one of {', '.join(PRECISIONS)}"
        raise ArgumentError("--precision", rule, repr(precision), "leave it out for 32 bits")
    if to != "onnx":
        refuse_onnx_options(to, precision, attention, check)
    if check is not None and not check:
        raise ArgumentError("--check", "have a source at least", "empty", "leave it out")
    extras.require(*FORMATS[to], extra=to, for_=f"`regard export --to {to}`")
    found = bundled_models.find(run)
    suffix = "" if precision == "32" else f"-{precision}"
    path = Path(f"{found.resolve().name}-{to}{suffix}" if output is None else output)
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
    predicts_numbers = isinstance(saved.model, NumberModel)
    if predicts_numbers:
        _refuse_token_options(to, precision, attention, check)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as name:
        folder = Path(name) / path.name
        folder.mkdir()
        if predicts_numbers:
            manifest = _write_numbers(saved, found, folder)
        elif to == "onnx":
            manifest = _write_onnx(saved, found, folder, precision, attention, check)
        else:
            manifest = _write_ctranslate2(saved, found, folder)
        folder.rename(path)
    return ExportResult(path, manifest["verified"]["largest_difference"], manifest)


def refuse_onnx_options(to: str, precision: str, attention: bool, check: object) -> None:
    """Raise for options that a folder for another format does not have."""
    own = "`translate.py --precision int8` converts the weights"
    fixes = {
        "--precision": (precision != "32", own if to == "ctranslate2" else "leave it out"),
        "--attention": (attention, "export to onnx for it"),
        "--check": (check is not None, "export to onnx for it"),
    }
    for option, (given, fix) in fixes.items():
        if given:
            raise ArgumentError(option, f"be left out for {to}", "given", fix)


def _refuse_token_options(to: str, precision: str, attention: bool, check: object) -> None:
    """Raise for options that a model of numbers does not have."""
    given = {
        "--to": (to != "onnx", to),
        "--precision": (precision != "32", precision),
        "--attention": (attention, "given"),
        "--check": (check is not None, "given"),
    }
    for option, (wrong, value) in given.items():
        if wrong:
            rule = "be left out for a run that predicts numbers"
            raise ArgumentError(option, rule, value, "leave it out")


def _write_numbers(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    """Write the graph of a model of numbers and compare it with the model; see `_write_onnx`."""
    from regard.export.graphs import verify_numbers, write_number_graph

    described = write_number_graph(saved, folder)
    _write_programs(saved, folder, NUMBER_PROGRAM)
    manifest = _manifest(saved, run, folder, "onnx", NUMBER_PROGRAM) | described
    _write_manifest(manifest, folder)
    with readable_errors():
        manifest["verified"] = verify_numbers(saved, folder)._asdict()
    return _finish(manifest, folder)


def _write_onnx(
    saved: Saved,
    run: Path,
    folder: Path,
    precision: str,
    attention: bool,
    check: Sequence[str] | None,
) -> dict[str, Any]:
    """Write all files and compare the graphs with the model; returns the manifest."""
    from regard.export.graphs import (
        quantize,
        simplify,
        write_graphs,  # not above: the extra may be missing
    )

    inputs = saved.task.input.graph_inputs()
    ports = write_graphs(saved.sequence_model, inputs, folder, attention=attention)
    _write_programs(saved, folder, PROGRAMS["onnx"])
    manifest = {
        **_manifest(saved, run, folder, "onnx", PROGRAMS["onnx"]),
        "search": _search(saved),
        "precision": precision,
        **ports.graphs(inputs, saved.text_target.vocab_size),
    }
    _write_manifest(manifest, folder)
    if precision == "int8":
        verify(saved, folder, [])  # what is quantised must be right
        quantize(folder)
    simplify(folder)
    found = verify(saved, folder, check, exact=precision == "32")
    manifest["verified"] = found._asdict()
    manifest["sha256"] = _digest(folder, PROGRAMS["onnx"])
    return _finish(manifest, folder)


def _write_ctranslate2(saved: Saved, run: Path, folder: Path) -> dict[str, Any]:
    """Write all files and compare the engine with the model; returns the manifest."""
    from regard.export.ctranslate2_model import MAX_POSITIONS, verify, write_model

    write_model(saved, run, folder)
    program = PROGRAMS["ctranslate2"]
    _write_programs(saved, folder, program)
    manifest = _manifest(saved, run, folder, "ctranslate2", program)
    manifest["search"] = _search(saved)
    manifest["limits"]["positions"] = min(
        manifest["limits"]["positions"] or MAX_POSITIONS, MAX_POSITIONS
    )
    _write_manifest(manifest, folder)
    manifest["verified"] = {"largest_difference": verify(saved, folder)}
    return _finish(manifest, folder)


def _write_programs(saved: Saved, folder: Path, program: str) -> None:
    """Write the tokenizers, and the program that predicts."""
    saved.src_tokenizer.save(folder / "tokenizer.src.json")
    saved.tgt_tokenizer.save(folder / "tokenizer.tgt.json")
    codec = inspect.getfile(saved.task.input.facts.codec)
    files = [Path(__file__).with_name(program), *(str(each.__file__) for each in MODULES[program])]
    for file in map(Path, dict.fromkeys([*map(str, files), codec])):
        shutil.copyfile(file, folder / file.name)


def _finish(manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write the complete manifest and the README; returns the manifest."""
    _write_manifest(manifest, folder)
    (folder / "README.md").write_text(_readme(manifest), encoding="utf-8")
    return manifest


def _write_manifest(manifest: dict[str, Any], folder: Path) -> None:
    text = json.dumps(manifest, indent=1, ensure_ascii=False)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _search(saved: Saved) -> dict[str, Any]:
    return {"beam": saved.config.beam, "length_penalty": DecodingOptions().length_penalty}


def _manifest(saved: Saved, run: Path, folder: Path, to: str, program: str) -> dict[str, Any]:
    options = DecodingOptions()
    target, own = saved.tgt_tokenizer, saved.task.input.describe().manifest
    codec = saved.task.input.facts.codec
    subwords = {own.get("tokenizer", own["kind"]), target.kind} & {"bpe", "unigram"}
    made = {name: version(name) for name in ("torch", *FORMATS[to])}
    runtime = ["numpy", "onnxruntime"] if to == "onnx" else ["ctranslate2"]
    return {
        "format": to,
        "version": VERSION,
        "name": run.resolve().name,
        "preset": saved.config.preset,
        "made_by": {"regard": __version__, **made},
        "program": program,
        "sha256": _digest(folder, program),
        "needs": [*runtime, *(["tokenizers"] if subwords else []), *own.pop("needs", ())],
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


def _digest(folder: Path, program: str) -> str:
    """Return the checksum of the weights."""
    files = {
        "decode.py": ("encoder.onnx", "step.onnx"),
        "predict.py": ("model.onnx",),
        "translate.py": ("model.bin",),
    }
    parts = files[program]
    return hashlib.sha256(
        b"".join(safe_read.read_bytes(folder / part, None) for part in parts)
    ).hexdigest()


def _readme(manifest: dict[str, Any]) -> str:
    text = safe_read.read_text(Path(__file__).with_name(READMES[manifest["program"]]))
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
