"""What an exported folder says of itself."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class _Words(NamedTuple):
    """What is said of the sources.

    Attributes:
        line: one, for a shell.
        several: some, for Python.
        first: what is done with them before the encoder reads them.
        sizes: names of axes that are as long as they are.
    """

    line: str
    several: str
    first: str
    sizes: str


def _words(manifest: dict[str, Any]) -> _Words:
    source, symbols = manifest["tokenizers"]["source"], manifest["symbols"]
    if source["kind"] != "vectors":
        first = (
            f"cut each text into ids, put eos = {symbols['eos']} at its end, and pad the batch "
            f"with\n   {symbols['pad']};"
        )
        several = '["some text", "some more"]'
        return _Words("some text", several, first, "`source`, the length of the sources")
    first = (
        f"take each source as it is, a table (frames, {source['features']}) of numbers, and pad "
        "the batch\n   with anything: the graph brings numbers to scale;"
    )
    sizes, stack = "`source`, how many frames there are", source["stack"]
    if stack > 1:
        first = first.removesuffix(";") + f", and joins {stack} frames to one;"
        sizes = f"`frames`; `source`, the same over {stack}, rounded up"
    return _Words("one.npy", '["one.npy", "two.npy"]', first, sizes)


def readme(manifest: dict[str, Any]) -> str:
    """README.md of the folder."""
    made, encoder, step = manifest["made_by"], manifest["encoder"], manifest["step"]
    needs, words = " ".join(manifest["needs"]), _words(manifest)
    return f"""# {manifest["name"]}, as graphs

A model made by regard {made["regard"]} (preset `{manifest["preset"]}`). It runs wherever
onnxruntime does, without torch and without regard.

```
pip install {needs}
echo {words.line} | python decode.py
```

```python
from decode import Exported

model = Exported(".")
print(model({words.several}))
```

`decode.py` is greedy search, to be read and to be written again in other languages:

1. {words.first}
2. run `encoder.onnx` once: it returns the memory and the first state, by name;
3. run `step.onnx` with the newest token of each row, bos = {manifest["symbols"]["bos"]} first, and
   everything that the encoder returned; take the likeliest of `log_probs`; an output `next.NAME`
   is the input `state.NAME` of the next step, and what begins with `memory` stays the same;
4. end a row at eos, or when it has as many tokens as `limits` in `manifest.json` allow; where these
   say `one_per_source_token`, when it has as many as its source without eos, and never before;
   unk is not written then.

Every tensor has the batch on its first axis: beam search reorders rows by taking them.

## encoder.onnx

{_table(encoder["inputs"], "input")}
{_table(encoder["outputs"], "output", title=False)}

## step.onnx

{_table(step["inputs"], "input")}
{_table(step["outputs"], "output", title=False)}

Sizes with a name may change: `batch`; {words.sizes}; `steps`, how many steps
came before. Lengths are at least 1.

Before this folder was left here, both graphs were run beside the model: the largest difference of a
log-probability was {manifest["verified"]["largest_difference"]:.1e}
(torch {made["torch"]}, onnxruntime {made["onnxruntime"]}).
"""


def _table(ports: Sequence[dict[str, Any]], role: str, *, title: bool = True) -> str:
    head = "| | name | type | shape |\n|---|---|---|---|\n" if title else ""
    rows = (
        f"| {role} | `{port['name']}` | {port['dtype']} | {', '.join(map(str, port['shape']))} |"
        for port in ports
    )
    return head + "\n".join(rows)
