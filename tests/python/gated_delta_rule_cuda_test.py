"""gated_delta_rule on a GPU, from PyTorch: beside the CPU in double, sequences in several calls and
packed ones, opcheck, graphs, autocast, batches and tensors that other libraries' grids do not hold,
memory that is not there. Skipped without a GPU."""

import math

import pytest
from gated_delta_rule_test import rule_inputs
from support import HAS_CUDA, ops, torch

pytestmark = pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
LIMIT = 2**31
ENDS = slice(0, 40), slice(-40, None)  # of a batch; sequences enough for the kernels of the whole
large = pytest.mark.skipif(not HAS_CUDA or torch.cuda.mem_get_info()[0] < 70 << 30,
                           reason="no GPU with 70 GiB of free memory")


@pytest.fixture(autouse=True)
def memory_given_back():
    yield
    torch.cuda.empty_cache()


def on_gpu(inputs):
    return {name: t.detach().cuda().requires_grad_(t.requires_grad) if torch.is_tensor(t) else t
            for name, t in inputs.items()}


def gradients(inputs, up):
    results = ops.gated_delta_rule(**inputs)
    wanted = [t for t in inputs.values() if torch.is_tensor(t) and t.requires_grad]
    return [*results, *torch.autograd.grad(results, wanted, up)]


@pytest.mark.parametrize("case", [
    dict(), dict(v_first=True, length=70), dict(reverse=True, mode="recurrent"),
    dict(batch=1, length=90, sequences=3, cu_seqlens=torch.tensor([0, 20, 20, 90])),
    *[dict(batch=1, length=70, heads=1, value_heads=2, K=K, V=V)  # as large as K and V may be
      for K, V in [(512, 512), (512, 8), (8, 512), (256, 512)]],
])
@pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 3e-2),
                                             (torch.float16, 4e-3)])
def test_agrees_with_the_cpu_in_double(case, dtype, tolerance):
    inputs = rule_inputs(dtype=dtype, **case)
    wide = {name: t.detach().double().requires_grad_() if torch.is_tensor(t) and
            t.is_floating_point() else t for name, t in inputs.items()}
    up = [torch.randn(t.shape, dtype=torch.float64).to(t.dtype)
          for t in ops.gated_delta_rule(**{k: v.detach() if torch.is_tensor(v) else v
                                           for k, v in inputs.items()})]
    expected = gradients(wide, [t.double() for t in up])
    got = gradients(on_gpu(inputs), [t.cuda() for t in up])
    for a, b in zip(got, expected):
        scale = b.abs().max().clamp_min(1e-3)
        assert ((a.cpu().double() - b).abs().max() / scale).item() < tolerance


# Batches of every kind of kernel; a sum's gradient is one number, expanded.
@pytest.mark.parametrize("batch,length,heads,size", [(1, 200, 2, 64), (1, 200, 2, 128), (1, 130, 1, 256),
                                                     (600, 32, 1, 32), (2, 3, 2, 16)])
@pytest.mark.parametrize("v_first", [False, True])
def test_gradients_may_be_expanded(batch, length, heads, size, v_first):
    h = {"device": "cuda", "dtype": torch.bfloat16}
    q, k, v = (torch.randn(batch, length, heads, size, **h) for _ in range(3))
    g = -torch.rand(batch, length, heads, device="cuda")
    beta = torch.rand(batch, length, heads, **h)
    inputs = [t.requires_grad_() for t in (q, k, v, g, beta)]
    results = ops.gated_delta_rule(*inputs, qk_l2norm=True, state_v_first=v_first)
    expanded = torch.autograd.grad(results, inputs, retain_graph=True, grad_outputs=[
        torch.ones((), device="cuda", dtype=t.dtype).expand(t.shape) for t in results])
    dense = torch.autograd.grad(results, inputs, [torch.ones_like(t) for t in results])
    for one, other in zip(expanded, dense):
        assert torch.equal(one, other)


def test_gradients_of_the_convolution_may_be_expanded():
    x, weight = torch.randn(2, 70, 24, device="cuda"), torch.randn(24, 4, device="cuda")
    state = torch.randn(2, 24, 3, device="cuda").transpose(0, 1).contiguous().transpose(0, 1)
    inputs = [t.requires_grad_() for t in (x, weight, state)]
    results = ops.causal_conv1d(x, weight, None, state)
    expanded = torch.autograd.grad(results, inputs, retain_graph=True, grad_outputs=[
        torch.ones((), device="cuda").expand(t.shape) for t in results])
    dense = torch.autograd.grad(results, inputs, [torch.ones_like(t) for t in results])
    for one, other in zip(expanded, dense):
        torch.testing.assert_close(one, other)  # another layout, another order of the sums
    for one, other in zip(results, ops.causal_conv1d(x.cpu(), weight.cpu(), None, state.cpu())):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [dict(), dict(state_v_first=True, reverse=True, mode="chunk")])
def test_states_kept_for_the_backward_pass_change_nothing_but_memory(options):
    h = {"device": "cuda", "dtype": torch.bfloat16}
    q, k = (torch.randn(1, 8192, 8, 64, **h) for _ in range(2))
    v = torch.randn(1, 8192, 32, 64, **h)
    g = torch.nn.functional.logsigmoid(torch.randn(1, 8192, 32, device="cuda"))
    beta = torch.rand(1, 8192, 32, device="cuda").bfloat16()
    inputs = [t.requires_grad_() for t in (q, k, v, g, beta)]
    o, last = ops.gated_delta_rule(*inputs, qk_l2norm=True, **options)
    up = [torch.randn_like(o), torch.randn_like(last)]
    kept = torch.autograd.grad([o, last], inputs, up)
    found = ops.gated_delta_rule_backward(
        *up, *inputs, None, None, None, None, None, True, False, False,
        options.get("state_v_first", False), options.get("reverse", False))
    for a, b in zip(kept, found):
        assert torch.equal(a, b)


@pytest.mark.parametrize("wanted", [True, False])
def test_opcheck(wanted):
    inputs = on_gpu(rule_inputs(dtype=torch.float32))
    positional = [inputs.pop(name) for name in ("q", "k", "v", "g", "beta")]
    torch.library.opcheck(torch.ops.linescan.gated_delta_rule.default, tuple(positional),
                          {**inputs, "output_final_state": wanted})


def test_a_final_state_that_nobody_wants_takes_no_memory():
    inputs = on_gpu(rule_inputs(dtype=torch.float32, requires_grad=False, K=256, V=256))
    o, state = ops.gated_delta_rule(**inputs)
    torch.cuda.synchronize()
    peaks = []
    for wanted in (True, False):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = ops.gated_delta_rule(**inputs, output_final_state=wanted)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert torch.equal(results[0], o)
        del results
    assert peaks[0] - peaks[1] >= state.numel() * 4 // 2


def test_step_continues_a_sequence_in_its_slot():
    inputs = on_gpu(rule_inputs(dtype=torch.float32, requires_grad=False, length=6))
    whole, last = ops.gated_delta_rule(**inputs)
    pool = torch.zeros(5, *inputs["initial_state"].shape[1:], device="cuda")
    slots = torch.tensor([3, 1], device="cuda")
    pool[slots] = inputs["initial_state"]
    options = {k: v for k, v in inputs.items()
               if k not in ("q", "k", "v", "g", "beta", "initial_state")}
    for t in range(6):
        token = [inputs[name][:, t] for name in ("q", "k", "v", "g", "beta")]
        torch.testing.assert_close(ops.gated_delta_rule_step(*token, pool, slots, **options),
                                   whole[:, t], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pool[slots], last, rtol=1e-4, atol=1e-5)


def test_runs_in_a_graph_and_under_autocast():
    inputs = on_gpu(rule_inputs(dtype=torch.float32, requires_grad=False, batch=1, length=90,
                                sequences=3, cu_seqlens=torch.tensor([0, 20, 20, 90])))
    with torch.autocast("cuda", torch.bfloat16):
        assert ops.gated_delta_rule(**inputs)[0].dtype == torch.bfloat16
    expected = ops.gated_delta_rule(**inputs)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ops.gated_delta_rule(**inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = ops.gated_delta_rule(**inputs)
    graph.replay()
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


def draw(*shape, dtype=torch.bfloat16, low=-1.0, high=1.0):
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(low, high)


def sequences(batch, length, heads, value_heads, K, V, dtype=torch.bfloat16):
    def of(*sizes, kind=dtype, **bounds):
        return draw(batch, length, *sizes, dtype=kind, **bounds)

    return [of(heads, K), of(heads, K), of(value_heads, V),
            of(value_heads, kind=torch.float32, high=0), of(value_heads, low=0)]


def results(given, qk_l2norm=True, **options):
    given = [t.detach().requires_grad_() for t in given]
    o, state = ops.gated_delta_rule(*given, qk_l2norm=qk_l2norm, **options)
    return [o.detach(), state.detach(),
            *torch.autograd.grad(o, given, torch.ones_like(o))]


def expect_same(one, other, leaves, tolerance):
    """Two ways to the same outputs and states: these and their gradients, each in norm."""
    up = [torch.randn_like(t) for t in one]
    for a, b in zip([*one, *torch.autograd.grad(one, leaves, up)],
                    [*other, *torch.autograd.grad(other, leaves, up)]):
        a, b = a.double(), b.double()
        assert ((a - b).norm() / b.norm()).item() < tolerance


types = pytest.mark.parametrize("dtype,tolerance", [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])


@types
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("cuts", [(100,), (64, 150)])
def test_a_sequence_may_come_in_several_calls(cuts, size, dtype, tolerance):
    """Each starts from the state that the one before it left; gradients go the way back."""
    given = sequences(2, 200, 2, 4, size, size, dtype)
    given[3] *= 0.05  # so that states are remembered for long
    leaves = [t.requires_grad_() for t in (*given, draw(2, 4, size, size, dtype=torch.float32))]

    def in_calls(*cuts):
        outs, state, bounds = [], leaves[-1], [0, *cuts, 200]
        for first, last in zip(bounds, bounds[1:]):
            o, state = ops.gated_delta_rule(*[t[:, first:last] for t in given], qk_l2norm=True,
                                            initial_state=state, mode="chunk")
            outs.append(o)
        return torch.cat(outs, 1), state

    expect_same(in_calls(*cuts), in_calls(), leaves, tolerance)


@types
@pytest.mark.parametrize("K,V", [(128, 128), (256, 128)])
def test_packed_sequences_equal_calls_of_their_own(K, V, dtype, tolerance):
    bounds = [0, 70, 70, 200, 201, 330]
    given, initial = sequences(1, 330, 2, 4, K, V, dtype), draw(5, 4, K, V, dtype=torch.float32)
    leaves = [t.requires_grad_() for t in (*given, initial)]
    options = dict(qk_l2norm=True, mode="chunk")
    packed = ops.gated_delta_rule(*given, initial_state=initial, **options,
                                  cu_seqlens=torch.tensor(bounds, device="cuda"))
    alone = [ops.gated_delta_rule(*[t[:, first:last] for t in given], **options,
                                  initial_state=initial[i:i + 1])
             for i, (first, last) in enumerate(zip(bounds, bounds[1:]))]
    outs, states = zip(*alone)
    expect_same(packed, (torch.cat(outs, 1), torch.cat(states)), leaves, tolerance)


@pytest.mark.parametrize("K,V,dtype,largest_key,largest_decay", [
    (128, 128, torch.bfloat16, 4, 60), (256, 512, torch.bfloat16, 4, 60),
    (64, 64, torch.float16, 1, 20)])
def test_keys_without_a_norm_and_strong_gates_stay_finite(K, V, dtype, largest_key, largest_decay):
    """Gates, one of them minus infinity, forget faster than keys let states grow."""
    given = sequences(2, 200, 2, 4, K, V, dtype)
    given[1] *= largest_key
    given[3] *= largest_decay
    given[3][:, 77] = -math.inf
    state = draw(2, 4, K, V, dtype=torch.float32)
    for tensor in results(given, qk_l2norm=False, initial_state=state, mode="chunk"):
        assert torch.isfinite(tensor).all() and tensor.any()


def captured(given, **options):
    """A graph of both passes, and the tensors that it fills."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = results(given, **options)
    return graph, got


def expect_replay(graph, got, expected):
    for tensor in got:
        tensor.zero_()
    graph.replay()
    for a, b in zip(got, expected):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(1, 8192, 1, 2, 128, 128), (1, 4096, 1, 1, 256, 256)])
def test_split_backward_passes_run_in_graphs_and_on_several_streams(shape):
    """Where heads are few, a backward pass has two streams: the caller's and one beside it."""
    given = sequences(*shape)
    expected = results(given)
    graph, got = captured(given)
    for repeat in range(3):
        expect_replay(graph, got, expected)

    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    all_results = []
    for number in range(12):  # nobody waits for anybody
        with torch.cuda.stream(streams[number % 3]):
            all_results.append(results(given))
    torch.cuda.synchronize()
    for some in all_results:
        for a, b in zip(some, expected):
            assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [
    (1, 16384, 1, 2, 128, 128),  # split into segments, both scans of the backward pass at once
    (1, 4000, 24, 48, 128, 128),  # a scan that makes records; backward half of the heads at a time
    (1, 4000, 48, 48, 256, 256),  # many keys, a quarter of the heads
    (1, 1000, 110, 110, 32, 32),  # a warp a sequence and value head
])
def test_packed_passes_run_in_graphs(shape):
    """Bounds are data: a graph goes by those that are there when it is replayed."""
    given = sequences(*shape)
    bounds, others = ((shape[1] * torch.tensor(shares)).long().cuda() for shares in (
        [0, 0.01, 0.01, 0.4, 0.7, 1], [0.1, 0.1, 0.2, 0.25, 0.9, 0.95]))
    expected = results(given, cu_seqlens=bounds)
    graph, got = captured(given, cu_seqlens=bounds)
    expect_replay(graph, got, expected)
    bounds.copy_(others)
    expect_replay(graph, got, results(given, cu_seqlens=bounds))


def expect_same_alone(given, parts):
    """Parts of a batch have the bits that they have alone. Pieces, and what is kept, depend on the
    batch but change no bits. Splits and other kernels would; the parts are too large for such."""
    whole = results(given)
    for part in parts:
        for a, b in zip(whole, results([t[part] for t in given])):
            assert torch.isfinite(b.sum(dtype=torch.float32))
            assert torch.equal(a[part], b)


# More than 65 535 sequences and value heads, for every way of a forward pass (gpu_plan.cpp).
# Backward passes in chunks come in four or five pieces.
@pytest.mark.parametrize("shape", [
    (10923, 32, 6, 6, 16, 32),  # a warp a sequence and value head
    (70000, 5, 1, 1, 32, 32),  # token after token; backward a warp again
    (1366, 70, 24, 48, 32, 64),  # records, then a scan: products of warps
    (2731, 70, 24, 24, 64, 64),  # records, then a scan: products of warp groups
    (1366, 70, 24, 48, 128, 128),  # a scan that makes records, which are kept
    pytest.param((4097, 70, 16, 16, 256, 256), marks=large),  # many keys; states of 2^32 elements
])
def test_large_batches_equal_their_halves(shape):
    half = shape[0] // 2
    expect_same_alone(sequences(*shape), (slice(0, half), slice(half, None)))


def test_many_packed_sequences():
    lengths = torch.arange(2050) % 9
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).cuda()
    given = sequences(1, int(bounds[-1]), 32, 32, 32, 32)
    whole = results(given, cu_seqlens=bounds)
    first, last = int(bounds[1030]), int(bounds[1070])  # enough of them for the same kernels
    part = results([t[:, first:last] for t in given], cu_seqlens=bounds[1030:1071] - first)
    for i, (a, b) in enumerate(zip(whole, part)):
        a = a[1030:1070] if i == 1 else a[:, first:last]
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@large
def test_more_than_2_to_the_31_elements():
    given = sequences(66000, 16, 8, 32, 32, 64)
    assert given[2].numel() > LIMIT
    with torch.no_grad():
        whole = ops.gated_delta_rule(*given, qk_l2norm=True, mode="recurrent")
        alone = ops.gated_delta_rule(*[t[-2:].clone() for t in given], qk_l2norm=True,
                                     mode="recurrent")
        for a, b in zip(whole, alone):
            assert torch.equal(a[-2:], b)
    del whole
    torch.cuda.empty_cache()
    given = sequences(1060, 1024, 4, 32, 32, 64)
    assert given[2].numel() > LIMIT
    with torch.no_grad():
        whole = ops.gated_delta_rule(*given, qk_l2norm=True)[0][-2:].clone()
        alone = ops.gated_delta_rule(*[t[-2:].clone() for t in given], qk_l2norm=True)[0]
        assert torch.equal(whole, alone)


@large
@pytest.mark.parametrize("shape", [
    (66000, 32, 32, 32, 32, 32),  # a warp a sequence and value head
    (21846, 64, 24, 24, 64, 64),  # warp groups; every piece of the backward pass has 131 088 walks
    (1030, 512, 8, 32, 128, 128),  # a scan that makes records; these and states of a piece are kept
])
def test_more_than_2_to_the_31_elements_in_both_passes(shape):
    given = sequences(*shape)
    assert given[2].numel() > LIMIT
    expect_same_alone(given, ENDS)


def test_what_does_not_fit_is_refused_before_it_starts():
    """Its inputs are one token each, expanded; the workspace of so many is not there."""
    batch = 1 << 24
    q = draw(1, 64, 1, 128).expand(batch, 64, 1, 128)
    v = draw(1, 64, 1, 128).expand(batch, 64, 1, 128)
    g = draw(1, 64, 1, dtype=torch.float32, high=0).expand(batch, 64, 1)
    with pytest.raises(RuntimeError, match=r"q \[16777216, 64, 1, 128\].* a batch of \d+ would fit"):
        ops.gated_delta_rule(q, q, v, g, g)


def test_what_training_would_keep_is_refused_before_it_starts():
    """The same with gradients and value heads that share a head of q, whose records are kept."""
    batch = 1 << 24
    q = draw(1, 64, 1, 128).requires_grad_().expand(batch, 64, 1, 128)
    v = draw(1, 64, 4, 128).expand(batch, 64, 4, 128)
    g = draw(1, 64, 4, dtype=torch.float32, high=0).expand(batch, 64, 4)
    with pytest.raises(RuntimeError, match=r"q \[16777216, 64, 1, 128\].* a batch of \d+ would fit"):
        ops.gated_delta_rule(q, q, v, g, g)
