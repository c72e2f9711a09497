"""causal_conv1d as PyTorch sees it: against a padded convolution, opcheck, gradcheck, torch.compile,
autocast, packed sequences, states. On a GPU, if there is one and the build has kernels for it, also
there."""

import itertools

import pytest
from support import HAS_CUDA, ops, torch, uniform

DEVICES = ["cpu"] + (["cuda"] if HAS_CUDA else [])
MANY_BOUNDS = [0, *itertools.accumulate(i % 9 for i in range(2050))]  # of packed sequences


def conv_inputs(batch=2, length=7, channels=4, width=4, bias=True, initial=True, packed=None,
                dtype=torch.float64, device="cpu"):
    """Positional arguments of causal_conv1d without silu."""
    torch.manual_seed(0)
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    sequences = batch if packed is None else len(packed) - 1
    inputs = [
        uniform(batch, length, channels, dtype=dtype),
        uniform(channels, width, dtype=parameter),
        uniform(channels, dtype=parameter) if bias else None,
        uniform(sequences, channels, width - 1, dtype=dtype) if initial else None,
    ]
    inputs = [None if t is None else t.detach().to(device).requires_grad_() for t in inputs]
    return inputs + [None if packed is None else torch.tensor(packed, device=device)]


def plain(x, weight, bias=None, initial_state=None, cu_seqlens=None, silu=True):
    """PyTorch's convolution behind the state, a sequence at a time."""
    history = weight.shape[1] - 1
    if cu_seqlens is None:
        sequences = list(x.unbind(0))
    else:
        bounds = cu_seqlens.tolist()
        sequences = [x[0, begin:end] for begin, end in zip(bounds, bounds[1:])]
    outs, states = [], []
    for number, tokens in enumerate(sequences):
        state = (x.new_zeros(x.shape[2], history) if initial_state is None
                 else initial_state[number])
        padded = torch.cat([state, tokens.T], dim=1)
        states.append(padded[:, padded.shape[1] - history:])
        if len(tokens) == 0:
            continue
        y = torch.nn.functional.conv1d(padded[None], weight.to(x.dtype)[:, None],
                                       None if bias is None else bias.to(x.dtype),
                                       groups=x.shape[2])[0].T
        outs.append(torch.nn.functional.silu(y) if silu else y)
    out = torch.stack(outs) if cu_seqlens is None else torch.cat(outs)[None]
    return out, torch.stack(states)


CASES = [{}, {"bias": False}, {"initial": False}, {"width": 2, "length": 1}, {"width": 3},
         {"length": 2}, {"batch": 1, "packed": [0, 2, 2, 3, 7]}]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_pytorch_and_finite_differences(case, silu):
    inputs = conv_inputs(**case)
    for got, expected in zip(ops.causal_conv1d(*inputs, silu=silu), plain(*inputs, silu=silu)):
        torch.testing.assert_close(got, expected)
    assert torch.autograd.gradcheck(lambda *a: ops.causal_conv1d(*a, silu=silu), inputs)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    dtype = torch.float64 if device == "cpu" else torch.float32
    for case in ({}, {"bias": False, "initial": False}, {"batch": 1, "packed": [0, 3, 7]}):
        torch.library.opcheck(ops.causal_conv1d.default,
                              conv_inputs(**case, dtype=dtype, device=device))
    x, weight, bias, state, _ = conv_inputs(dtype=dtype, device=device)
    torch.library.opcheck(ops.causal_conv1d_step.default,
                          [t.detach() for t in (x[:, 0], weight, bias)],
                          {"state": state.detach()})


def test_torch_compile_sees_one_graph():
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def block(*inputs):
        out, state = ops.causal_conv1d(*inputs)
        return out * 2, state

    for length in (7, 12):
        inputs = conv_inputs(length=length)
        out, state = block(*inputs)
        torch.testing.assert_close(out, plain(*inputs)[0] * 2)
        (out.sum() + state.sum()).backward()
        assert all(t.grad is not None for t in inputs[:4])


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("device", DEVICES)
def test_steps_equal_the_whole(device, width, with_bias, silu):
    """From the initial state, and from the one that a call over the first tokens returned."""
    dtype, same = ((torch.float64, {"rtol": 0, "atol": 0}) if device == "cpu" else
                   (torch.float32, {}))  # another kernel
    x, weight, bias, initial, _ = [t if t is None else t.detach() for t in conv_inputs(
        width=width, bias=with_bias, dtype=dtype, device=device)]
    expected, final = ops.causal_conv1d(x, weight, bias, initial, silu=silu)
    returned = ops.causal_conv1d(x[:, :3], weight, bias, initial, silu=silu)[1]
    for start, state in ((0, initial.clone()), (3, returned)):
        steps = [ops.causal_conv1d_step(x[:, t], weight, bias, state=state, silu=silu)
                 for t in range(start, x.shape[1])]
        torch.testing.assert_close(torch.stack(steps, 1), expected[:, start:], **same)
        assert torch.equal(state, final)


def test_types_and_strides():
    x, weight, bias, state, _ = conv_inputs(dtype=torch.float32)
    expected = plain(x, weight, bias, state)[0]
    length_last = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    out = ops.causal_conv1d(length_last, weight, bias, state)[0]
    torch.testing.assert_close(out, expected)
    assert out.stride() == length_last.stride()
    part = torch.cat([x, x], dim=2).detach()[..., :4]
    torch.testing.assert_close(ops.causal_conv1d(part, weight, bias, state)[0], expected)
    offsets = torch.tensor([0, 7], dtype=torch.int32)
    torch.testing.assert_close(
        ops.causal_conv1d(x[:1], weight, bias, state[:1], offsets)[0], expected[:1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half, half_state = ops.causal_conv1d(x, weight, bias, state)
    assert half.dtype == half_state.dtype == torch.bfloat16
    half.float().sum().backward()  # an expanded gradient
    assert x.grad.dtype == weight.grad.dtype == torch.float32
    half_weight = weight.detach().bfloat16().requires_grad_()
    ops.causal_conv1d(x, half_weight)[0].sum().backward()
    assert half_weight.grad.dtype == torch.bfloat16


def test_second_derivatives_are_refused():
    x, weight, *_ = conv_inputs()
    gradient, = torch.autograd.grad(ops.causal_conv1d(x, weight)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        gradient.sum().backward()


def test_bad_arguments_are_named():
    x, weight, bias, state, _ = conv_inputs()
    with pytest.raises(RuntimeError, match="width 2 to 4"):
        ops.causal_conv1d(x, torch.zeros(4, 5, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="initial_state has shape"):
        ops.causal_conv1d(x, weight, bias, state[:1])
    with pytest.raises(RuntimeError, match="expected 1 with packed sequences"):
        ops.causal_conv1d(x, weight, bias, None, torch.tensor([0, 7]))
    with pytest.raises(RuntimeError, match="expected .sequences . 1. of int32 or int64"):
        ops.causal_conv1d(x[:1], weight, bias, None, torch.tensor([0.0, 7.0]))
    with pytest.raises(RuntimeError, match="gradient of out is on meta, expected cpu"):
        ops.causal_conv1d_backward(torch.zeros(x.shape, dtype=x.dtype, device="meta"), None, x,
                                   weight, bias, state, None, True)


@pytest.mark.parametrize("change, message", [
    (dict(x=torch.ones(2, 3, 4).double()), "x has 3 dimensions, expected .batch, channels."),
    (dict(weight=torch.ones(4, 5).double()), r"weight has shape \[4, 5\], expected .* width 2 to 4"),
    (dict(weight=torch.ones(4, 4).double().to("meta")), "weight is on meta, expected cpu"),
    (dict(state=torch.ones(2, 4, 2).double()), r"state has shape \[2, 4, 2\], expected \[2, 4, 3\]"),
    (dict(state=torch.ones(2, 4, 3)), "state is float32, expected float64"),
    (dict(state=None), "state is None, expected a tensor"),
    (dict(x=None), "x has 1 dimensions|x is None"),
    (dict(weight=torch.ones(4, 4, dtype=torch.complex64)), "weight is ComplexFloat, expected float32"),
    (dict(weight=torch.ones(4, 4, dtype=torch.int32)), "weight is Int, expected float32"),
    (dict(state=torch.ones(2, 4, 3).double().to("meta")), "state is on meta, expected cpu"),
    (dict(state=torch.ones(4, 3).double().expand(2, 4, 3)),
     r"state has shape \[2, 4, 3\] and strides \[0, 3, 1\], in which elements share memory"),
])
def test_a_step_names_what_does_not_fit(change, message):
    x, weight, bias, state, _ = [t if t is None else t.detach() for t in conv_inputs()]
    inputs = {"x": x[:, 0], "weight": weight, "bias": bias, "state": state, **change}
    with pytest.raises(RuntimeError, match="causal_conv1d_step: " + message):
        ops.causal_conv1d_step(**inputs)


@pytest.mark.skipif(len(DEVICES) < 2, reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", [{"channels": 96, "length": 70}, {"channels": 50},
                                  {"batch": 1, "packed": [0, 2, 2, 3, 7]},
                                  {"batch": 70000, "channels": 8, "length": 5},
                                  {"batch": 1, "packed": MANY_BOUNDS, "length": MANY_BOUNDS[-1]}])
def test_gpu_agrees_with_the_cpu(dtype, case):
    rtol, atol = (2e-2, 2e-2) if dtype != torch.float32 else (1.3e-6, 1e-5)
    results = []
    for device in DEVICES:
        inputs = conv_inputs(**case, dtype=dtype, device=device)
        out, state = ops.causal_conv1d(*inputs)
        torch.manual_seed(1)
        up = [torch.randn(t.shape, dtype=torch.float64).to(device, dtype) for t in (out, state)]
        torch.autograd.backward([out, state], up)
        results.append([out, state] + [t.grad for t in inputs[:4]])
    for number, (got, expected) in enumerate(zip(results[1], results[0])):
        # Gradients of weight and bias are sums over all tokens. Of very many the errors grow with the root.
        tokens = out.shape[0] * out.shape[1]
        terms = tokens if number in (3, 4) and tokens > 1000 else 1
        torch.testing.assert_close(got.cpu(), expected, rtol=rtol, atol=atol * terms**0.5)
