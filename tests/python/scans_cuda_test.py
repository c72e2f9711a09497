"""selective_scan and ss2d on a GPU, from PyTorch: beside the CPU in double, opcheck, compiled, graphs of both
passes, streams, devices, threads, autocast, deterministic mode, steps. Skipped without a GPU."""

import threading

import pytest
from support import HAS_CUDA, ops, scan_inputs, ss2d_inputs, torch, uniform

pytestmark = pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
types = pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 3e-2),
                                                    (torch.float16, 4e-3)])


def on_gpu(value, device="cuda"):
    if not torch.is_tensor(value):
        return value
    return value.detach().to(device).requires_grad_(value.requires_grad)


def scan(**inputs):
    results = ops.selective_scan(**inputs)
    return list(results), [t for t in inputs.values() if torch.is_tensor(t)]


def planes(*inputs):
    return [ops.ss2d(*inputs)], [t for t in inputs if torch.is_tensor(t)]


def both_passes(operator, *positional, **named):
    """Results and gradients of all inputs, for upstream gradients that are the same on every device."""
    results, wanted = operator(*positional, **named)
    up = [torch.arange(t.numel(), dtype=torch.float64, device=t.device).cos().to(t).view(t.shape) for t in results]
    return [*(t.detach() for t in results), *torch.autograd.grad(results, wanted, up)]


def expect_close(got, expected, tolerance):
    """Each in norm."""
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        error = ((a.cpu().double() - b).norm() / b.norm().clamp_min(1e-6)).item()
        assert error < tolerance, (number, error)


def wide(value):
    if not torch.is_tensor(value):
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


@types
@pytest.mark.parametrize("change", [
    dict(), dict(states=1, channels=64, length=49), dict(states=1, length=300), dict(states=16, length=200),
    dict(states=64, length=40), dict(states=300, length=20), dict(states=1024, length=9),
    dict(z=None, D=None, delta_bias=None, initial_state=None, delta_softplus=False),
])
def test_selective_scan_agrees_with_the_cpu_in_double(change, dtype, tolerance):
    inputs = scan_inputs(dtype=dtype, **{"groups": 1, **change})
    expected = both_passes(scan, **{k: wide(v) for k, v in inputs.items()})
    expect_close(both_passes(scan, **{k: on_gpu(v) for k, v in inputs.items()}), expected, tolerance)


@types
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("size", [
    dict(channels=24, states=1, height=14, width=15, rank=6),
    dict(channels=8, states=1, height=62, width=66, rank=2),  # planes of several tiles
    dict(channels=24, states=4, height=9, width=10, rank=6), dict(channels=5, states=3),
    dict(channels=4, states=20), dict(channels=4, states=300), dict(channels=16, states=1, routes=(0,)),
])
def test_ss2d_agrees_with_the_cpu_in_double(size, layout, bias, dtype, tolerance):
    inputs = ss2d_inputs(dtype=dtype, bias=bias, **size)
    inputs[0] = inputs[0].detach().contiguous(memory_format=layout).requires_grad_()
    expected = both_passes(planes, *map(wide, inputs))
    # Projections of x are rounded to the data's type in between.
    expect_close(both_passes(planes, *map(on_gpu, inputs)), expected, tolerance)


def draw(*shape, dtype=torch.bfloat16, low=-1.0, high=1.0):
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(low, high).requires_grad_()


def rows(batch, channels, length, states, dtype=torch.bfloat16):
    factors = [draw(batch, 1, states, length, dtype=dtype) for _ in range(2)]
    return dict(u=draw(batch, channels, length, dtype=dtype),
                delta=draw(batch, channels, length, dtype=dtype),
                A=draw(channels, states, dtype=torch.float32, low=-1.0, high=-0.1), B=factors[0],
                C=factors[1], D=draw(channels, dtype=torch.float32),
                delta_bias=draw(channels, dtype=torch.float32), delta_softplus=True)


def images(batch, channels, side, states, dtype=torch.bfloat16):
    x = draw(batch, side, side, channels, dtype=dtype).detach().permute(0, 3, 1, 2).requires_grad_()
    record = 6 + 2 * states
    return [x, draw(4, record, channels, dtype=dtype, low=-0.1, high=0.1), None,
            draw(4, channels, 6, dtype=dtype), draw(4, channels, dtype=torch.float32, low=-4.0, high=-2.0),
            draw(4 * channels, states, dtype=torch.float32), draw(4 * channels, dtype=torch.float32),
            [0, 1, 6, 7]]


# Of the scans' kernels: short rows, whole rows, long ones, walkers, lanes that divide states; of ss2d's: planes of one
# tile, of several, small ones of many images, several states on chip, by scans, and float32.
WORK = {
    **{f"scan {shape}": (scan, lambda shape=shape: rows(*shape)) for shape in [
        (64, 96, 49, 1), (16, 96, 196, 1), (2, 96, 3136, 1), (4, 96, 400, 16), (1, 64, 300, 64)]},
    "scan float32": (scan, lambda: rows(4, 96, 300, 4, torch.float32)),
    **{f"ss2d {shape}": (planes, lambda shape=shape: images(*shape)) for shape in [
        (4, 96, 56, 1), (2, 32, 96, 1), (256, 64, 7, 1), (2, 64, 28, 4), (2, 16, 70, 4)]},
    "ss2d float32": (planes, lambda: images(2, 32, 40, 1, torch.float32)),
}
work = pytest.mark.parametrize("name", WORK)


def prepared(name):
    """A function of both passes, of inputs drawn once."""
    torch.manual_seed(0)
    operator, draw_inputs = WORK[name]
    inputs = draw_inputs()
    if isinstance(inputs, dict):
        return lambda: both_passes(operator, **inputs)
    return lambda: both_passes(operator, *inputs)


def expect_equal(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)


@work
def test_both_passes_run_in_a_graph(name):
    run = prepared(name)
    expected = run()
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run()
    for _ in range(3):
        for tensor in got:
            tensor.zero_()
        graph.replay()
        expect_equal(got, expected)


@work
def test_streams_do_not_meet(name):
    run = prepared(name)
    expected = run()
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    all_results = []
    for number in range(12):  # nobody waits for anybody
        with torch.cuda.stream(streams[number % 3]):
            all_results.append(run())
    torch.cuda.synchronize()
    for got in all_results:
        expect_equal(got, expected)


@work
def test_threads_of_the_host_do_not_meet(name):
    run = prepared(name)
    expected, results = run(), [None] * 4
    torch.cuda.synchronize()

    def repeat(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            got = [run() for _ in range(4)]
            torch.cuda.current_stream().synchronize()
        results[i] = all(torch.equal(a, b) for one in got for a, b in zip(one, expected, strict=True))

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results)


@work
def test_deterministic_mode_has_nothing_to_say(name):
    run = prepared(name)
    expected = run()
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(3):
            expect_equal(run(), expected)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(HAS_CUDA and torch.cuda.device_count() < 2, reason="one GPU")
def test_tensors_say_on_which_device_they_are():
    assert torch.cuda.current_device() == 0
    for operator, inputs in ((scan, scan_inputs(dtype=torch.float32)),
                             (planes, dict(enumerate(ss2d_inputs(dtype=torch.float32))))):
        first, second = ({k: on_gpu(v, device) for k, v in inputs.items()} for device in ("cuda:0", "cuda:1"))
        if operator is scan:
            got = [both_passes(scan, **one) for one in (first, second)]
        else:
            got = [both_passes(planes, *one.values()) for one in (first, second)]
        assert all(t.device.index == 1 for t in got[1])
        expect_equal([t.cpu() for t in got[1]], [t.cpu() for t in got[0]])


def test_autocast():
    high = {k: on_gpu(v) for k, v in scan_inputs(dtype=torch.float32).items()}
    sheets = [on_gpu(v) for v in ss2d_inputs(dtype=torch.float32)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out, last = ops.selective_scan(**high)
        assert out.dtype == torch.bfloat16 and last.dtype == torch.float32
        result = ops.ss2d(*sheets)
        assert result.dtype == torch.bfloat16
        assert ops.ss2d(*sheets, torch.float32).dtype == torch.float32
    (out.float().sum() + last.sum() + result.float().sum()).backward()
    assert high["A"].grad.dtype == torch.float32
    torch.testing.assert_close(result.float(), ops.ss2d(*sheets), atol=0.05, rtol=0.05)


def test_opcheck():
    inputs = {k: on_gpu(v) for k, v in scan_inputs(dtype=torch.float32).items()}
    torch.library.opcheck(ops.selective_scan.default, (), inputs)
    sheets = [on_gpu(v) for v in ss2d_inputs(dtype=torch.float32)]
    torch.library.opcheck(ops.ss2d.default, tuple(sheets))
    projection = on_gpu(uniform(2, 12, 4 * 6, dtype=torch.float32))
    torch.library.opcheck(ops.ss2d_scan.default, (sheets[0], projection, *sheets[3:]))
    step = scan_inputs(length=1, dtype=torch.float32, requires_grad=False)
    step = {k: on_gpu(v[..., 0] if k in ("u", "delta", "z", "B", "C") else v) for k, v in step.items()}
    state = step.pop("initial_state")
    torch.library.opcheck(ops.selective_scan_step.default, (), {**step, "state": state})


def test_compile_full_graph():
    given = {k: on_gpu(v) for k, v in scan_inputs(dtype=torch.float32, requires_grad=False).items()}

    def network(x, *rest):
        y = ops.ss2d(torch.nn.functional.silu(x), *rest)
        out, last = ops.selective_scan(**given)
        return y.square().sum() + out.sum() + last.sum()

    inputs = [on_gpu(v) for v in ss2d_inputs(dtype=torch.float32)]
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    expected = torch.autograd.grad(network(*inputs), inputs[:2])
    torch.testing.assert_close(torch.autograd.grad(compiled(*inputs), inputs[:2]), expected)


@pytest.mark.parametrize("states", [1, 3, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_equal_the_whole(dtype, states):
    inputs = {k: on_gpu(v) for k, v in scan_inputs(channels=40, states=states, dtype=dtype,
                                                   requires_grad=False).items()}
    out, last = ops.selective_scan(**inputs)
    state = inputs.pop("initial_state").clone()
    tolerance = {} if dtype == torch.float32 else dict(rtol=1e-2, atol=1e-2)
    for t in range(out.shape[-1]):
        now = {k: v[..., t] if k in ("u", "delta", "z", "B", "C") else v for k, v in inputs.items()}
        torch.testing.assert_close(ops.selective_scan_step(**now, state=state), out[..., t], **tolerance)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)
