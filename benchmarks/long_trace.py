"""Memory, time and size of the trace of a long text: the strongest weights of each row.

Builds a narrow Llama with random weights, of 32 layers and 32 heads by default. In a process each,
it reads a text of 4,096 tokens, and generates after one, with recording and without. The peak of a
process is counted from where it has loaded the model. The page is then opened in Chromium. On a
machine that does other work too, seconds of the processor tell more than those of the clock.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from provenance import ROOT, command, machine, source, write

GUIDE = ROOT / "docs" / "any-model.md"
RESULTS = ROOT / "benchmarks" / "results" / "long-trace.json"
MARKS = ("<!-- long-trace -->", "<!-- /long-trace -->")
MODES = ("forward", "forward recorded", "generate", "generate recorded")
WORDS = [f"{a}{b}{c}" for a in "bdgklmnprst" for b in "aeiou" for c in "bdgklmnprstvz"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--new", type=int, default=32, help="generated tokens, of --tokens")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--top-k-weights", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--forward-only", action="store_true", help="generate nothing")
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--mode", choices=MODES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true", help="write the table of the guide")
    args = parser.parse_args()
    if args.render:
        render()
        return
    if args.mode:
        print(json.dumps(run(args)))
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        args.folder = Path(scratch)
        build(args)
        for mode in MODES[: 2 if args.forward_only else None]:
            found[mode] = in_process(args, mode)
            print(f"{mode}: {found[mode]}", file=sys.stderr)
        page = args.folder / "forward recorded.html"
        browser = opened(page, args.chromium) if args.chromium else None
    names = ("tokens", "new", "layers", "heads", "hidden", "top_k_weights", "threads")
    import torch
    import transformers

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    result = {
        "command": command(["python", *sys.argv]),
        "machine": machine(),
        "versions": versions,
        **source(),
        "memory": "own",
        "settings": {name: getattr(args, name) for name in names},
        "runs": found,
        "recording": {
            kind: {
                "cpu_seconds_ratio": round(both[1]["cpu_seconds"] / both[0]["cpu_seconds"], 2),
                "peak_mb_above_plain": round(both[1]["peak_mb"] - both[0]["peak_mb"], 1),
            }
            for kind in ("forward", "generate")
            if kind in found
            for both in [(found[kind], found[f"{kind} recorded"])]
        },
        "browser": browser,
    }
    write(args.out, result)
    print(json.dumps({name: result[name] for name in ("recording", "browser")}, indent=2))


def render() -> None:
    """Write the table of the guide from the results."""
    text = GUIDE.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKS[0])
    GUIDE.write_text(
        f"{before}{MARKS[0]}\n{table()}{MARKS[1]}{rest.partition(MARKS[1])[2]}", "utf-8"
    )


def table() -> str:
    """Return the results as a table."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    settings, runs, browser = found["settings"], found["runs"], found["browser"]
    rows = settings["tokens"] * settings["layers"] * settings["heads"]
    size = runs["forward recorded"]["page_mb"]
    lines = [
        f"{settings['tokens']:,} tokens, {settings['layers']} layers, {settings['heads']} heads, "
        f"K = {settings['top_k_weights']}, {settings['threads']} threads of a shared machine",
        "",
        "| | forward pass | forward pass, recorded | generation of "
        f"{settings['new']} tokens | generation, recorded |",
        "|---|---|---|---|---|",
    ]
    for title, name in (
        (f"peak of {found['memory']} memory above the loaded model, MB", "peak_mb"),
        ("seconds of the processor", "cpu_seconds"),
        ("temporary file, MB", "temporary_file_mb"),
        ("page, MB", "page_mb"),
    ):
        cells = [f"{runs[mode][name]:,.0f}" if name in runs[mode] else "" for mode in MODES]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    kept = runs["forward recorded"]["kept"].split(" kept, ")[1].split(";")[0]
    lines += [
        "",
        f"The page is {1e6 * size / rows:.0f} bytes for each row of a head. Kept of a row: {kept}.",
    ]
    if browser:
        lines[-1] += (
            f" Chromium has drawn it after {browser['seconds_until_drawn']:.1f} s, shows another "
            f"head after {browser['seconds_next_head']:.1f} s and another row after "
            f"{browser['seconds_next_row']:.1f} s, with {browser['elements']:,} elements at most."
        )
    return "\n".join(lines) + "\n"


def build(args: argparse.Namespace) -> None:
    """Write a model and its tokenizer; queries and keys are so large that maps are not flat."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=args.hidden,
            intermediate_size=2 * args.hidden,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.heads,
            max_position_embeddings=args.tokens + 1,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(5)
    model.save_pretrained(args.folder / "model")
    tokenizer.save_pretrained(args.folder / "model")


def in_process(args: argparse.Namespace, mode: str) -> dict[str, Any]:
    """Run one mode in a process of its own, and return what it measures."""
    given = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in vars(args).items()
        if name in ("tokens", "new", "layers", "heads", "hidden", "top_k_weights", "threads")
    ]
    env = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
    done = subprocess.run(
        [sys.executable, __file__, *given, f"--folder={args.folder}", f"--mode={mode}"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT / "benchmarks",
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Load the model, run one mode, and measure it."""
    import random

    import regard

    model = regard.load(args.folder / "model")
    text = " ".join(random.Random(0).choices(WORDS, k=args.tokens))
    warm = {"max_len": 2, "attention": False}
    next(iter(model.predict(["bab dad"], **warm)))
    recorded = args.mode.endswith("recorded")
    given: dict[str, Any] = {"top_k_weights": args.top_k_weights} if recorded else {}
    memory = MemoryPeak()
    started, worked = time.perf_counter(), time.process_time()
    trace = None
    if args.mode.startswith("forward") and recorded:
        trace = model.trace(text, max_len=0, **given)
    elif args.mode.startswith("forward"):
        import torch

        with torch.inference_mode():
            model.module(input_ids=model.forward_inputs(text)["input_ids"])
    else:
        prompt = " ".join(text.split()[: args.tokens - args.new])
        out = model(prompt, max_len=args.new, min_len=args.new, attention=recorded, **given)
        trace = out.trace if recorded else None
    result: dict[str, Any] = {
        "seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
    }
    if trace is not None:
        file = trace.maps[0].recorded.parts[0].block.file
        result["temporary_file_mb"] = round(file.size / 1e6, 1)
        started = time.perf_counter()
        page = args.folder / f"{args.mode}.html"
        trace.save(page)
        result["page_seconds"] = round(time.perf_counter() - started, 1)
        result["page_mb"] = round(page.stat().st_size / 1e6, 1)
        result["kept"] = trace.kept_note
    result["peak_mb"] = round(memory.close(), 1)
    result["before_mb"] = round(memory.before, 1)
    return result


class MemoryPeak:
    """The most memory of its own that the process has, looked at many times a second.

    Pages of files, such as those of the weights, do not count, nor whether a busy machine has moved
    some of the memory out: the peak of resident memory would miss that.
    """

    def __init__(self) -> None:
        self.before = self.most = own_memory()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(0.02):
            self.most = max(self.most, own_memory())

    def close(self) -> float:
        """Stop looking, and return by how many megabytes it has grown at most."""
        self._ended.set()
        self._thread.join()
        return self.most - self.before


def own_memory() -> float:
    """Return the anonymous memory of this process in megabytes, resident or swapped out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap")) * 1024 / 1e6


def opened(page: Path, chromium: str) -> dict[str, Any]:
    """Open a page in Chromium; return the seconds until it has drawn, and those of each step."""
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--headless"]
        )
        tab = browser.new_page(viewport={"width": 1200, "height": 900})

        def timed(name: str, act: Any, wait: str) -> None:
            started = time.perf_counter()
            act()
            tab.wait_for_selector(wait, timeout=300_000)
            # what has been asked for is on the screen two frames later
            tab.evaluate("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")
            found[name] = round(time.perf_counter() - started, 2)

        timed(
            "seconds_until_drawn",
            lambda: tab.goto(page.as_uri(), timeout=300_000),
            "#app[data-ready]",
        )
        timed(
            "seconds_matrix", lambda: tab.click("#tab-matrix"), "#app[data-tab=matrix] canvas.map"
        )
        tab.locator(".stage").focus()
        timed("seconds_next_head", lambda: tab.keyboard.press("]"), "#app[data-ready='3']")
        timed("seconds_next_row", lambda: tab.keyboard.press("ArrowDown"), "canvas.map")
        timed("seconds_heads", lambda: tab.click("#tab-heads"), ".thumb .badge")
        found["elements"] = tab.evaluate("document.querySelectorAll('*').length")
        browser.close()
    return found


if __name__ == "__main__":
    main()
