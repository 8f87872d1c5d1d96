"""Write a run whose tokenizer and network come from transformers as a folder of transformers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import Tensor, nn

from regard import extras
from regard.atomic_files import write_atomic
from regard.data import Tokenizer
from regard.data.lookup_codecs import ImportedCodec
from regard.errors import ExportError
from regard.imported.families import FAMILIES, ModelFamily, Weights
from regard.imported.folder import OWN, POSITIONS, TOKEN_ROWS, ImportedFolder
from regard.pretrained.folder_checks import CONFIG, SAFE_WEIGHTS

#: entries of a configuration that say where it was read
PLACES: Final = ("name_or_path", "_name_or_path", "transformers_version")
#: largest difference of a weight that is read back
ROUNDING: Final = 1e-6

CARD = """---
library_name: transformers
---
# {name}

A {kind}, written by `regard export --to transformers`. {note}

{card}"""


def write_folder(
    model: nn.Module, encoders: Sequence[Any], preset: str, path: Path, *, name: str, card: str
) -> None:
    """Write a model as a folder that `from_pretrained` opens, with equal outputs.

    Args:
        model: the network of a run.
        encoders: of its sources and targets.
        preset: of the run.
        path: a folder that exists.
        name: of the run.
        card: of the run.
    """
    extras.require("transformers", extra="hf", for_="`regard export --to transformers`")
    from transformers import CONFIG_MAPPING

    codecs = [one.imported if isinstance(one, Tokenizer) else one for one in encoders]
    codec = next((one for one in codecs if getattr(one, "origin", None)), None)
    family = None if codec is None else FAMILIES.get(codec.origin["config"]["model_type"])
    if codec is None or family is None or family.preset != preset:
        raise ExportError(
            f"a run must be an imported model, or be trained from one of its preset, to be written "
            f"for transformers, but {name} is a {preset} of its own: export it as onnx."
        )
    settings = codec.origin["config"]
    config = CONFIG_MAPPING[settings["model_type"]].from_dict(settings)
    weights = family.pack(_renamed(model.state_dict(), codec, family), config)
    kept = {key: value for key, value in settings.items() if key not in PLACES}
    kept |= {"architectures": [family.classes[0]], "dtype": "float32"}
    plain = {key: weight.detach().cpu().contiguous() for key, weight in weights.items()}
    write_atomic(path / SAFE_WEIGHTS[0], save(plain, metadata={"format": "pt"}))
    write_atomic(path / CONFIG, json.dumps(kept, indent=2).encode() + b"\n")
    if codec.origin["tokenizer.json"]:
        write_atomic(path / "tokenizer.json", json.dumps(codec.tokenizer).encode())
    for file, content in codec.origin["files"].items():
        write_atomic(path / file, bytes.fromhex(content))
    head = preset == "classifier-transformer"
    note = "Only its encoder is here: transformers has no such output layer." if head else ""
    text = CARD.format(name=name, kind=family.classes[0], note=note, card=card)
    write_atomic(path / "README.md", text.encode())
    _check(model, path)


def _renamed(state: Weights, codec: Any, family: ModelFamily) -> Weights:
    """Return the tensors by their names in transformers, with tokens and positions in its order."""
    found: Weights = {}
    ids = codec.ids if isinstance(codec, ImportedCodec) else []
    places = torch.tensor([i for i, number in enumerate(ids) if number >= 0], dtype=torch.long)
    numbers = torch.tensor(ids)[places]
    for name, weight in state.items():
        theirs = family.theirs(name)
        if theirs is None or OWN.match(name) or theirs in ("lm_head.bias", "proj_out.bias"):
            continue
        if TOKEN_ROWS.match(name):
            rows = weight.new_zeros(len(numbers), *weight.shape[1:])
            rows[numbers] = weight[places]
            weight = rows[None] if name.endswith("output.bias") else rows
        elif name.endswith(POSITIONS):
            weight = torch.cat([weight.new_zeros(family.offset, weight.shape[1]), weight])
        found[theirs] = weight
    return found


def _check(model: nn.Module, path: Path) -> None:
    """Raise ExportError unless the folder, read again, has the weights of the model."""
    own = model.state_dict()
    again = ImportedFolder(path)
    for name, weight in again.weights(model).items():
        rows: Any = slice(None)
        if TOKEN_ROWS.match(name):
            rows = [i for i, number in enumerate(again.vocabulary.ids) if number >= 0]
        wrong = _distance(weight[rows], own[name][rows])
        if not wrong <= ROUNDING:
            raise ExportError(
                f"the exported model must have the weights of the run, but {name} differs by "
                f"{wrong:.2g}: please report it."
            )


def _distance(one: Tensor, other: Tensor) -> float:
    return float(((one - other).abs() / (1 + other.abs())).max())
