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


def test_bad_shapes_are_named():
    x, weight, bias, epsilon = norm_inputs()
    with pytest.raises(RuntimeError, match="one of weight and bias is absent"):
        ops.layer_norm(x, weight, None, epsilon)
    with pytest.raises(RuntimeError, match="expected .channels. as x has them"):
        ops.layer_norm(x, weight[1:], bias, epsilon)
    x, weight, bias, silu = conv_inputs()
    with pytest.raises(RuntimeError, match=r"weight has shape \[4, 3, 3\]"):
        ops.depthwise_conv(x, weight[:, 0], bias, silu)


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
