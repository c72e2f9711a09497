"""gated_delta_rule on a GPU, from PyTorch: beside the CPU in double, opcheck, graphs, autocast, batches and
tensors that other libraries' grids do not hold, memory that is not there. Skipped without a GPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from gated_delta_rule_test import rule_inputs
from support import HAS_CUDA, ops, torch

pytestmark = pytest.mark.skipif(not HAS_CUDA, reason="no GPU")
LIMIT = 2**31


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


def sequences(batch, length, heads, value_heads, K, V):
    tokens = (batch, length)
    return [draw(*tokens, heads, K), draw(*tokens, heads, K), draw(*tokens, value_heads, V),
            draw(*tokens, value_heads, dtype=torch.float32, high=0),
            draw(*tokens, value_heads, low=0)]


def results(given, **options):
    given = [t.detach().requires_grad_() for t in given]
    o, state = ops.gated_delta_rule(*given, qk_l2norm=True, **options)
    return [o.detach(), state.detach(),
            *torch.autograd.grad(o, given, torch.ones_like(o))]


@pytest.mark.parametrize("shape", [(1, 8192, 1, 2, 128, 128), (1, 4096, 1, 1, 256, 256)])
def test_split_backward_passes_run_in_graphs_and_from_several_threads(shape):
    """Where heads are few, a backward pass has two streams: the caller's and one of the thread."""
    given = sequences(*shape)
    expected = results(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = results(given)
    for repeat in range(3):
        for tensor in got:
            tensor.zero_()
        graph.replay()
        for a, b in zip(got, expected):
            assert torch.equal(a, b)

    def in_a_thread(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            all_results = [results(given) for repeat in range(4)]
            torch.cuda.current_stream().synchronize()
            return all_results

    torch.cuda.synchronize()
    with ThreadPoolExecutor(3) as threads:
        for all_results in threads.map(in_a_thread, range(6)):
            for some in all_results:
                for a, b in zip(some, expected):
                    assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(10923, 32, 6, 6, 16, 32), (70000, 5, 1, 1, 32, 32)])
def test_large_batches_equal_their_halves(shape):
    given = sequences(*shape)
    half = shape[0] // 2
    whole = results(given)
    for part in (slice(0, half), slice(half, None)):
        for a, b in zip(whole, results([t[part] for t in given])):
            assert torch.isfinite(a).all()
            assert torch.equal(a[part], b)


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


@pytest.mark.skipif(not HAS_CUDA or torch.cuda.mem_get_info()[0] < 70 << 30,
                    reason="no GPU with 70 GiB of free memory")
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


@pytest.mark.skipif(not HAS_CUDA or torch.cuda.mem_get_info()[0] < 70 << 30,
                    reason="no GPU with 70 GiB of free memory")
def test_more_than_2_to_the_31_elements_of_small_heads():
    given = sequences(66000, 32, 32, 32, 32, 32)
    assert given[2].numel() > LIMIT
    for a, b in zip(results(given), results([t[-40:].clone() for t in given])):
        assert torch.equal(a[-40:], b)


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
