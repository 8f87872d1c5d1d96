"""Compiles the kernels of the losses for a GPU that need not be there; prints what was compiled.

Run by test_triton_losses.py in a process of its own: a compiler that cannot do it may end it.
"""

import warnings

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from regard.training import triton_losses

TARGET = GPUTarget("cuda", 90, 32)
KERNELS = ("cross_entropy", "cross_entropy_backward", "rdrop", "rdrop_backward")
VARIANTS = (("bf16", 10_000), ("fp32", 45))
POINTERS = {"target": "*i64", "real": "*u8"} | dict.fromkeys(
    ("losses", "totals", "kept", "grad"), "*fp32"
)
INTEGERS = ("rows", "V")


def compiled(name, dtype, vocab):
    kernel = getattr(triton_losses, f"{name}_kernel")
    most = triton_losses.PAIR_BLOCK if name.startswith("rdrop") else triton_losses.BLOCK
    tile = triton_losses.tile(vocab, most)
    constants = {"HAS_REAL": True, "SMOOTH": True, "ROWS": tile.rows, "BLOCK": tile.block}
    signature, values, known = {}, {}, {}
    for i, arg in enumerate(kernel.arg_names):
        number = "i32" if arg in INTEGERS else "fp32"
        signature[arg] = f"*{dtype}" if i == 0 else POINTERS.get(arg, number)
        if arg in constants:
            signature[arg], values[i,] = "constexpr", constants[arg]
        elif signature[arg].startswith("*") or (arg == "V" and vocab % 16 == 0):
            known[i,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, values, known)
    return triton.compile(source, target=TARGET, options={"num_warps": tile.warps})


warnings.simplefilter("ignore")  # in a fork of the tests they are errors
for name in KERNELS:
    for dtype, vocab in VARIANTS:
        code = compiled(name, dtype, vocab).asm["cubin"]
        print(f"{name}, {dtype}, {vocab}: {'compiled' if code else 'empty'}")
