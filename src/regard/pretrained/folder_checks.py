"""Checks of a folder from elsewhere, before and after transformers reads it.

Files must be regular and lie in the folder, weights must be in safetensors, no file may name code,
and no size may ask for more memory or time than the weights account for.
"""

import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.nn.modules import module as torch_modules

from regard import safe_read
from regard.data.foreign_tokenizers import json_objects, tokenizer_growth
from regard.errors import DataError, RegardError, describe_memory_error

CONFIG: Final = "config.json"
SAFE_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
PICKLED_WEIGHTS: Final = ("pytorch_model.bin", "pytorch_model.bin.index.json")
#: files that say how pictures or sound are prepared
PROCESSORS: Final = ("preprocessor_config.json", "processor_config.json")
#: settings that choose a kernel, which may be a repository of code, or another file of weights
DROPPED: Final = re.compile(r"_?(attn|experts)_implementation.*|transformers_weights")
#: layers, which may share weights and take time alone, labels, which are listed before there is a
#: model, and any other number, at most
MOST: Final = (
    (re.compile(r"layers?$|depths?$"), 1000),
    (re.compile(r"labels$"), 100_000),
    (re.compile(""), 1 << 32),
)
#: bytes of a tokenizer.json
MAX_TOKENIZER: Final = 1 << 27
#: characters that a text may have after normalisation
MAX_CHARS: Final = 1 << 24
MAX_BEAMS: Final = 64


class PretrainedError(RegardError):
    """A folder or a model of the hub cannot be used."""


class StoredWeights(NamedTuple):
    """Number of tensors that a folder has in safetensors, and bytes."""

    tensors: int
    size: int


def check_files(path: Path) -> StoredWeights:
    """Raise unless a folder has regular files, safe weights and no code of its own."""
    inside = model_root(path)
    for file in sorted([*path.iterdir(), *path.glob("additional_chat_templates/*")]):
        if not file.is_dir():
            safe_read.open_regular(file, inside=inside).close()
        if file.suffix == ".json" and file.name != "tokenizer.json":
            _check_no_code(file)
    if (path / "adapter_config.json").exists():
        raise PretrainedError(
            f"{path} must hold a whole model, but it has an adapter of another one "
            f"(adapter_config.json): merge the two, and save the result."
        )
    has = [name for name in (*SAFE_WEIGHTS, *PICKLED_WEIGHTS) if (path / name).is_file()]
    if not has:
        raise PretrainedError(
            f"{path} must hold weights in {SAFE_WEIGHTS[0]}, but it has none: write it with "
            f"model.save_pretrained({str(path)!r})."
        )
    if has[0] in PICKLED_WEIGHTS:
        raise PretrainedError(
            f"weights must be in safetensors, but {path} has only pickled ones, which can run "
            f"code when they are read: if you trust where they come from, load the model with "
            f"from_pretrained of transformers and save it again."
        )
    files = stored_files(path)
    size = sum(file.stat().st_size for file in files)
    with explained(path, "whole weights"):
        return StoredWeights(sum(map(_stored_tensors, files)), size)


def model_root(path: Path) -> Path:
    """Return the folder that links may lead to: that of the hub's cache keeps blobs beside it."""
    cached = path.parent.name == "snapshots" and (path.parent.parent / "blobs").is_dir()
    return path.parent.parent if cached else path


def stored_files(path: Path) -> list[Path]:
    """Return the files of weights in safetensors of a folder that `check_files` has accepted."""
    name = next(name for name in SAFE_WEIGHTS if (path / name).is_file())
    return _indexed(path / name) if name.endswith(".json") else [path / name]


def _indexed(index: Path) -> list[Path]:
    """Return the files of weights that an index names, which must lie beside it."""
    found = safe_read.read_json(index)
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not names:
        raise _refused(index, "it must name the file of each weight (weight_map), but it does not")
    for name in names.values():
        plain = isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) is not None
        if not plain or not name.endswith(".safetensors") or not (index.parent / name).is_file():
            raise _refused(
                index,
                f"each weight must be in a file of the folder that ends in .safetensors, but one "
                f"is in {name!r:.80}",
            )
    return [index.parent / name for name in sorted(set(names.values()))]


def _stored_tensors(file: Path) -> int:
    """Return the number of tensors in a safetensors file, whose size must be as its header says.

    Nothing of it is mapped into memory yet.
    """
    with safe_read.open_regular(file) as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = safe_read.parse_json(stream.read(min(length, safe_read.MAX_JSON)))
    tensors = [part for name, part in header.items() if name != "__metadata__"]
    end = max((part["data_offsets"][1] for part in tensors), default=0)
    if 8 + length + end != file.stat().st_size:
        raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, not {8 + length + end:,}")
    return len(tensors)


def _check_no_code(file: Path) -> None:
    config = safe_read.read_json(file)
    if file.name not in (CONFIG, "tokenizer_config.json", "generation_config.json", *PROCESSORS):
        return
    if not isinstance(config, dict):
        raise PretrainedError(
            f"{file} must hold a JSON object, but it is a {type(config).__name__}: "
            f"{safe_read.COPY_AGAIN}."
        )
    if any(part.get("auto_map") for part in json_objects(config)):
        raise PretrainedError(
            f"a model must be of classes that come with transformers, but {file} asks for code of "
            f"its own (auto_map), which regard never runs: if transformers has a class for this "
            f"model, delete auto_map from the file."
        )


def checked_config(path: Path) -> dict[str, Any]:
    """Return config.json without the settings that are never followed."""
    config = safe_read.read_json(path / CONFIG)
    for name, value in (pair for part in json_objects(config) for pair in part.items()):
        most = next(most for pattern, most in MOST if pattern.search(name))
        if isinstance(value, int) and abs(value) > most:
            raise _refused(
                path / CONFIG, f"{name:.80} must be at most {most:,}, but it is {value:.3g}"
            )
    kept: dict[str, Any] = _without_dropped(config)
    return kept


def _without_dropped(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {k: _without_dropped(v) for k, v in value.items() if not DROPPED.fullmatch(k)}


@contextmanager
def sizes_within(path: Path, stored: StoredWeights) -> Iterator[None]:
    """Raise inside the block once a model has far more parameters than its folder has weights.

    Models are made without memory (`meta`) before weights are read, but a million layers of them
    take minutes, and weights that are missing would be drawn at random.
    """
    count = elements = 0
    thread, tensors = threading.get_ident(), stored.tensors

    def note(module: Any, name: str, value: torch.Tensor | None) -> None:
        nonlocal count, elements
        if value is None or not value.is_meta or threading.get_ident() != thread:
            return
        count, elements = count + 1, elements + value.numel()
        # tied weights are made up to four times, and four bits of a weight may be stored
        if count > 4 * tensors + 1000 or elements > 8 * stored.size + (1 << 24):
            raise PretrainedError(
                f"{path / CONFIG} must describe the weights of its folder, {tensors:,} "
                f"tensors of {stored.size:,} bytes, but its model has far more: "
                f"{safe_read.COPY_AGAIN}."
            )

    hooks = [
        torch_modules.register_module_parameter_registration_hook(note),
        torch_modules.register_module_buffer_registration_hook(note),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def explained(path: Path, what: str, *, use: bool = False) -> Iterator[None]:
    """Turn an error of transformers, or a panic of its Rust code, into a sentence.

    Lack of memory is reported as such.
    """
    try:
        yield
    except RegardError:
        raise
    except BaseException as error:
        panic = type(error).__name__ == "PanicException"  # which is no Exception
        if describe_memory_error(error) is not None or not (panic or isinstance(error, Exception)):
            raise
        raise PretrainedError(
            f"{path} must hold {what} that transformers can {'use' if use else 'load'}, but it "
            f"cannot ({type(error).__name__}: {first_line(error)}): {safe_read.COPY_AGAIN}."
        ) from error


def _refused(file: Path, reason: str) -> DataError:
    return DataError(str(file), None, reason, safe_read.COPY_AGAIN)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without its end."""
    line = next(iter(str(error).strip().splitlines()), "")
    return line.rstrip(".: ")[:200]


#: settings of `generate()` that are followed
FOLLOWED: Final = (
    *("num_beams", "num_return_sequences", "early_stopping", "length_penalty", "do_sample"),
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "use_cache"),
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"),
    *("repetition_penalty", "encoder_repetition_penalty", "renormalize_logits"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "remove_invalid_values"),
    *("bos_token_id", "decoder_start_token_id", "pad_token_id", "eos_token_id"),
    *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"),
    *("suppress_tokens", "begin_suppress_tokens"),
)
#: settings that ask for a search that regard does not show
OTHER_SEARCHES: Final = (
    *("penalty_alpha", "dola_layers", "constraints", "force_words_ids", "watermarking_config"),
    *("guidance_scale", "stop_strings", "sequence_bias", "exponential_decay_length_penalty"),
)


def check_generation(path: Path, module: Any) -> None:
    """Raise for a search that is not shown or too wide; leave out settings that are not followed.

    What else is wrong with them is found when the model is tried out.
    """
    config = getattr(module, "generation_config", None)
    if config is None:
        return
    given = {name: value for name, value in vars(config).items() if value is not None}
    other = next((name for name in OTHER_SEARCHES if given.get(name)), None)
    if other is not None or (given.get("num_beam_groups") or 1) != 1:
        raise PretrainedError(
            f"a model must generate greedily, by beam search or by sampling, but "
            f"generation_config.json in {path} sets {other or 'num_beam_groups'}: delete it there."
        )
    for name in ("num_beams", "num_return_sequences"):
        value = given.get(name, 1)
        if not isinstance(value, int) or value > MAX_BEAMS:
            raise PretrainedError(
                f"{name} must be a value that generate() can use, but in generation_config.json of "
                f"{path} it is {value!r:.80}: correct it, or delete it there."
            )
    with explained(path / "generation_config.json", "settings"):
        module.generation_config = type(config)(**{k: given[k] for k in FOLLOWED if k in given})


# tokenizers


def check_tokenizer(path: Path, config: Any) -> float:
    """Raise for texts or a vocabulary that explode; return how often a text is lengthened."""
    file = path / "tokenizer.json"
    if not file.is_file():
        return 1.0
    read = safe_read.read_json(file, MAX_TOKENIZER)
    found: dict[str, Any] = read if isinstance(read, dict) else {}
    size = getattr(config.get_text_config(), "vocab_size", 0)
    try:
        return tokenizer_growth(found, size if isinstance(size, int) else 0)
    except ValueError as error:
        raise _refused(file, str(error)) from None


def guard_tokenizer(tokenizer: Any, path: Path, growth: float) -> Any:
    """Return a tokenizer whose errors, and the panics of its Rust code, are sentences."""
    base: Any = type(tokenizer)

    class Guarded(base):  # type: ignore[misc]
        def _encode_plus(self, text: Any, *args: Any, **options: Any) -> Any:
            most = int(MAX_CHARS / growth)
            if isinstance(text, str) and len(text) > most:
                reason = f"the text must have at most {most:,} characters, but it has {len(text):,}"
                raise DataError("text", None, reason, "shorten it", kind="too long")
            with explained(path, "a tokenizer", use=True):
                return super()._encode_plus(text, *args, **options)

        def _decode(self, *args: Any, **options: Any) -> Any:
            with explained(path, "a tokenizer", use=True):
                return super()._decode(*args, **options)

        def apply_chat_template(self, *args: Any, **options: Any) -> Any:
            with explained(path, "a tokenizer", use=True):
                return super().apply_chat_template(*args, **options)

    Guarded.__name__ = base.__name__
    tokenizer.__class__ = Guarded
    return tokenizer
