"""Load a folder that `save_pretrained` of transformers wrote, or a model of the Hugging Face hub.

A model from elsewhere is untrusted: weights are read from safetensors, never from pickles, and code
that comes with a model is never run.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from regard import extras, safe_read
from regard.errors import RegardError
from regard.pretrained.folder_checks import (
    CONFIG,
    PICKLED_WEIGHTS,
    PretrainedError,
    StoredWeights,
    check_files,
    check_generation,
    check_tokenizer,
    checked_config,
    explained,
    first_line,
    guard_tokenizer,
    sizes_within,
)

#: files of which a tokenizer has one at least
VOCABULARIES: Final = (
    *("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "source.spm", "tekken.json", "bpe.codes"),
)
#: what is fetched of a model of the hub
HUB_FILES: Final = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.codes", "*.jinja"]
HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

#: mappings of transformers that name the classes of models, and the task of each; the first counts
TASKS: Final = (
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "text2text-generation"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING", "text-generation"),
    ("MODEL_FOR_MASKED_LM_MAPPING", "fill-mask"),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", "text-classification"),
    ("MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", "token-classification"),
    ("MODEL_MAPPING", "feature-extraction"),
    ("MODEL_FOR_TEXT_ENCODING_MAPPING", "feature-extraction"),
)
#: types of models that read recordings, which only our own layers do
HEARING: Final = ("whisper",)


class LoadedParts(NamedTuple):
    """A model of transformers with what prepares its inputs.

    Attributes:
        module: the model.
        tokenizer: of its texts.
        task: one of `TASKS`.
    """

    module: Any
    tokenizer: Any
    task: str


def is_pretrained(folder: str | Path) -> bool:
    """Return whether a folder holds a model of transformers, by its config.json."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        return False
    try:
        config = safe_read.read_json(path)
    except RegardError:
        return _has_vocabulary(Path(folder)) or any(map(_exists(folder), PICKLED_WEIGHTS))
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)


def is_heard(folder: Path) -> bool:
    """Return whether the model in a folder reads recordings."""
    try:
        config = safe_read.read_json(folder / CONFIG)
    except RegardError:
        return False
    return isinstance(config, dict) and config.get("model_type") in HEARING


def is_hub_name(name: str | Path) -> bool:
    """Return whether this can be the name of a model on the hub: `organisation/model`.

    A name whose first part is a folder here, or that of runs, is a path that does not exist.
    """
    text = str(name)
    first = text.split("/")[0]
    return bool(HUB_NAME.fullmatch(text)) and first != "runs" and not os.path.exists(first)


def fetch(name: str) -> Path:
    """Return the folder of a model of the hub, from its cache or fetched."""
    extras.require("transformers", extra="hf", for_="a model of the Hugging Face hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    print(f"regard: {name} is no folder here: looking on the Hugging Face hub.", file=sys.stderr)
    with quiet_transformers():
        try:
            found = snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=["*/*"])
            return Path(found)
        except GatedRepoError:
            reason, fix = "its owner lets only some in", "log in with `hf auth login`"
        except RepositoryNotFoundError:
            reason, fix = "there is no such model", "check the name"
        except Exception as error:
            reason = f"it cannot be reached ({first_line(error)})"
            fix = "check the name and the network, or name a folder that save_pretrained wrote"
    raise PretrainedError(
        f"{name} must be a run folder, a folder that save_pretrained wrote, a bundled model or a "
        f"model of the Hugging Face hub, but it is no folder here, and on the hub {reason}: {fix}."
    )


def load_parts(folder: str | Path, device: torch.device, dtype: torch.dtype) -> LoadedParts:
    """Load the model and the tokenizer of a folder."""
    path = Path(folder)
    extras.require("transformers", extra="hf", for_=f"the model in {path}")
    stored = check_files(path)
    with quiet_transformers():
        config = load_config(path)
        task, kind = _class_of(path, config)
        tokenizer = load_tokenizer(path, config)
        module = _load_module(path, kind, config, dtype, stored).to(device).eval()
        _try_out(path, module)
    return LoadedParts(module, tokenizer, task)


def _try_out(path: Path, module: Any) -> None:
    """Run a model on one token, so that settings that cannot be are found while it is loaded."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=module.device)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with explained(path, "a model", use=True), torch.inference_mode():
        if module.can_generate():
            module.generate(**given, max_new_tokens=1, pad_token_id=0)
        else:
            module(**given)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the log and the progress bars of transformers."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def load_config(path: Path) -> Any:
    """Return the configuration of a model, as transformers reads it."""
    from transformers import CONFIG_MAPPING

    given = checked_config(path)
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise PretrainedError(
            f"model_type must be one that this version of transformers has, but in "
            f"{path / CONFIG} it is {kind!r:.80}: update transformers, or check the file."
        )
    with explained(path / CONFIG, "a configuration"):
        config = CONFIG_MAPPING[kind].from_dict(given, name_or_path=str(path))
        config.get_text_config()
    return config


def _class_of(path: Path, config: Any) -> tuple[str, Any]:
    """Return the task and the class of a model, by the first of its architectures."""
    import transformers

    architectures = getattr(config, "architectures", None) or [None]
    name = architectures[0] if isinstance(architectures, list) else architectures
    for mapping, task in TASKS:
        kinds = getattr(transformers, mapping).get(type(config), None) or ()
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if kind.__name__ == name or (name is None and task.endswith("feature-extraction")):
                _check_has_head(path, kind, task, config)
                return task, kind
    raise PretrainedError(
        f"a model must generate, fill masks, classify or encode text, or be a Whisper, but {path} "
        f"is a {name!s:.80}: load it with transformers, and look at it with regard.capture."
    )


def _check_has_head(path: Path, kind: Any, task: str, config: Any) -> None:
    both = getattr(config, "is_encoder_decoder", False) and not kind.__name__.endswith(
        "EncoderModel"
    )
    if task == "feature-extraction" and both:
        raise PretrainedError(
            f"an encoder-decoder must be saved with its output layer, but {path} is a "
            f"{kind.__name__}: save the whole model, a ...ForConditionalGeneration."
        )


def load_tokenizer(path: Path, config: Any) -> Any:
    """Return the tokenizer of a model, as transformers makes it."""
    from transformers import AutoTokenizer

    if not _has_vocabulary(path) and not _reads_bytes(path):
        raise PretrainedError(
            f"{path} must hold a tokenizer, as in tokenizer.json, but it has none: write it with "
            f"tokenizer.save_pretrained({str(path)!r})."
        )
    growth = check_tokenizer(path, config)
    with explained(path, "a tokenizer"):
        found = AutoTokenizer.from_pretrained(
            path, config=config, trust_remote_code=False, local_files_only=True
        )
        len(found), found.all_special_ids  # both read what the files say
    return guard_tokenizer(found, path, growth)


def _load_module(
    path: Path, kind: Any, config: Any, dtype: torch.dtype, stored: StoredWeights
) -> Any:
    with explained(path, "whole weights"), sizes_within(path, stored):
        module, info = kind.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            weights_only=True,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing:
        raise PretrainedError(
            f"the weights in {path} must be those of {kind.__name__}, but they lack "
            f"{len(missing)} of its parameters, {missing[0]} first: save the model again, or name "
            f"its class in architectures of {CONFIG}."
        )
    check_generation(path, module)
    return module


def _exists(folder: str | Path) -> Any:
    return lambda name: (Path(folder) / name).is_file()


def _reads_bytes(path: Path) -> bool:
    """Return whether texts are read as bytes, which need no vocabulary."""
    file = path / "tokenizer_config.json"
    read = safe_read.read_json(file) if file.is_file() else {}
    return isinstance(read, dict) and read.get("tokenizer_class") == "ByT5Tokenizer"


def _has_vocabulary(path: Path) -> bool:
    return any(map(_exists(path), VOCABULARIES)) or any(path.glob("*.tiktoken"))
