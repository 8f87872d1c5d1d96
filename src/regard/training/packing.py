"""A run as it is given away: what is needed to use it, in half the bytes, and nothing else."""

import torch
from torch import Tensor

from regard.data import Tokenizer, require_tokenizer
from regard.training.config import Config
from regard.training.run_folder import RunError, RunFolder


def pack(run: RunFolder, output: RunFolder, *, src_case: str | None = None) -> None:
    """Writes config, tokenisers and weights of a run to another folder.

    The weights are kept in float16, and are float32 again once they are loaded.

    Args:
        run: what to pack.
        output: a folder that holds no run.
        src_case: "lower" or "upper" for a run that has learned from letters of one case and shall
            take both; as the run has it if None.
    """
    output.check_new()
    saved = run.load()
    src = require_tokenizer(saved.src_tokenizer, "what is packed")
    src = src if src_case is None else src.in_case(src_case)
    config = without_places(saved.config)
    output.path.mkdir(parents=True, exist_ok=True)
    _write_tokenizers(output, src, saved.tgt_tokenizer)
    output.write_model(halved(saved.model.state_dict()))
    output.write_config(config.model_copy(update={"src_case": src.case}))


def without_places(config: Config) -> Config:
    """The settings without files, devices and threads of the machine that the run was made on."""
    own = ("data", "tgt", "dev", "dev_tgt", "device", "threads")
    return config.model_copy(update={name: Config.model_fields[name].default for name in own})


def halved(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights in float16; whole numbers stay as they are."""
    found = {}
    for name, weight in weights.items():
        found[name] = weight.to(torch.float16) if weight.is_floating_point() else weight
        if not found[name].isfinite().all():
            raise RunError(
                f"weights must be finite in float16 to be packed, but those of {name} reach "
                f"{weight.abs().max().item():g}: train the run again with more weight_decay."
            )
    return found


def _write_tokenizers(output: RunFolder, src: Tokenizer, tgt: Tokenizer) -> None:
    src.save(output.src_tokenizer_file)
    tgt.save(output.tgt_tokenizer_file)
