"""Fine-tune a pretrained encoder of reactions, beside the same network from random weights.

    python -m benchmarks.quality.reactions make WHEEL FOLDER     # RXNMapper's wheel, unpacked
    python -m benchmarks.quality.reactions train FOLDER --out RESULT

RXNMapper's ALBERT has read reactions as SMILES, and nothing about their classes. Here reactions of
four kinds are made from tokens of its vocabulary, and run forwards or backwards: eight classes, of
which a direction and its reverse have the same tokens. Both networks are trained
for as many steps, with the defaults of fine-tuning.
"""

import argparse
import random
import re
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

import regard
from benchmarks import harness

#: what a functional group is put on, and what is bound to it
BODIES: Final = (
    "CC{}", "CCC{}", "CC(C){}", "COCC{}", "C1CCC({})CC1", "CN1CCC({})CC1", "c1ccc({})cc1",
    "Cc1ccc({})cc1", "Fc1ccc({})cc1", "COc1cccc({})c1", "Clc1cccc({})c1", "N#Cc1ccc({})cc1",
    "c1ccnc({})c1", "FC(F)(F)c1ccc({})cc1", "Brc1ccc({})cc1", "CC(C)(C)c1ccc({})cc1",
)  # fmt: skip
TAILS: Final = (
    "C", "CC", "CCC", "C(C)C", "CCOC", "CC(C)C", "Cc1ccccc1", "CCN(C)C", "CCCF", "C1CCCC1",
    "Cc1ccncc1", "CC#N", "CCc1ccc(Cl)cc1", "CC1CCOCC1",
)  # fmt: skip
#: of each kind: the group that reacts, what it reacts with, and the bond that is made
KINDS: Final = {
    "ester": ("C(=O)O", "O", "C(=O)O"),
    "amide": ("C(=O)O", "N", "C(=O)N"),
    "ether": ("O", "Br", "O"),
    "amine": ("N", "Br", "N"),
}
TOKENS: Final = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d\d|\d)"
)
SIZES: Final = (200,)
TEST: Final = 500
STEPS: Final = 300


def reaction(draw: random.Random) -> tuple[str, str]:
    """Return a reaction and its class."""
    kind = draw.choice(list(KINDS))
    group, partner, bond = KINDS[kind]
    body, tail = draw.choice(BODIES), draw.choice(TAILS)
    before = [body.format(group), partner + tail]
    draw.shuffle(before)
    sides = [".".join(before), body.format(bond + tail)]
    back = draw.random() < 0.5
    return ">>".join(sides[::-1] if back else sides), f"{kind} {'broken' if back else 'made'}"


def make(wheel: Path, folder: Path) -> None:
    """Write the model as `save_pretrained` does, and one like it with random weights."""
    from safetensors.torch import save_file
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import AlbertConfig, AlbertModel, PreTrainedTokenizerFast

    (found,) = wheel.glob("rxnmapper/models/transformers/albert_*")
    words = (found / "vocab.txt").read_text().split("\n")
    vocab = {word: i for i, word in enumerate(words) if word}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKENS.pattern), "isolated")
    ends = [(name, vocab[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    config = AlbertConfig.from_pretrained(found)
    weights = torch.load(found / "pytorch_model.bin", weights_only=True, map_location="cpu")
    weights = {name: value.contiguous().clone() for name, value in weights.items()}
    torch.manual_seed(0)
    for name, tensors in (("pretrained", weights), ("random", AlbertModel(config).state_dict())):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(found / "config.json", place)
        save_file(tensors, place / "model.safetensors", {"format": "pt"})
        fast.save_pretrained(place)


def train(folder: Path, start: str, size: int, seed: int) -> dict[str, Any]:
    """Return the accuracy of a run on reactions that it has not seen."""
    draw = random.Random(seed)
    rows = list(dict.fromkeys(reaction(draw) for _ in range(4 * (size + TEST))))
    train, test = rows[:size], rows[size : size + TEST]
    with tempfile.TemporaryDirectory() as place:
        model = regard.fit(
            train,
            start=folder / start,
            output=Path(place) / "run",
            seed=seed,
            steps=STEPS,
            quiet=True,
        )
        answers = model.predict([source for source, _ in test])
    right = [answer == label for answer, (_, label) in zip(map(str, answers), test, strict=True)]
    return {"start": start, "size": size, "seed": seed, "accuracy": statistics.mean(right)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("do", choices=("make", "train"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.do == "make":
        return make(*args.folders)
    result = harness.provenance() | {"records": []}
    for size in SIZES:
        for seed in range(args.seeds):
            for start in ("pretrained", "random"):
                record = train(args.folders[0], start, size, seed)
                result["records"].append(record)
                print(record, flush=True)
                harness.write(args.out, result)
    return None


if __name__ == "__main__":
    main()
