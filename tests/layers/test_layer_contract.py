"""What holds for every public layer."""

import pytest
import torch
from torch import nn

import regard.layers
from layers.cases import CASES, build, inputs
from layers.tools import close, gradients, weighted_sum
from regard.layers import SpecAugment

each = pytest.mark.parametrize("name", CASES)
# stacks stand for their layers, and the kernel call of an RNNStack is kept out of the graph
WHOLE = [name for name in CASES if not name.startswith("RNNStack") and "Layer" not in name]


def run(name, module, tensors):
    return CASES[name].run(module, *tensors)


def test_every_layer_has_a_case():
    public = {getattr(regard.layers, name) for name in regard.layers.__all__}
    layers = {kind for kind in public if isinstance(kind, type) and issubclass(kind, nn.Module)}
    # SpecAugment has no weights, and changes nothing outside of training
    assert layers - {SpecAugment} == {type(case.make()) for case in CASES.values()}


@pytest.mark.sample(12)
@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_type_of_the_weights_is_kept(name, dtype):
    module, tensors = build(name, dtype), inputs(name, dtype)
    assert {t.dtype for t in run(name, module, tensors)} == {dtype}


@pytest.mark.sample(8)
@each
def test_input_need_not_be_contiguous(name):
    module, tensors = build(name), inputs(name)
    turned = [x.mT.contiguous().mT for x in tensors]
    sparse = [torch.stack([x, x + 1], dim=-1)[..., 0] for x in tensors]
    expanded = [x[:1].expand(3, *x.shape[1:]) for x in tensors]
    assert not any(x.is_contiguous() for x in (*turned, *sparse, *expanded))
    expected = run(name, module, tensors)
    close(run(name, module, turned), expected, 1e-12)
    close(run(name, module, sparse), expected, 1e-12)
    whole = [x.contiguous() for x in expanded]
    close(run(name, module, expanded), run(name, module, whole), 1e-12)


@each
def test_nothing_is_left_on_the_module(name):
    module, tensors = build(name), inputs(name)
    before = [set(vars(part)) for part in module.modules()]
    run(name, module, tensors)
    assert [set(vars(part)) for part in module.modules()] == before


@pytest.mark.gpu
@each
def test_cuda_equals_cpu(name):
    module, tensors = build(name), inputs(name)

    def every(module, tensors):
        leaves = [x.clone().requires_grad_() for x in tensors]
        outputs = run(name, module, leaves)
        grads = gradients(weighted_sum(*outputs), *leaves, *module.parameters())
        return [t.cpu() for t in (*outputs, *grads)]

    expected = every(module, tensors)
    close(every(module.cuda(), [x.cuda() for x in tensors]), expected)


@pytest.mark.gpu
@each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cuda_autocast_is_near_float32(name, dtype):
    module = build(name, torch.float32).cuda()
    tensors = [x.cuda().requires_grad_() for x in inputs(name, torch.float32)]
    expected = run(name, module, tensors)
    with torch.autocast("cuda", dtype):
        actual = run(name, module, tensors)
    for one, other in zip(actual, expected, strict=True):
        assert (one.float() - other).norm() <= 0.05 * other.norm()
    for grad in gradients(weighted_sum(*actual), *tensors, *module.parameters()):
        assert grad.isfinite().all()


def compiled_equals_eager(name, tolerance=1e-10, dtype=torch.float64, **options):
    torch.compiler.reset()
    module, tensors = build(name, dtype), inputs(name, dtype)
    if name.startswith("SelfAttentiveRNN"):  # the compiler takes its time for every step
        tensors = [x[:, :2] for x in tensors]
    if name in ("TransformerEncoder", "TransformerDecoder"):  # and for every layer
        module.layers = module.layers[:1]

    def call(module, *tensors):
        return CASES[name].run(module, *tensors)

    fast = torch.compile(call, **options)

    def every(call):
        leaves = [x.clone().requires_grad_() for x in tensors]
        outputs = call(module, *leaves)
        return [*outputs, *gradients(weighted_sum(*outputs), *leaves, *module.parameters())]

    close(every(fast), every(call), tolerance)


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", WHOLE)
def test_compiles_as_one_graph(name):
    compiled_equals_eager(name, fullgraph=True, backend="aot_eager")


# the C++ compiler takes most of a minute; attention goes through it in `make test`
@pytest.mark.compile
@pytest.mark.long
@pytest.mark.parametrize("name", ["SelfAttentiveRNN rnn", "TransformerEncoder"])
def test_inductor(name):
    compiled_equals_eager(name, 1e-4, torch.float32, fullgraph=True)
