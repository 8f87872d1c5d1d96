"""Causal language models of transformers, trained in their own layers by the loop of all runs.

With `adapter=lora`, the library peft adds a product of two thin matrices to chosen layers (Hu et
al., 2022, https://arxiv.org/abs/2106.09685) and these alone are trained and stored; the run reads
the other weights from the folder that it started from. `RUN/adapter` is as peft saves it, and
`save_merged` writes the whole model. With `adapter=full` all weights are trained.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from regard import extras
from regard.atomic_files import file_checksum
from regard.data.text_files import fingerprint
from regard.errors import ArgumentError
from regard.models import AnyModel
from regard.pretrained import PretrainedError, PromptModel, is_pretrained
from regard.pretrained.folder import load_config, load_parts, load_tokenizer, quiet_transformers
from regard.pretrained.prompts import prompt_tokenizers
from regard.tasks import Encoders, Task
from regard.training.config import Config, make_config

#: settings that such a run has unless others are given
STARTER: Final[dict[str, Any]] = {
    "preset": "transformer",
    "size": "small",
    "graphs": False,
    "metric": "loss",
    "label_smoothing": 0.0,
    "baseline": False,
    "epochs": 3,
}
#: peak learning rates
RATES: Final = {"lora": 2e-4, "full": 2e-5}
#: settings of the presets' networks and tokenisers, which transformers has made
OTHERS: Final = (
    *("preset", "size", "src_tokenizer", "tgt_tokenizer", "src_case", "shared_vocab", "vocab_size"),
    *("src_vectors", "tgt_vectors", "freeze", "teacher", "recompute", "replay"),
)
#: most tokens of a prompt, and of an answer, unless told otherwise
LONGEST: Final = 512
#: the task of models that continue prompts
CAUSAL: Final = "text-generation"


def adapted_config(settings: Mapping[str, Any]) -> Config:
    """Return the config of a run that trains a model of transformers in its own layers."""
    path, adapter = Path(str(settings["start"])), str(settings["adapter"])
    if not is_pretrained(path):
        rule = "be left out unless a run starts from a folder of transformers"
        fix = "leave it out: `--from RUN` trains all weights"
        raise ArgumentError("adapter", rule, f"{adapter!r} with {str(path)!r}", fix)
    values = {**settings, **settings.get("model", {}), **settings.get("task_options", {})}
    for name in (*OTHERS, *(name for name in values if name not in Config.model_fields)):
        given = values.get(name)
        if given not in (None, "auto", "", (), [], False) and given != STARTER.get(name):
            rule = "be left out where a model of transformers is trained in its own layers"
            raise ArgumentError(name, rule, repr(given), "leave it out")
    positions = getattr(load_config(path).get_text_config(), "max_position_embeddings", 2 * LONGEST)
    longest = dict.fromkeys(("max_src_len", "max_tgt_len"), min(LONGEST, positions // 2))
    limits = {"steps", "minutes"} & settings.keys()
    starter = {name: value for name, value in STARTER.items() if name != "epochs" or not limits}
    starter |= {"lr": RATES.get(adapter), "start_checksum": _checksum(path)}
    given = {name: value for name, value in settings.items() if value is not None}
    config = make_config({**starter, **longest, **given})
    if config.max_src_len + config.max_tgt_len > positions:
        rule = f"be at most {positions} together, the positions that {path} has"
        value = f"{config.max_src_len} and {config.max_tgt_len}"
        raise ArgumentError("max_src_len and max_tgt_len", rule, value, "lower one of them")
    return config


def _checksum(path: Path) -> str:
    """Return the checksum of a folder's weights, tokeniser and settings."""
    files = sorted([*path.glob("*.safetensors"), *path.glob("*.json"), *path.glob("*.jinja")])
    return fingerprint(files={file.name: file_checksum(file) for file in files})


def adapted_encoders(config: Config) -> Encoders:
    """Return the tokenisers of prompts and of answers."""
    return Encoders(*prompt_tokenizers(Path(str(config.start))))


def build_network(task: Task) -> AnyModel:
    """Build the network of a run: a preset, or a model of transformers with what is trained."""
    config: Any = task.settings
    if config.adapter is None:
        return task.build_model()
    path = Path(config.start)
    if not is_pretrained(path) or _checksum(path) != config.start_checksum:
        other = "another one" if path.is_dir() else "gone"
        raise PretrainedError(
            f"start must be the model with the checksum {config.start_checksum} that the run was "
            f"begun with, but {path} is {other}: restore it from a copy, or start a new run with "
            f"another -o."
        )
    parts = load_parts(path, torch.device("cpu"), torch.float32)
    if parts.task != CAUSAL:
        rule = "be a causal language model for an adapter"
        value = f"{str(path)!r}, a {type(parts.module).__name__}"
        raise ArgumentError("start", rule, value, f"`regard import {path} -o RUN`, and start there")
    module = parts.module
    if config.adapter == "lora":
        module = _with_lora(module, config)
    return PromptModel(module, task.target.to_json()["model"]["ids"])


def _with_lora(module: nn.Module, config: Config) -> nn.Module:
    extras.require("peft", extra="adapters", for_="adapter=lora")
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import Linear

    targets = config.adapter_targets or "all-linear"
    options = LoraConfig(
        r=config.adapter_rank,
        lora_alpha=2 * config.adapter_rank,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(config.start),
    )
    linear = {"Linear", "Conv1D"}
    kinds = {n.split(".")[-1] for n, m in module.named_modules() if type(m).__name__ in linear}
    try:
        with quiet_transformers():
            adapted = get_peft_model(module, options)
    except ValueError as error:
        rule = f"match names of layers, such as {', '.join(sorted(kinds))}"
        value = f"{targets!r} ({str(error).splitlines()[0]:.100})"
        raise ArgumentError("adapter_targets", rule, value, "choose some of them") from None
    for layer in adapted.modules():
        if type(layer) is Linear and type(layer.base_layer) is nn.Linear:
            layer.forward = functools.partial(_with_addition, layer)  # type: ignore[method-assign]
    return adapted


def halve_frozen(module: nn.Module) -> None:
    """Keep weights that are not trained in bf16, in which they are multiplied anyway."""
    for weight in module.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.bfloat16()


def _with_addition(layer: Any, x: Tensor) -> Tensor:
    """Run a linear layer with its addition, as peft does in three times as many kernels."""
    kind, base, (name,) = x.device.type, layer.base_layer, layer.active_adapters
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    weights = base.weight, layer.lora_A[name].weight, layer.lora_B[name].weight
    bias = None if base.bias is None else base.bias.to(dtype)
    halves = (weight.to(dtype) for weight in (x, *weights))
    found: Tensor = _LowRank.apply(*halves, bias, layer.scaling[name])  # type: ignore[no-untyped-call]
    return found


class _LowRank(torch.autograd.Function):
    """`x W' + bias + scale (x A') B'`, with sums written by the products themselves.

    Nothing but `x` and `x A'` is kept for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        weight: Tensor,
        down: Tensor,
        up: Tensor,
        bias: Tensor | None,
        scale: float,
    ) -> Tensor:
        flat = x.flatten(0, -2)
        low, out = flat @ down.t(), F.linear(flat, weight, bias)
        ctx.save_for_backward(flat, weight, down, up, low)
        ctx.scale = scale  # type: ignore[attr-defined]
        return out.addmm_(low, up.t(), alpha=scale).view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, weight, down, up, low = ctx.saved_tensors
        each = grad.flatten(0, -2)
        to_low = (each @ up).mul_(ctx.scale)
        to_up = (each.t() @ low).mul_(ctx.scale)
        to_x = (each @ weight).addmm_(to_low, down) if ctx.needs_input_grad[0] else None
        to_x = None if to_x is None else to_x.view(*grad.shape[:-1], -1)
        return to_x, None, to_low.t() @ flat, to_up, None, None


def save_adapter(module: nn.Module, folder: Path) -> None:
    """Write what was trained as peft saves it, if there is an adapter."""
    if isinstance(module, PromptModel) and hasattr(module.module, "peft_config"):
        module.module.save_pretrained(folder / "adapter")


def save_merged(module: nn.Module, start: str | None, output: Path) -> None:
    """Write a model with its adapter merged, and its tokenizer, as `save_pretrained` does.

    Args:
        module: of the run; its own weights change.
        start: the folder that it started from.
        output: a new folder.
    """
    if not isinstance(module, PromptModel) or start is None:
        rule = "have trained a model of transformers with adapter=lora or adapter=full"
        raise ArgumentError("the run", rule, "another one", "name another run")
    inner = module.module
    if hasattr(inner, "peft_config"):
        inner = inner.merge_and_unload()
    with quiet_transformers():
        inner.save_pretrained(output)
        load_tokenizer(Path(start), load_config(Path(start))).save_pretrained(output)
