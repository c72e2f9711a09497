"""The operators as PyTorch sees them: opcheck, gradcheck, torch.compile, autocast, strides, threads.

What the numbers should be is judged in C++ (tests/ops); here plain PyTorch loops, written from the
equations, confirm that schema, autograd and layouts were wired to the right places.
"""

import threading

import pytest
from support import HAS_CUDA, ops, scan_inputs, ss2d_inputs, torch, uniform


# ---- Plain PyTorch, differentiable ---------------------------------------------------------------


def plain_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, initial_state=None,
               delta_softplus=False):
    batch, channels, length = u.shape
    states = A.shape[1]

    def varying(factor):
        if factor.dim() == 2:
            return factor[None, :, :, None].expand(batch, channels, states, length)
        factor = factor[:, None] if factor.dim() == 3 else factor
        return factor.repeat_interleave(channels // factor.shape[1], dim=1)

    B, C = varying(B), varying(C)
    dt = delta if delta_bias is None else delta + delta_bias[:, None]
    dt = torch.nn.functional.softplus(dt) if delta_softplus else dt
    h = u.new_zeros(batch, channels, states) if initial_state is None else initial_state
    rows = []
    for t in range(length):
        h = torch.exp(dt[:, :, t, None] * A) * h + (dt * u)[:, :, t, None] * B[..., t]
        rows.append((C[..., t] * h).sum(-1))
    y = torch.stack(rows, -1) if rows else torch.zeros_like(u)
    y = y if D is None else y + D[:, None] * u
    return y if z is None else y * torch.nn.functional.silu(z), h


def route_order(code, height, width):
    plane = torch.arange(height * width).view(height, width)
    lines = plane.t() if code & 1 else plane
    lines = lines.flip(1) if code & 2 else lines
    lines = lines.flip(0) if code & 4 else lines
    return lines


def plain_ss2d(x, x_proj_weight, x_proj_bias, dt_weight, dt_bias, A_log, D, routes):
    batch, channels, height, width = x.shape
    states, rank = A_log.shape[1], dt_weight.shape[2]
    flat, total = x.flatten(2), 0
    for k, code in enumerate(routes):
        lines = route_order(code, height, width)
        for order in lines if code & 8 else [lines.flatten()]:
            u = flat[:, :, order]
            record = torch.einsum("rc,bcl->brl", x_proj_weight[k], u)
            if x_proj_bias is not None:
                record = record + x_proj_bias[k][:, None]
            dts, B, C = record.split([rank, states, states], 1)
            delta = torch.einsum("cr,brl->bcl", dt_weight[k], dts)
            here = slice(k * channels, (k + 1) * channels)
            y, _ = plain_scan(u, delta, -torch.exp(A_log[here]), B, C, D[here],
                              delta_bias=dt_bias[k], delta_softplus=True)
            total = total + torch.zeros_like(flat).index_copy(2, order, y)
    return total.view_as(x)


# ---- Values and gradients ------------------------------------------------------------------------

SCAN_CASES = {
    "all options": {},
    "one group without its dimension": dict(B=uniform(2, 3, 5), C=uniform(2, 3, 5)),
    "constant factors": dict(B=uniform(4, 3), C=uniform(4, 3)),
    "plain": dict(D=None, z=None, delta_bias=None, initial_state=None, delta_softplus=False),
}


@pytest.mark.parametrize("options", SCAN_CASES.values(), ids=SCAN_CASES.keys())
def test_selective_scan_agrees_with_plain_pytorch(options):
    inputs = scan_inputs(**options)
    for got, expected in zip(ops.selective_scan(**inputs), plain_scan(**inputs)):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", SCAN_CASES.values(), ids=SCAN_CASES.keys())
def test_selective_scan_gradcheck(options):
    inputs = scan_inputs(**options)
    tensors = {k: v for k, v in inputs.items() if isinstance(v, torch.Tensor)}
    others = {k: v for k, v in inputs.items() if k not in tensors}

    def run(*values):
        return ops.selective_scan(**dict(zip(tensors, values)), **others)

    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


@pytest.mark.parametrize("routes", [(0, 1, 6, 7), (0, 5, 6, 3), (8, 10, 9, 11), (0,)])
@pytest.mark.parametrize("bias", [False, True])
def test_ss2d_agrees_with_plain_pytorch(routes, bias):
    inputs = ss2d_inputs(routes=routes, bias=bias)
    torch.testing.assert_close(ops.ss2d(*inputs), plain_ss2d(*inputs))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("routes", [(0, 1, 6, 7), (9, 14)])
def test_ss2d_gradcheck(routes, layout):
    inputs = ss2d_inputs(routes=routes)
    if layout == "channels_last":
        inputs[0] = inputs[0].detach().to(memory_format=torch.channels_last).requires_grad_()

    def run(*tensors):
        return ops.ss2d(*tensors, inputs[7])

    assert torch.autograd.gradcheck(run, tuple(inputs[:7]))


def gradient_of(layout, like):
    """An upstream gradient that lies in memory the way autograd sometimes hands it over."""
    torch.manual_seed(1)
    values = torch.rand(*like.shape, 2, dtype=like.dtype)
    return {
        "expanded": torch.ones((), dtype=like.dtype).expand(like.shape),
        "strided": values[..., 0],
        "transposed": values[..., 0].transpose(-1, -2).contiguous().transpose(-1, -2),
        "channels-last": values[..., 0].movedim(1, -1).contiguous().movedim(-1, 1),
    }[layout]


@pytest.mark.parametrize("layout", ["expanded", "strided", "transposed", "channels-last"])
def test_gradients_may_lie_in_any_way(layout):
    inputs = scan_inputs()
    out, _ = ops.selective_scan(**inputs)
    upstream = gradient_of(layout, out)
    got = torch.autograd.grad(out, (inputs["u"], inputs["B"]), upstream)
    out, _ = plain_scan(**inputs)
    torch.testing.assert_close(got, torch.autograd.grad(out, (inputs["u"], inputs["B"]), upstream))

    planes = ss2d_inputs()
    out = ops.ss2d(*planes)
    upstream = gradient_of(layout, out)
    got = torch.autograd.grad(out, planes[:7], upstream)
    torch.testing.assert_close(got, torch.autograd.grad(plain_ss2d(*planes), planes[:7], upstream))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not HAS_CUDA, reason="no GPU"))])
@pytest.mark.parametrize("states", [1, 5])
def test_parameters_and_states_may_lie_in_any_way(states, device):
    """Transposed, strided and expanded: gradients of sums are expanded from one number."""
    given = scan_inputs(states=states, dtype=torch.float32)
    given = {name: value.detach().to(device).requires_grad_() if isinstance(value, torch.Tensor)
             else value for name, value in given.items()}
    scattered = dict(given)
    for name in ("A", "D", "delta_bias", "initial_state"):
        wide = torch.stack([given[name], given[name] + 1], -1)  # every second number is another's
        scattered[name] = wide.transpose(0, -2).contiguous().transpose(0, -2)[..., 0]
        assert not scattered[name].is_contiguous()
    wanted = [value for value in given.values() if isinstance(value, torch.Tensor)]
    for one, other in zip(*[[*results, *torch.autograd.grad(
            results[0].square().sum() + results[1].sum(), wanted)]
            for results in (ops.selective_scan(**given), ops.selective_scan(**scattered))]):
        torch.testing.assert_close(one, other)
    last = torch.autograd.grad(ops.selective_scan(**given)[1].sum(), wanted[0])[0]
    ones = torch.ones_like(given["initial_state"])
    torch.testing.assert_close(last, torch.autograd.grad(
        ops.selective_scan(**given)[1], wanted[0], ones)[0])


def test_a_step_writes_to_a_state_that_is_not_contiguous():
    torch.manual_seed(2)
    u, delta, B, C = torch.rand(2, 3), torch.rand(2, 3), torch.rand(2, 4), torch.rand(2, 4)
    A, state = -torch.rand(3, 4), torch.rand(2, 4, 3)
    one, other = state.transpose(1, 2), state.transpose(1, 2).contiguous()
    outs = [ops.selective_scan_step(u, delta, A, B, C, state=s) for s in (one, other)]
    torch.testing.assert_close(*outs)
    torch.testing.assert_close(one, other)


def test_gradient_of_the_last_state_alone():
    inputs = scan_inputs()
    wanted = (inputs["u"], inputs["initial_state"])
    got = torch.autograd.grad(ops.selective_scan(**inputs)[1].sum(), wanted)
    torch.testing.assert_close(got, torch.autograd.grad(plain_scan(**inputs)[1].sum(), wanted))


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
@pytest.mark.parametrize("groups", [1, 4])  # 64 and 16 channels a group: other kernels, other states kept
def test_many_short_rows_have_the_gradients_of_the_cpu(groups):
    torch.manual_seed(3)
    given = [torch.randn(1024, 64, 49), torch.randn(1024, 64, 49), -torch.rand(64, 1) - 0.5,
             *torch.randn(2, 1024, groups, 1, 49)]

    def results(device):
        leaves = [tensor.to(device).requires_grad_() for tensor in given]
        out, last = ops.selective_scan(*leaves, delta_softplus=True)
        return [out, last, *torch.autograd.grad(out.square().sum() + last.sum(), leaves)]

    for cuda, cpu in zip(results("cuda"), results("cpu")):
        torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-3, atol=1e-3 * cpu.abs().max().item())


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("states", [4, 5, 16])  # even numbers: the passes go different ways
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_ss2d_of_several_states_has_the_gradients_of_the_cpu(dtype, states, layout):
    *given, routes = ss2d_inputs(channels=40, height=14, width=21, states=states, rank=6,
                                 dtype=dtype, bias=False, requires_grad=False)
    given[0] = given[0].contiguous(memory_format=layout)
    upstream = uniform(*given[0].shape, dtype=dtype, requires_grad=False)

    def results(device, wide=None):
        leaves = [None if one is None else one.to(device, wide).requires_grad_() for one in given]
        out = ops.ss2d(*leaves, routes)
        wanted = [leaf for leaf in leaves if leaf is not None]
        return [out, *torch.autograd.grad(out, wanted, upstream.to(out))]

    for cuda, cpu in zip(results("cuda"), results("cpu", torch.float64)):
        torch.testing.assert_close(cuda.cpu().double(), cpu, rtol=0.02,
                                   atol=0.02 * cpu.abs().max().item())


@pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
def test_states_are_kept_for_a_backward_pass_alone():
    batch, channels, length, states = 2, 1024, 1024, 16
    rows = torch.randn(2, batch, channels, length, device="cuda")
    factors = torch.randn(2, batch, 1, states, length, device="cuda")
    A = -torch.rand(channels, states, device="cuda")

    def held():
        before = torch.cuda.memory_allocated()
        results = ops.selective_scan(*rows, A, *factors)
        return torch.cuda.memory_allocated() - before, results

    without = held()[0]
    A.requires_grad_()
    with torch.no_grad():
        assert held()[0] == without
    assert held()[0] - without >= batch * channels * states * 4  # at the start of one more tile at least


def test_outputs_follow_the_strides_of_the_first_input():
    u = torch.rand(2, 4, 5).transpose(1, 2).contiguous().transpose(1, 2)
    inputs = scan_inputs(dtype=torch.float32, requires_grad=False)
    assert ops.selective_scan(**{**inputs, "u": u})[0].stride() == u.stride()
    planes = ss2d_inputs(dtype=torch.float32, requires_grad=False)
    planes[0] = planes[0].to(memory_format=torch.channels_last)
    assert ops.ss2d(*planes).stride() == planes[0].stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_err_at_most_twice_as_much_as_plain_pytorch(dtype):
    exact = scan_inputs(channels=8, length=40, groups=1, requires_grad=False)
    low = scan_inputs(channels=8, length=40, groups=1, requires_grad=False, dtype=dtype)
    rounded = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in low.items()}
    assert exact["u"].shape == rounded["u"].shape
    expected = plain_scan(**rounded)[0]
    ours = ops.selective_scan(**low)[0].double()
    everything_low = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in low.items()}
    plain = plain_scan(**everything_low)[0].double()
    assert (ours - expected).abs().max() <= 2 * (plain - expected).abs().max()


def test_out_dtype_and_autocast():
    low = scan_inputs(dtype=torch.bfloat16, requires_grad=False)
    assert ops.selective_scan(**low)[0].dtype == torch.bfloat16
    assert ops.selective_scan(**low, out_dtype=torch.float32)[0].dtype == torch.float32
    high = scan_inputs(dtype=torch.float32)
    planes = ss2d_inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, last = ops.selective_scan(**high)
        assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
        result = ops.ss2d(*planes)
        assert result.dtype == torch.bfloat16
        assert ops.ss2d(*planes, torch.float32).dtype == torch.float32
    (out.float().sum() + last.sum() + result.float().sum()).backward()
    assert high["A"].grad.dtype == torch.float32
    torch.testing.assert_close(result.float(), ops.ss2d(*planes), atol=0.05, rtol=0.05)


def test_steps_equal_the_whole():
    inputs = scan_inputs(requires_grad=False)
    out, last = ops.selective_scan(**inputs)
    state = inputs.pop("initial_state").clone()
    for t in range(out.shape[-1]):
        now = {
            k: v[..., t] if k in ("u", "delta", "z", "B", "C") else v for k, v in inputs.items()
        }
        torch.testing.assert_close(ops.selective_scan_step(**now, state=state), out[..., t])
    torch.testing.assert_close(state, last)


STEPS = {
    "selective_scan_step": lambda state, x: ops.selective_scan_step(
        x, x, -torch.ones(3, 1), x.new_ones(2, 1), x.new_ones(2, 1), state=state),
    "gated_delta_rule_step": lambda state, x: ops.gated_delta_rule_step(
        x.view(2, 3, 1), x.view(2, 3, 1), torch.ones_like(x).view(2, 3, 1), -x.float(), x.float(),
        state.unsqueeze(-1), torch.arange(2)),
    "causal_conv1d_step": lambda state, x: ops.causal_conv1d_step(x, torch.ones(3, 2), state=state),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_tells_autograd_that_the_state_has_moved(step):
    factor, state = torch.ones(2, 3, 1, requires_grad=True), torch.ones(2, 3, 1)
    product = (factor * state).sum()
    STEPS[step](state, torch.full((2, 3), 0.5))
    assert not torch.equal(state, torch.ones(2, 3, 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("step", STEPS)
def test_steps_run_under_autocast(step):
    x = torch.full((2, 3), 0.5)
    type_of_state = torch.bfloat16 if step == "causal_conv1d_step" else torch.float32
    state, narrow = torch.ones(2, 3, 1), torch.ones(2, 3, 1, dtype=type_of_state)
    out = STEPS[step](state, x)
    with torch.autocast("cpu", torch.bfloat16):
        low = STEPS[step](narrow, x)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), out, rtol=0.02, atol=0.02)
    torch.testing.assert_close(narrow.float(), state, rtol=0.02, atol=0.02)


# ---- PyTorch's own machinery ---------------------------------------------------------------------


def test_opcheck():
    inputs = scan_inputs()
    torch.library.opcheck(ops.selective_scan.default, (), inputs)
    torch.library.opcheck(ops.ss2d.default, tuple(ss2d_inputs()))
    planes = ss2d_inputs()
    projection = uniform(2, 12, 4 * 6)
    scan = (planes[0], projection, *planes[3:])
    torch.library.opcheck(ops.ss2d_scan.default, scan)
    weight, bias = (leaf.detach().flatten(0, 1).requires_grad_() for leaf in planes[1:3])
    torch.library.opcheck(ops.ss2d_scan_projected.default, (planes[0], weight, bias, *planes[3:]))
    step = scan_inputs(length=1, requires_grad=False)
    state = step.pop("initial_state")
    step = {k: v[..., 0] if k in ("u", "delta", "z", "B", "C") else v for k, v in step.items()}
    torch.library.opcheck(ops.selective_scan_step.default, (), {**step, "state": state})


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_full_graph(dynamic):
    scan = scan_inputs(requires_grad=False)

    def network(x, *rest):
        y = ops.ss2d(torch.nn.functional.silu(x), *rest)
        out, last = ops.selective_scan(**scan)
        return y.square().sum() + out.sum() + last.sum()

    inputs = ss2d_inputs()
    compiled = torch.compile(network, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    expected = torch.autograd.grad(network(*inputs), inputs[:2])
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs[:2]), expected)


def test_second_derivatives_are_refused():
    inputs = scan_inputs()
    (gu,) = torch.autograd.grad(ops.selective_scan(**inputs)[0].sum(), inputs["u"],
                                create_graph=True)
    with pytest.raises(RuntimeError, match="selective_scan_backward is not implemented"):
        gu.sum().backward()
    planes = ss2d_inputs()
    (gx,) = torch.autograd.grad(ops.ss2d(*planes).sum(), planes[0], create_graph=True)
    with pytest.raises(RuntimeError, match="ss2d_scan_backward is not implemented"):
        gx.sum().backward()


def test_calls_from_several_threads_agree():
    inputs = scan_inputs(channels=70, length=100, groups=1, dtype=torch.float32,
                         requires_grad=False)
    expected = ops.selective_scan(**inputs)[0]
    results = [None] * 8

    def run(i):
        results[i] = all(
            torch.equal(ops.selective_scan(**inputs)[0], expected) for _ in range(20)
        )

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results)


def test_thread_count_does_not_change_results():
    planes = ss2d_inputs(batch=3, channels=100, height=9, width=9, dtype=torch.float32)
    results = []
    before = torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        out, _ = ops.ss2d_scan(planes[0], torch.ones(3, 81, 24), *planes[3:])
        results.append([out, *torch.autograd.grad(out.sum(), (planes[0], *planes[3:7]))])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(A=torch.randn(4, 3, dtype=torch.complex64)), "A is ComplexFloat, expected"),
        (dict(A=torch.randn(4, 3, dtype=torch.float32)), "A is float32, expected float64"),
        (dict(B=torch.randn(2, 3, 3, 5, dtype=torch.float64)), "B has 3 groups, which do not"),
        (dict(z=torch.randn(2, 4, 6, dtype=torch.float64)), r"z has shape \[2, 4, 6\]"),
        (dict(D=torch.randn(4, dtype=torch.float64, device="meta")), "D is on meta, expected cpu"),
    ],
)
def test_selective_scan_names_what_does_not_fit(change, message):
    with pytest.raises(RuntimeError, match="selective_scan: " + message):
        ops.selective_scan(**scan_inputs(requires_grad=False, **change))


@pytest.mark.parametrize("change, message", [
    (dict(u=torch.rand(2, 4, 1).double()), "u has 3 dimensions, expected .batch, channels."),
    (dict(A=torch.rand(4, 3)), "A is float32, expected float64"),
    (dict(D=torch.rand(4).double().to("meta")), "D is on meta, expected cpu"),
    (dict(state=torch.rand(2, 4, 2).double()), r"state has shape \[2, 4, 2\], expected \[2, 4, 3\]"),
    (dict(state=torch.rand(2, 4, 3).double().to("meta")), "state is on meta, expected cpu"),
    (dict(state=torch.rand(4, 3).double().expand(2, 4, 3)), "state has .* elements share memory"),
])
def test_a_step_of_selective_scan_names_what_does_not_fit(change, message):
    inputs = scan_inputs(length=1, requires_grad=False)
    state = inputs.pop("initial_state")
    step = {name: tensor[..., 0] if name in ("u", "delta", "B", "C", "z") else tensor
            for name, tensor in inputs.items()}
    with pytest.raises(RuntimeError, match="selective_scan_step: " + message):
        ops.selective_scan_step(**{**step, "state": state, **change})


@pytest.mark.parametrize("out, last, message", [
    (torch.rand(2, 4, 4).double(), None, r"grad_out has shape \[2, 4, 4\], expected \[2, 4, 5\]"),
    (None, torch.rand(2, 4, 2).double(), r"grad_last_state has shape \[2, 4, 2\]"),
    (None, torch.rand(2, 4, 3), "grad_last_state is float32, expected float64"),
    (torch.rand(2, 4, 5).double().to("meta"), None, "grad_out is on meta, expected cpu"),
])
def test_selective_scan_backward_names_gradients_that_do_not_fit(out, last, message):
    inputs = list(scan_inputs(requires_grad=False).values())
    with pytest.raises(RuntimeError, match="selective_scan: " + message):
        ops.selective_scan_backward(out, last, *inputs)


def test_ss2d_backward_names_gradients_that_do_not_fit():
    x, *rest = ss2d_inputs(requires_grad=False)
    parameters, routes = rest[2:6], rest[6]
    projection, none = torch.rand(2, 12, 24).double(), torch.empty(0).double()
    for gradient, message in [(torch.rand(2, 3, 4, 4), r"grad_out has shape \[2, 3, 4, 4\]"),
                              (x.to("meta"), "grad_out is on meta, expected cpu")]:
        with pytest.raises(RuntimeError, match="ss2d: " + message):
            ops.ss2d_scan_backward(gradient, none, x, projection, *parameters, routes)


def test_ss2d_backward_adds_the_gradient_of_the_projection():
    x, *rest = ss2d_inputs(requires_grad=False)
    parameters, routes = rest[2:6], rest[6]
    weight = rest[0].flatten(0, 1)
    planes = x.contiguous(memory_format=torch.channels_last)
    projection = planes.flatten(2).transpose(1, 2) @ weight.t()
    gradient, none = torch.rand_like(planes), torch.empty(0).double()
    given = (gradient, none, planes, projection, *parameters, routes)
    gx, gprojection, *_ = ops.ss2d_scan_backward(*given)
    both, *_ = ops.ss2d_scan_backward(*given, weight)
    torch.testing.assert_close(both, gx + (gprojection @ weight).transpose(1, 2).view_as(gx))
    with pytest.raises(RuntimeError, match="ss2d: projection_weight has shape"):
        ops.ss2d_scan_backward(*given, weight.t())
    turned, *_ = ops.ss2d_scan_backward(gradient, none, x.contiguous(), *given[3:], weight)
    torch.testing.assert_close(turned, both)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_scan_with_its_projection_is_ss2d(with_bias, layout):
    x, weight, bias, *rest = ss2d_inputs(bias=with_bias)
    x = x.detach().contiguous(memory_format=layout).requires_grad_()
    wanted = [leaf for leaf in (x, weight, bias, *rest[:4]) if leaf is not None]
    whole = ops.ss2d(x, weight, bias, *rest)
    out, _ = ops.ss2d_scan_projected(x, weight.flatten(0, 1), bias.flatten() if with_bias else None,
                                     *rest)
    torch.testing.assert_close(out, whole)
    upstream = torch.rand_like(out)
    torch.testing.assert_close(torch.autograd.grad(out, wanted, upstream),
                               torch.autograd.grad(whole, wanted, upstream))


def test_a_scan_with_its_projection_names_what_does_not_fit():
    x, weight, bias, *rest = ss2d_inputs(requires_grad=False)
    rows, numbers = weight.flatten(0, 1), bias.flatten()
    for given, message in [
        ((x[0], rows, numbers), r"x has 3 dimensions, expected \[batch, channels, height, width\]"),
        ((x, weight, numbers), "projection_weight has 3 dimensions"),
        ((x, rows[:, 1:], numbers), r"projection_weight has shape \[24, 2\], expected \[24, 3\]"),
        ((x, rows.float(), numbers), "projection_weight is Float, expected Double as x"),
        ((x, rows.to("meta"), numbers), "projection_weight is on meta, expected cpu"),
        ((x, rows, numbers[1:]), r"projection_bias has shape \[23\], expected \[24\]"),
        ((x, rows, numbers.float()), "projection_bias is Float, expected Double as x"),
    ]:
        with pytest.raises(RuntimeError, match="ss2d: " + message):
            ops.ss2d_scan_projected(*given, *rest)
        with pytest.raises(RuntimeError, match="ss2d: " + message):
            ops.ss2d_scan_projected_backward(torch.rand_like(x), x.new_empty(0), *given, *rest)
    for gradient, states, message in [
        (torch.rand(2, 3, 4, 4).double(), x.new_empty(0), r"grad_out has shape \[2, 3, 4, 4\]"),
        (x.to("meta"), x.new_empty(0), "grad_out is on meta, expected cpu"),
        (torch.rand_like(x), x.new_empty(5), r"states has shape \[5\], expected"),
    ]:
        with pytest.raises(RuntimeError, match="ss2d: " + message):
            ops.ss2d_scan_projected_backward(gradient, states, x, rows, numbers, *rest)


# Slices of the batch, whose gradients of the projection's parameters add up; up to eight dts and more.
@pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
@pytest.mark.parametrize("rank", [6, 12])
@pytest.mark.parametrize("with_bias", [True, False])
def test_several_states_do_without_a_projection_that_is_kept(rank, with_bias):
    batch, channels, side, states = 96, 96, 56, 4
    *given, routes = ss2d_inputs(batch=batch, channels=channels, height=side, width=side,
                                 states=states, rank=rank, dtype=torch.bfloat16, bias=with_bias,
                                 requires_grad=False)
    given = [one if one is None else one.cuda() for one in given]
    given[0] = given[0].contiguous(memory_format=torch.channels_last)
    given[3] = given[3].bfloat16()
    leaves = [one if one is None else one.requires_grad_() for one in given]
    wanted = [leaf for leaf in leaves if leaf is not None]
    projection_bytes = batch * side * side * 4 * (rank + 2 * states) * 2
    kept_bytes = batch * 4 * channels * (side * side // 28) * states * 2

    before = torch.cuda.memory_allocated()
    out = ops.ss2d(*leaves, routes)
    assert torch.cuda.memory_allocated() - before < out.nbytes + kept_bytes + projection_bytes // 4
    upstream = torch.randn_like(out)
    gradients = torch.autograd.grad(out, wanted, upstream)

    x, weight, bias, *rest = leaves
    rows = x.flatten(2).transpose(1, 2)
    projection = rows @ weight.flatten(0, 1).t() + (bias.flatten() if with_bias else 0)
    expected_out = ops.ss2d_scan(x, projection, *rest, routes)[0]
    if not with_bias:  # whose sum is rounded once more here
        assert torch.equal(out, expected_out)
    for got, expected in zip([out, *gradients],
                             [expected_out, *torch.autograd.grad(expected_out, wanted, upstream)]):
        scale = expected.abs().max().item()
        torch.testing.assert_close(got.float(), expected.float(), rtol=0.02, atol=0.01 * scale)


def test_ss2d_names_what_does_not_fit():
    inputs = ss2d_inputs(requires_grad=False)
    with pytest.raises(RuntimeError, match=r"ss2d: routes\[1\] is 99"):
        ops.ss2d(*inputs[:7], [0, 99, 6, 7])
    with pytest.raises(RuntimeError, match="ss2d: x_proj_weight has shape"):
        ops.ss2d(inputs[0][:, :2], *inputs[1:])
    with pytest.raises(RuntimeError, match=r"expected \[12, states\]"):
        ops.ss2d(*inputs[:5], inputs[5][:4], *inputs[6:])
    with pytest.raises(RuntimeError, match="x_proj_weight has shape .*, expected 2 first, as routes has"):
        ops.ss2d(*inputs[:7], [0, 1])
    with pytest.raises(RuntimeError, match="x_proj_weight has shape .* with the rank . of dt_proj_weight"):
        ops.ss2d(inputs[0], inputs[1][:, 1:], *inputs[2:])
