"""layer_norm and depthwise_conv as PyTorch sees them: opcheck, gradcheck, torch.compile, autocast,
layouts. On a GPU, if there is one and the build has kernels for it, also there."""

import pytest
from support import HAS_CUDA, ops, torch, uniform

DEVICES = ["cpu"] + (["cuda"] if HAS_CUDA else [])


def norm_inputs(dtype=torch.float64, affine=True, device="cpu", channels=6):
    torch.manual_seed(0)
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    weight = uniform(channels, dtype=parameter) if affine else None
    bias = uniform(channels, dtype=parameter) if affine else None
    inputs = [uniform(2, 3, channels, dtype=dtype), weight, bias]
    return [None if t is None else t.detach().to(device).requires_grad_() for t in inputs] + [1e-5]


def conv_inputs(dtype=torch.float64, bias=True, silu=True, device="cpu", channels=4):
    torch.manual_seed(0)
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    inputs = [uniform(2, 5, 4, channels, dtype=dtype), uniform(channels, 1, 3, 3, dtype=parameter),
              uniform(channels, dtype=parameter) if bias else None]
    return [None if t is None else t.detach().to(device).requires_grad_() for t in inputs] + [silu]


def plain_conv(x, weight, bias, silu):
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=1,
                                   groups=x.shape[3])
    return (torch.nn.functional.silu(y) if silu else y).permute(0, 2, 3, 1)


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_agrees_with_pytorch(affine):
    x, weight, bias, epsilon = norm_inputs(affine=affine)
    out, mean, rstd = ops.layer_norm(x, weight, bias, epsilon)
    expected = torch.nn.functional.layer_norm(x, [6], weight, bias, epsilon)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(mean, x.mean(-1))
    assert not mean.requires_grad and not rstd.requires_grad


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_gradients(affine):
    inputs = norm_inputs(affine=affine)
    assert torch.autograd.gradcheck(lambda *a: ops.layer_norm(*a)[0], inputs)


def test_layer_norm_backward_adds_the_second_gradient():
    x, weight, bias, epsilon = norm_inputs()
    _, mean, rstd = ops.layer_norm(x, weight, bias, epsilon)
    gradient, skip = torch.randn_like(x), torch.randn_like(x)
    with_skip = ops.layer_norm_backward(gradient, x, mean, rstd, weight, skip)
    without = ops.layer_norm_backward(gradient, x, mean, rstd, weight, None)
    torch.testing.assert_close(with_skip[0], without[0] + skip)
    torch.testing.assert_close(with_skip[1], without[1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("silu", [True, False])
def test_depthwise_conv_agrees_with_pytorch(bias, silu):
    inputs = conv_inputs(bias=bias, silu=silu)
    torch.testing.assert_close(ops.depthwise_conv(*inputs), plain_conv(*inputs))
    assert ops.depthwise_conv(*inputs).is_contiguous()
    assert torch.autograd.gradcheck(ops.depthwise_conv, inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    dtype = torch.float64 if device == "cpu" else torch.float32
    for affine in (True, False):
        torch.library.opcheck(ops.layer_norm.default,
                              norm_inputs(affine=affine, dtype=dtype, device=device))
    for bias in (True, False):
        torch.library.opcheck(ops.depthwise_conv.default,
                              conv_inputs(bias=bias, dtype=dtype, device=device))


def test_torch_compile_sees_one_graph():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(x, weight, bias, kernel):
        normed = ops.layer_norm(x, weight, bias, 1e-5)[0]
        return ops.depthwise_conv(normed, kernel, None, True)

    x, kernel = uniform(2, 5, 4, 6), uniform(6, 1, 3, 3)
    weight, bias = uniform(6), uniform(6)
    expected = plain_conv(torch.nn.functional.layer_norm(x, [6], weight, bias), kernel, None, True)
    result = block(x, weight, bias, kernel)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(t.grad is not None for t in (x, weight, bias, kernel))


def test_types_and_strides():
    x, weight, bias, epsilon = norm_inputs(dtype=torch.float32)
    half = ops.layer_norm(x, weight, bias, epsilon, torch.bfloat16)[0]
    assert half.dtype == torch.bfloat16
    wide = ops.layer_norm(x.bfloat16(), weight, bias, epsilon, torch.float32)
    assert [t.dtype for t in wide] == [torch.float32] * 3
    across = x.detach().transpose(0, 1)
    torch.testing.assert_close(ops.layer_norm(across, weight, bias, epsilon)[0],
                               torch.nn.functional.layer_norm(across, [6], weight, bias, epsilon))
    inputs = conv_inputs()
    planes = inputs[0].detach().permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
    torch.testing.assert_close(ops.depthwise_conv(planes, *inputs[1:]), plain_conv(*inputs))
    ops.depthwise_conv(*inputs).sum().backward()  # an expanded gradient


def test_empty_batches():
    assert ops.layer_norm(torch.zeros(0, 6), None, None, 1e-5)[0].shape == (0, 6)
    x = torch.zeros(0, 5, 4, 3)
    assert ops.depthwise_conv(x, torch.zeros(3, 1, 3, 3), None, True).shape == x.shape


@pytest.mark.parametrize("change, message", [
    (dict(bias=None), "one of weight and bias is absent, expected both or none"),
    (dict(weight=torch.ones(5)), r"weight has shape \[5\], expected \[channels\] as x has them"),
    (dict(bias=torch.ones(2, 3)), r"bias has shape \[2, 3\], expected \[channels\]"),
    (dict(weight=torch.ones(6).long()), "weight is Long, expected a floating type"),
    (dict(x=torch.ones(2, 6).int()), "x is Int, expected a floating type"),
    (dict(x=torch.ones(2, 0), weight=None, bias=None), r"x has shape \[2, 0\], expected .* a channel"),
    (dict(epsilon=-1.0), "epsilon is -1, expected 0 or a positive number"),
    (dict(epsilon=float("nan")), "epsilon is nan, expected 0 or a positive number"),
    (dict(epsilon=float("inf")), "epsilon is inf, expected 0 or a positive number"),
    (dict(out_dtype=torch.int32), "out_dtype is Int, expected a floating type"),
    (dict(weight=torch.ones(6, device="meta")), "weight is on meta, expected cpu"),
    (dict(x=torch.ones(2, 6, device="meta")), "weight is on cpu, expected meta"),
])
def test_layer_norm_names_what_does_not_fit(change, message):
    x, weight, bias, epsilon = norm_inputs()
    inputs = {"x": x, "weight": weight, "bias": bias, "epsilon": epsilon, **change}
    with pytest.raises(RuntimeError, match="layer_norm: " + message):
        ops.layer_norm(**inputs)


@pytest.mark.parametrize("change, message", [
    (dict(grad_out=torch.ones(2, 3, 5)), r"gradient of out has shape \[2, 3, 5\], expected \[2, 3, 6\]"),
    (dict(grad_out=torch.ones(2, 3, 6).int()), "gradient of out is Int, expected a floating type"),
    (dict(skip=torch.ones(3, 6)), r"skip has shape \[3, 6\], expected \[2, 3, 6\]"),
    (dict(mean=torch.ones(2)), r"mean has shape \[2\], expected \[2, 3\]"),
    (dict(rstd=torch.ones(2, 3).double()), "rstd is Double, expected Float"),
    (dict(weight=torch.ones(5)), r"weight has shape \[5\]"),
    (dict(mean=torch.ones(2, 3, device="meta")), "mean is on meta, expected cpu"),
])
def test_layer_norm_backward_names_what_does_not_fit(change, message):
    x = torch.rand(2, 3, 6)
    _, mean, rstd = ops.layer_norm(x, None, None, 1e-5)
    inputs = {"grad_out": torch.rand_like(x), "x": x, "mean": mean, "rstd": rstd,
              "weight": torch.ones(6), "skip": None, **change}
    with pytest.raises(RuntimeError, match="layer_norm: " + message):
        ops.layer_norm_backward(**inputs)


@pytest.mark.parametrize("change, message", [
    (dict(weight=torch.ones(4, 3, 3)), r"weight has shape \[4, 3, 3\], expected \[channels, 1, 3, 3\]"),
    (dict(weight=torch.ones(4, 1, 3, 3).int()), "weight is Int, expected a floating type"),
    (dict(bias=torch.ones(3)), r"bias has shape \[3\], expected \[channels\]"),
    (dict(bias=torch.ones(4).long()), "bias is Long, expected a floating type"),
    (dict(x=torch.ones(2, 5, 4, 0), weight=torch.ones(0, 1, 3, 3), bias=None),
     r"x has shape \[2, 5, 4, 0\], expected \[batch, height, width, channels\] with a channel"),
    (dict(weight=torch.ones(4, 1, 3, 3, device="meta")), "weight is on meta, expected cpu"),
    (dict(bias=torch.ones(4, device="meta")), "bias is on meta, expected cpu"),
    (dict(grad_out=torch.ones(2, 5, 4, 3)), r"gradient of out has shape \[2, 5, 4, 3\], expected"),
    (dict(grad_out=torch.ones(2, 5, 4, 4, device="meta")), "gradient of out is on meta, expected cpu"),
])
def test_depthwise_conv_names_what_does_not_fit(change, message):
    x, weight, bias, silu = conv_inputs(dtype=torch.float32)
    inputs = {"x": x, "weight": weight, "bias": bias, "silu": silu, **change}
    with pytest.raises(RuntimeError, match="depthwise_conv: " + message):
        if "grad_out" in change:
            ops.depthwise_conv_backward(**inputs)
        else:
            ops.depthwise_conv(**inputs)


def test_depthwise_conv_takes_gradients_of_another_type():
    x, weight, bias, silu = [t.detach() if torch.is_tensor(t) else t for t in conv_inputs()]
    gradient = torch.rand_like(x)
    narrow = ops.depthwise_conv_backward(gradient.float(), x, weight, bias, silu)
    same = ops.depthwise_conv_backward(gradient.float().double(), x, weight, bias, silu)
    torch.testing.assert_close(narrow, same, rtol=0, atol=0)


@pytest.mark.skipif(len(DEVICES) < 2, reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [96, 50])
def test_gpu_agrees_with_the_cpu(dtype, channels):
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {}
    for op, make in [(lambda *a: ops.layer_norm(*a)[0], norm_inputs),
                     (ops.depthwise_conv, conv_inputs)]:
        results = []
        for device in DEVICES:
            inputs = make(dtype=dtype, device=device, channels=channels)
            out = op(*inputs)
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape, dtype=torch.float64).to(device, dtype))
            results.append([out] + [t.grad for t in inputs[:3]])
        for got, expected in zip(results[1], results[0]):
            torch.testing.assert_close(got.cpu(), expected, **tolerance)
