"""Table of what regard and other viewers of attention and attribution do, for docs/viewers.md.

Runs each feature of regard on tiny models, and writes `yes` with the call that shows it only if the
call succeeds. What others do was read in their sources, trackers and documentation, or was run.

    python benchmarks/viewers.py             # run all, print the table
    python benchmarks/viewers.py --render    # and write it into docs/viewers.md
"""

import argparse
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from provenance import ROOT

PAGE: Final = ROOT / "docs" / "viewers.md"
MARKS: Final = ("<!-- features -->", "<!-- /features -->")
OTHERS: Final = (
    *("bertviz", "inseq", "captum", "LIT", "TransformerLens + CircuitsVis", "ecco"),
    "Transformer Explainer",
)
TEXT: Final = "bab dad gag kak"


class Tools(NamedTuple):
    """Tiny models to run features on, and a folder to write to."""

    llama: Any
    bart: Any
    folder: Path

    def command(self, *words: object) -> str:
        """Run a command of regard, and return its output; raises if it fails."""
        from typer.testing import CliRunner

        from regard.cli import app

        done = CliRunner().invoke(app, [str(word) for word in words])
        if done.exit_code:
            raise RuntimeError(done.output)
        return done.output


class Feature(NamedTuple):
    """One row of the table.

    Attributes:
        title: what it is.
        call: how regard does it.
        run: shows that it does, or the file of tests or figures that does, where it takes a browser
            or minutes; None if it does not.
        others: cells of the other viewers, in their order: y yes, p partly, n no, ? not looked at;
            in capitals if it was run, else read.
    """

    title: str
    call: str
    run: Callable[[Tools], object] | str | None
    others: str


def capture_own_module(tools: Tools) -> None:
    import torch

    import regard

    layer = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True).eval()
    with regard.capture(layer) as seen:
        layer(torch.randn(1, 5, 8))
    assert seen.traces[0].maps


def unchanged(tools: Tools) -> None:
    import torch

    import regard

    model, given = tools.llama.module, tools.llama.forward_inputs(TEXT)
    assert model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        alone = model(**given).logits
        with regard.capture(model) as seen:
            beside = model(**given).logits
    assert torch.equal(alone, beside)
    assert seen.traces[0].maps


def recurrent(tools: Tools) -> None:
    import regard

    assert regard.load("g2p")("hello").trace.kinds


def offline(tools: Tools) -> None:
    page = tools.folder / "x.html"
    tools.command("show", tools.llama.path, TEXT, "--max-len", 3, "-o", page)
    assert "http://" not in page.read_text().replace("http://www.w3.org", "")


def has_methods(tools: Tools, *names: str) -> None:
    trace = tools.llama.check(TEXT, "dad", methods=",".join(names))
    assert set(names) <= set(trace.derived), list(trace.derived)


def contrast(tools: Tools) -> None:
    assert (
        tools.llama.check(TEXT, "dad", methods="gradient", versus="gag").checks["versus"] == "gag"
    )


def texts(tools: Tools) -> Path:
    file = tools.folder / "texts.txt"
    file.write_text(f"{TEXT}\n{TEXT} lal\n", encoding="utf-8")
    return file


def beam(tools: Tools) -> None:
    out = tools.bart(TEXT, beam=3, max_len=4)
    assert "cross" in out.trace.kinds
    assert out.trace.decoded.mode == "beam"


def probabilities(tools: Tools) -> None:
    last = tools.llama(TEXT, max_len=3).trace.target.tokens[-1]
    assert last.prob is not None
    assert last.alternatives


def queries(tools: Tools) -> None:
    trace = tools.llama.trace(TEXT, max_len=0, queries=True)
    assert len(trace.queries) == len(trace.maps)


def what_if(tools: Tools) -> None:
    kind = "decoder-self"
    changes: tuple[dict[str, Any], ...] = (
        {"replace": {1: "lal"}},
        {"prefix": "dad"},
        {"heads_off": [(kind, 1, 0)]},
        {"cells": [(kind, 0, 1, 3, 2, 0.9)]},
    )
    for change in changes:
        assert len(tools.llama.what_if(TEXT, max_len=3, **change).answers) == 2


SHOW = "regard show MODEL TEXT"
FEATURES: Final = (
    Feature(
        "weights of a forward pass, any layer and head", f"`{SHOW} --max-len 0 --layer 1 --head 0`",
        lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 0, "--layer", 1, "--head", 0),
        "Yypnyny",
    ),
    Feature(
        "weights under fused kernels (`sdpa`), outputs unchanged", f"`{SHOW}`",
        unchanged, "nnnnnnn",
    ),
    Feature(
        "any PyTorch module", "`with regard.capture(module) as seen:`",
        capture_own_module, "pnyppnn",
    ),
    Feature("attention of recurrent models", "`regard show g2p hello`", recurrent, "nnpnnnn"),
    Feature(
        "attention of generated tokens, with a cache, as one map", f"`{SHOW} --max-len 20`",
        lambda t: t.llama(TEXT, max_len=4).trace.maps, "Npnnnpp",
    ),
    Feature(
        "cross-attention of the model's own answer, of the winning beam", f"`{SHOW} --beam 5`",
        beam, "ppnnnnn",
    ),
    Feature(
        "an answer that the model is made to write", f"`{SHOW} --target ANSWER`",
        lambda t: t.llama.trace(TEXT, "dad"), "yyYyynn",
    ),
    Feature(
        "4,096 tokens, 32 layers, 32 heads", f"`{SHOW} --top-k-weights 8 -o page.html`",
        "benchmarks/long_trace.py",
        "nnnnnnn",
    ),
    Feature(
        "text whose tokens light up or are joined by lines", f"`{SHOW} -o page.html`, tab Text",
        "tests/browser/test_page.py", "Ypyyyyy",
    ),
    Feature("heat map", f"`{SHOW}`",
            lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 2),
            "nyynyny"),
    Feature("thumbnails of all heads", f"`{SHOW} -o page.html`, tab Heads",
            "tests/browser/test_page.py", "Ynnnynn"),
    Feature("all heads of a layer overlaid by colour", f"`{SHOW} -o page.html`, key `o`",
            "tests/browser/test_overlay.py", "Ynnnynn"),
    Feature("query, key and score of a cell", f"`{SHOW} --queries -o page.html`", queries,
            "pnnnpny"),
    Feature("the picture, sound or series behind the weights",
            "`regard show MODEL cat.jpg -o page.html`", "tests/browser/test_picture.py", "nnypnnn"),
    Feature("one file that works offline", f"`{SHOW} -o page.html`", offline, "Npnnnnn"),
    Feature(
        "vector figure with labels", f"`{SHOW} -o map.svg`",
        lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 2, "-o", t.folder / "x.svg"),
        "nnpnnnn",
    ),
    Feature("terminal", f"`{SHOW}`",
            lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 2),
            "nynnnnn"),
    Feature(
        "weights as data", f"`{SHOW} -o map.csv`, `.json`, `trace.maps`",
        lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 2, "-o", t.folder / "x.csv"),
        "yyYpypn",
    ),
    Feature(
        "sub-words merged to words, mass kept", f"`{SHOW} --words`",
        lambda t: t.command("show", t.llama.path, TEXT, "--max-len", 2, "--words"), "nynynnn",
    ),
    Feature("probability and alternatives of each token", f"`{SHOW}`", probabilities, "nynpyyy"),
    Feature(
        "which head does what, over a corpus", "`regard heads MODEL texts.txt -o heads.html`",
        lambda t: t.command("heads", t.llama.path, texts(t), "--ablate", 0), "nnnnpnn",
    ),
    Feature(
        "importance of heads by ablation, with intervals", "`regard heads MODEL texts.txt`",
        lambda t: t.command("heads", t.llama.path, texts(t)), "nnnnpnn",
    ),
    Feature(
        "two models or texts on one colour scale", "`regard compare A B texts.txt`",
        lambda t: t.command("compare", t.llama.path, t.llama.path, texts(t)), "npnynnn",
    ),
    Feature("gold alignments and their error rate", "`regard align RUN pairs.tsv --gold G`",
            "tests/cli/test_align.py", "nnnnnnn"),
    Feature("ablation (occlusion)", "`regard check MODEL TEXT --methods ablation`",
            lambda t: has_methods(t, "ablation"), "nyYnpnn"),
    Feature("gradient and gradient times input", "`--methods gradient,input-gradient`",
            lambda t: has_methods(t, "gradient", "input-gradient"), "nyyypyn"),
    Feature("integrated gradients", "`--methods integrated-gradients`",
            lambda t: has_methods(t, "integrated-gradients"), "nyyynyn"),
    Feature("attention rollout", "`--methods rollout`", lambda t: has_methods(t, "rollout"),
            "nnnnnnn"),
    Feature("value-weighted norms", "`--methods norms`",
            lambda t: has_methods(t, "norms"), "npnnpnn"),
    Feature("contrast: why this token and not that one", "`--versus TOKEN`", contrast, "nynnpnn"),
    Feature("faithfulness of each method, against a random order", "`regard check MODEL TEXT`",
            lambda t: t.llama.check(TEXT, "dad", methods="gradient").checks["faithfulness"],
            "nnpnnnn"),
    Feature("what if: replace a token, force a prefix, switch a head off, move attention",
            "`regard what-if MODEL TEXT --replace 1=WORD`, `--prefix`, `--off`, `--set`", what_if,
            "nppyynp"),
    Feature("live input in the browser, of a model of transformers", "`regard serve MODEL`",
            "tests/pretrained/test_serve.py", "nnnynny"),
    Feature("decoding controls in the browser", "`regard serve MODEL`",
            "tests/browser/test_what_if.py", "nnnnnny"),
    Feature("tokens by arrow keys, and rows in words for a screen reader",
            f"`{SHOW} -o page.html`", "tests/browser/test_page.py", "nnnnnnn"),
    Feature("tokens of a foreign tokenizer run nothing",
            f"`{SHOW}`", "tests/browser/test_hostile_tokens.py", "Np?????"),
)  # fmt: skip
PENDING: Final = "not yet"


def models(folder: Path) -> Tools:
    """Write a tiny Llama and a tiny BART with random weights, and open them."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    import regard
    from long_trace import build

    build(Namespace(folder=folder, hidden=16, layers=2, heads=2, tokens=64))
    (folder / "model").rename(folder / "llama")
    llama = regard.load(folder / "llama")
    torch.manual_seed(0)
    size, sides = llama.module.config.vocab_size, ("encoder", "decoder")
    config = {"d_model": 16, "max_position_embeddings": 64, "vocab_size": size}
    config |= {f"{side}_layers": 2 for side in sides}
    config |= {f"{side}_attention_heads": 2 for side in sides}
    config |= {f"{side}_ffn_dim": 16 for side in sides}
    config |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    bart = BartForConditionalGeneration(BartConfig(**config, forced_eos_token_id=None))
    bart.save_pretrained(folder / "bart")
    llama.tokenizer.save_pretrained(folder / "bart")
    return Tools(llama, regard.load(folder / "bart"), folder)


def own_cell(feature: Feature, tools: Tools) -> str:
    """Run a feature of regard, and return its cell of the table."""
    if feature.run is None:
        return PENDING
    if isinstance(feature.run, str):
        assert (ROOT / feature.run).is_file(), feature.run
        return f"by {feature.run}: {feature.call}"
    feature.run(tools)
    return f"yes: {feature.call}"


def cell(mark: str) -> str:
    """Return the cell of another viewer."""
    if mark == "?":
        return "not looked at"
    words = {"y": "yes", "p": "partly", "n": "no"}
    return f"{words[mark.lower()]} [{'ran' if mark.isupper() else 'read'}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--render", action="store_true", help="write docs/viewers.md")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = [f"| | regard | {' | '.join(OTHERS)} |", "|---" * (len(OTHERS) + 2) + "|"]
    with tempfile.TemporaryDirectory() as scratch:
        tools = models(Path(scratch))
        for feature in FEATURES:
            assert len(feature.others) == len(OTHERS), feature.title
            cells = [feature.title, own_cell(feature, tools), *map(cell, feature.others)]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if args.render:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
        after = rest.partition(MARKS[1])[2]
        body = "\n".join(lines)
        PAGE.write_text(f"{before}{MARKS[0]}\n{body}\n{MARKS[1]}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
