"""gated_delta_rule as PyTorch sees it: values and gradients beside a plain loop, opcheck, gradcheck,
torch.compile, autocast, strides, packed sequences, steps over a pool of states.

What the numbers should be is judged in C++ (tests/ops); here a plain PyTorch loop, written from the
equations, confirms that schema, autograd and layouts were wired to the right places.
"""

import pytest
from support import ops, torch, uniform


# ---- Plain PyTorch, differentiable ---------------------------------------------------------------


def plain_sequence(q, k, v, g, beta, state, scale):
    """One sequence, [length, value_heads, ...]; state [value_heads, K, V]."""
    rows = []
    for t in range(q.shape[0]):
        state = torch.exp(g[t])[:, None, None] * state
        error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
        state = state + torch.einsum("hk,hv->hkv", k[t], beta[t][:, None] * error)
        rows.append(scale * torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(rows) if rows else torch.zeros_like(v), state


def plain_rule(q, k, v, g, beta, *, scale=None, initial_state=None, cu_seqlens=None, A_log=None,
               dt_bias=None, qk_l2norm=False, beta_sigmoid=False, allow_neg_eigval=False,
               state_v_first=False, reverse=False, mode="auto"):
    group = v.shape[2] // q.shape[2]
    if qk_l2norm:
        q, k = (x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    q, k = (x.repeat_interleave(group, dim=2) for x in (q, k))
    if A_log is not None:
        g = -torch.exp(A_log) * torch.nn.functional.softplus(g if dt_bias is None else g + dt_bias)
    if beta_sigmoid:
        beta = torch.sigmoid(beta) * (2 if allow_neg_eigval else 1)
    if cu_seqlens is None:
        pieces = [[x[b] for x in (q, k, v, g, beta)] for b in range(q.shape[0])]
    else:
        bounds = cu_seqlens.tolist()
        pieces = [[x[0, i:j] for x in (q, k, v, g, beta)] for i, j in zip(bounds, bounds[1:])]
    outs, states = [], []
    for i, piece in enumerate(pieces):
        if initial_state is None:
            state = v.new_zeros(v.shape[2], q.shape[3], v.shape[3])
        else:
            state = initial_state[i].mT if state_v_first else initial_state[i]
        piece = [x.flip(0) for x in piece] if reverse else piece
        o, state = plain_sequence(*piece, state, q.shape[3] ** -0.5 if scale is None else scale)
        outs.append(o.flip(0) if reverse else o)
        states.append(state.mT if state_v_first else state)
    o = torch.stack(outs) if cu_seqlens is None else torch.cat(outs)[None]
    return o, torch.stack(states)


def rule_inputs(batch=2, length=5, heads=2, value_heads=4, K=3, V=6, dtype=torch.float64,
                requires_grad=True, sequences=None, v_first=False, **options):
    """Keyword arguments with every option on but packing and reverse."""
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    torch.manual_seed(0)

    def draw(*shape, kind=parameter, **bounds):
        return uniform(*shape, dtype=kind, requires_grad=requires_grad, **bounds)

    state = (V, K) if v_first else (K, V)
    inputs = dict(
        q=draw(batch, length, heads, K, kind=dtype),
        k=draw(batch, length, heads, K, kind=dtype),
        v=draw(batch, length, value_heads, V, kind=dtype),
        g=draw(batch, length, value_heads),
        beta=draw(batch, length, value_heads, kind=dtype),
        initial_state=draw(batch if sequences is None else sequences, value_heads, *state),
        A_log=draw(value_heads),
        dt_bias=draw(value_heads),
        qk_l2norm=True,
        beta_sigmoid=True,
        allow_neg_eigval=True,
        state_v_first=v_first,
    )
    inputs.update(options)
    return inputs


def tensors_of(inputs):
    return {
        name: value
        for name, value in inputs.items()
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    }


def packed(*bounds, **options):
    cu_seqlens = torch.tensor(bounds, dtype=options.pop("index", torch.int64))
    return dict(batch=1, length=bounds[-1], sequences=len(bounds) - 1, cu_seqlens=cu_seqlens,
                **options)


BARE = dict(qk_l2norm=False, beta_sigmoid=False, allow_neg_eigval=False, A_log=None, dt_bias=None,
            initial_state=None)
CASES = {
    "all options": {},
    "bare": dict(**BARE, scale=0.7),
    "gate without bias": dict(dt_bias=None, allow_neg_eigval=False),
    "states v first": dict(v_first=True),
    "reverse": dict(reverse=True),
    "recurrent": dict(mode="recurrent", length=35, K=4),
    "chunks": dict(mode="chunk", length=35, K=4, V=70, value_heads=2),
    "packed": packed(0, 3, 3, 40),
    "packed int32 reverse": packed(0, 1, 9, reverse=True, index=torch.int32, v_first=True),
}
cases = pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())


# ---- Values and gradients ------------------------------------------------------------------------


@cases
def test_agrees_with_plain_pytorch(options):
    inputs = rule_inputs(**options)
    got, expected = ops.gated_delta_rule(**inputs), plain_rule(**inputs)
    torch.testing.assert_close(got, expected)
    tensors = list(tensors_of(inputs).values())
    upstream = [torch.rand_like(x) for x in got]
    torch.testing.assert_close(
        torch.autograd.grad(got, tensors, upstream), torch.autograd.grad(expected, tensors, upstream)
    )


@pytest.mark.parametrize(
    "options",
    [{}, dict(reverse=True, length=3), packed(0, 2, 2, 4, v_first=True), dict(**BARE)],
    ids=["all options", "reverse", "packed", "bare"],
)
def test_gradcheck(options):
    inputs = rule_inputs(**{"value_heads": 2, "heads": 1, "K": 2, "V": 2, "length": 4, **options})
    tensors = tensors_of(inputs)

    def run(*values):
        return ops.gated_delta_rule(**{**inputs, **dict(zip(tensors, values))})

    assert torch.autograd.gradcheck(run, tuple(tensors.values()))


def test_one_upstream_gradient_may_be_missing():
    inputs = rule_inputs()
    wanted = (inputs["q"], inputs["k"], inputs["v"], inputs["g"], inputs["initial_state"])
    for which in (0, 1):
        got = torch.autograd.grad(ops.gated_delta_rule(**inputs)[which].sum(), wanted,
                                  materialize_grads=True)
        expected = torch.autograd.grad(plain_rule(**inputs)[which].sum(), wanted,
                                       materialize_grads=True)
        torch.testing.assert_close(got, expected)


def test_a_final_state_that_nobody_wants():
    import linescan  # once there is a library for it

    inputs = rule_inputs()
    wanted = tuple(tensors_of(inputs).values())
    o, state = ops.gated_delta_rule(**inputs)
    alone, nothing = ops.gated_delta_rule(**inputs, output_final_state=False)
    assert state.numel() > 0 and nothing.numel() == 0 and not nothing.requires_grad
    torch.testing.assert_close(alone, o, rtol=0, atol=0)
    for got, expected in zip(torch.autograd.grad(alone.sum(), wanted),
                             torch.autograd.grad(o.sum(), wanted)):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
    with torch.no_grad():
        assert ops.gated_delta_rule(**inputs, output_final_state=False)[1].numel() == 0
        assert linescan.gated_delta_rule(**inputs, output_final_state=False)[1] is None
        torch.testing.assert_close(linescan.gated_delta_rule(**inputs)[1], state, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["heads first", "strided", "transposed", "expanded"])
def test_inputs_and_gradients_may_lie_in_any_way(layout):
    def laid_out(x):
        if layout == "heads first":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "strided":
            return torch.stack([x, x], -1)[..., 0]
        if layout == "transposed":
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        return x[:, :1].expand(x.shape)

    inputs = rule_inputs(length=34)
    for name in ("q", "k", "v", "g", "beta", "initial_state"):
        if layout != "expanded" or name != "initial_state":
            inputs[name] = laid_out(inputs[name].detach()).requires_grad_()
    got, expected = ops.gated_delta_rule(**inputs), plain_rule(**inputs)
    torch.testing.assert_close(got, expected)
    upstream = laid_out(torch.rand_like(got[0]))
    tensors = [inputs[name] for name in ("q", "k", "v", "g", "beta")]
    torch.testing.assert_close(
        torch.autograd.grad(got[0], tensors, upstream),
        torch.autograd.grad(expected[0], tensors, upstream),
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_err_at_most_twice_as_much_as_plain_pytorch(dtype):
    low = rule_inputs(length=40, K=16, V=16, requires_grad=False, dtype=dtype)
    exact = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in low.items()}
    everything_low = {k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in low.items()}
    expected = plain_rule(**exact)[0]
    ours = ops.gated_delta_rule(**low)
    assert ours[0].dtype == dtype and ours[1].dtype == torch.float32
    plain = plain_rule(**everything_low)[0]
    assert (ours[0] - expected).abs().max() <= 2 * (plain - expected).abs().max()


def test_autocast_casts_the_data_alone():
    inputs = rule_inputs(dtype=torch.float32, length=40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, final_state = ops.gated_delta_rule(**inputs)
    assert o.dtype == torch.bfloat16 and final_state.dtype == torch.float32
    torch.testing.assert_close(o.float(), ops.gated_delta_rule(**inputs)[0], atol=0.05, rtol=0.05)
    (o.float().sum() + final_state.sum()).backward()
    assert all(x.grad.dtype == torch.float32 for x in tensors_of(inputs).values())


# ---- Packed sequences and sizes ------------------------------------------------------------------


def test_bounds_are_clamped_and_tokens_of_no_sequence_give_zeros():
    options = packed(0, 12, BARE=None)
    options.pop("BARE")
    inputs = rule_inputs(**{**options, "sequences": 3})
    inputs["cu_seqlens"] = torch.tensor([2, 5, 4, 9])  # sequences [2, 5), [5, 5), [5, 9)
    o, final_state = ops.gated_delta_rule(**inputs)
    proper = {**inputs, "cu_seqlens": torch.tensor([2, 5, 5, 9])}
    expected = plain_rule(**proper)
    torch.testing.assert_close(o[:, 2:9], expected[0])
    torch.testing.assert_close(final_state, expected[1])
    assert not o[:, :2].any() and not o[:, 9:].any()
    grads = torch.autograd.grad(o.sum(), [inputs[x] for x in ("q", "k", "v", "g", "beta")])
    for grad in grads:
        assert not grad[:, :2].any() and not grad[:, 9:].any() and grad[:, 2:9].any()
    wild = {**inputs, "cu_seqlens": torch.tensor([-(2**40), 3, 2**40, 1])}
    expected = plain_rule(**{**inputs, "cu_seqlens": torch.tensor([0, 3, 12, 12])})
    torch.testing.assert_close(ops.gated_delta_rule(**wild), expected)
    none = {**inputs, "cu_seqlens": torch.tensor([7]),
            "initial_state": inputs["initial_state"][:0]}
    o, final_state = ops.gated_delta_rule(**none)
    assert not o.any() and final_state.shape[0] == 0
    assert not torch.autograd.grad(o.sum(), inputs["k"])[0].any()


@pytest.mark.parametrize("sizes", [dict(batch=0), dict(length=0), dict(heads=1, value_heads=0)])
def test_empty_sizes(sizes):
    inputs = rule_inputs(**sizes)
    o, final_state = ops.gated_delta_rule(**inputs)
    assert o.shape == inputs["v"].shape
    torch.testing.assert_close(final_state, inputs["initial_state"])
    wanted = list(tensors_of(inputs).values())
    upstream = torch.rand_like(final_state)
    got = torch.autograd.grad([o, final_state], wanted, [torch.rand_like(o), upstream])
    for name, grad in zip(tensors_of(inputs), got):
        expected = upstream if name == "initial_state" else torch.zeros_like(grad)
        torch.testing.assert_close(grad, expected)


def test_more_rows_than_a_grid_dimension_holds():
    inputs = rule_inputs(batch=10923, length=2, heads=6, value_heads=6, K=2, V=2,
                         dtype=torch.float32)
    o, final_state = ops.gated_delta_rule(**inputs)
    expected = plain_rule(**{
        name: x[-3:] if isinstance(x, torch.Tensor) and x.dim() > 1 else x
        for name, x in inputs.items()
    })
    torch.testing.assert_close((o[-3:], final_state[-3:]), expected)


# ---- Steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("v_first", [False, True])
@pytest.mark.parametrize("sizes", [dict(K=3, V=6), dict(K=16, V=64), dict(K=37, V=21)])
def test_steps_equal_the_whole(sizes, v_first):
    inputs = rule_inputs(batch=3, requires_grad=False, v_first=v_first, **sizes)
    o, final_state = ops.gated_delta_rule(**inputs)
    initial = inputs.pop("initial_state")
    pool = torch.rand(5, *initial.shape[1:], dtype=torch.float64)
    slots = torch.tensor([4, 0, 2])
    pool[slots] = initial
    before = pool.clone()
    for t in range(o.shape[1]):
        now = {k: v[:, t] if isinstance(v, torch.Tensor) and v.dim() > 1 else v
               for k, v in inputs.items()}
        torch.testing.assert_close(
            ops.gated_delta_rule_step(**now, pool=pool, slots=slots), o[:, t])
    torch.testing.assert_close(pool[slots], final_state)
    assert torch.equal(pool[[1, 3]], before[[1, 3]])


def test_slots_outside_the_pool_stand_for_no_sequence():
    inputs = rule_inputs(batch=3, length=1, requires_grad=False, dtype=torch.float32)
    inputs.pop("initial_state")
    now = {k: v[:, 0] if isinstance(v, torch.Tensor) and v.dim() > 1 else v
           for k, v in inputs.items()}
    pool = torch.rand(2, 4, 3, 6)
    before = pool.clone()
    o = ops.gated_delta_rule_step(**now, pool=pool, slots=torch.tensor([-1, 1, 2]).int())
    assert not o[0].any() and not o[2].any() and o[1].any()
    assert torch.equal(pool[0], before[0]) and not torch.equal(pool[1], before[1])


# ---- PyTorch's own machinery ---------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, packed(0, 2, 5), dict(**BARE), dict(output_final_state=False)],
                         ids=["all options", "packed", "bare", "no final state"])
def test_opcheck(options):
    torch.library.opcheck(ops.gated_delta_rule.default, (), rule_inputs(**options))


def test_opcheck_of_the_step():
    inputs = rule_inputs(length=1, requires_grad=False)
    pool = inputs.pop("initial_state")
    now = {k: v[:, 0] if isinstance(v, torch.Tensor) and v.dim() > 1 else v
           for k, v in inputs.items()}
    torch.library.opcheck(ops.gated_delta_rule_step.default, (),
                          {**now, "pool": pool, "slots": torch.tensor([1, 0])})


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_full_graph(dynamic):
    inputs = rule_inputs()

    def network(q, k):
        o, final_state = ops.gated_delta_rule(**{**inputs, "q": q.sin(), "k": k})
        return o.square().sum() + final_state.sum()

    compiled = torch.compile(network, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    wanted = (inputs["q"], inputs["k"])
    expected = torch.autograd.grad(network(*wanted), wanted)
    torch.testing.assert_close(torch.autograd.grad(compiled(*wanted), wanted), expected)


def test_second_derivatives_are_refused():
    inputs = rule_inputs()
    (gq,) = torch.autograd.grad(ops.gated_delta_rule(**inputs)[0].sum(), inputs["q"],
                                create_graph=True)
    with pytest.raises(RuntimeError, match="gated_delta_rule_backward is not implemented"):
        gq.sum().backward()


def test_thread_count_does_not_change_results():
    inputs = rule_inputs(batch=1, length=70, K=5, V=150, dtype=torch.float32)
    results, before = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        out = ops.gated_delta_rule(**inputs)
        tensors = list(tensors_of(inputs).values())
        results.append([*out, *torch.autograd.grad(out, tensors, [torch.ones_like(x) for x in out])])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


# ---- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(mode="fast"), "mode is 'fast', expected auto, chunk or recurrent"),
        (dict(g=uniform(2, 5, 4, dtype=torch.float32)), "g is float32, expected float64"),
        (dict(beta=uniform(2, 5, 3)), r"beta has shape \[2, 5, 3\], expected \[2, 5, 4\]"),
        (dict(v=uniform(2, 5, 3, 6)), "q has 2 heads, which do not divide the 3 heads of v"),
        (dict(A_log=None), "dt_bias is given without A_log"),
        (dict(beta_sigmoid=False), "allow_neg_eigval is set without beta_sigmoid"),
        (dict(cu_seqlens=torch.tensor([0, 5])), "q has batch 2, expected 1"),
        (dict(cu_seqlens=torch.tensor([0.0, 5.0])), "cu_seqlens is Float, expected int32 or int64"),
        (dict(A_log=torch.zeros(4, dtype=torch.float64, device="meta")),
         "A_log is on meta, expected cpu"),
    ],
)
def test_names_what_does_not_fit(change, message):
    with pytest.raises(RuntimeError, match="gated_delta_rule: " + message):
        ops.gated_delta_rule(**rule_inputs(requires_grad=False, **change))


@pytest.mark.parametrize("change, message", [
    (dict(pool=torch.rand(4, 3, 6).double().expand(2, 4, 3, 6)),
     r"pool has shape \[2, 4, 3, 6\] and strides \[0, 18, 6, 1\], in which elements share memory"),
    (dict(pool=torch.rand(2, 4, 3, 6).double().to("meta")), "pool is on meta, expected cpu"),
    (dict(slots=torch.tensor([1, 0], device="meta")), "slots is on meta, expected cpu"),
    (dict(slots=torch.tensor([0])), r"slots has 1 elements, expected 2"),
])
def test_a_step_names_what_does_not_fit(change, message):
    inputs = rule_inputs(length=1, requires_grad=False)
    pool = inputs.pop("initial_state")
    now = {k: v[:, 0] if isinstance(v, torch.Tensor) and v.dim() > 1 else v
           for k, v in inputs.items()}
    with pytest.raises(RuntimeError, match="gated_delta_rule_step: " + message):
        ops.gated_delta_rule_step(**{**now, "pool": pool, "slots": torch.tensor([1, 0]), **change})


def test_heads_beyond_512_are_refused_naming_the_limit():
    with pytest.raises(RuntimeError, match="gated_delta_rule: q has K = 513, expected 1 to 512"):
        ops.gated_delta_rule(**rule_inputs(K=513))
    with pytest.raises(RuntimeError, match="gated_delta_rule: v has V = 0, expected 1 to 512"):
        ops.gated_delta_rule(**rule_inputs(V=0))
    assert ops.gated_delta_rule(**rule_inputs(K=512, V=512, length=2))[0].isfinite().all()


@pytest.mark.parametrize("states,message", [
    (torch.zeros(5), r"states has shape \[5\], expected \[0\]"),
    (torch.zeros(3, device="meta"), "states is on meta, expected cpu"),
])
def test_states_that_no_forward_pass_kept_are_refused(states, message):
    q, v = torch.randn(1, 9, 1, 8), torch.randn(1, 9, 2, 8)
    g, beta = -torch.rand(1, 9, 2), torch.rand(1, 9, 2)
    with pytest.raises(RuntimeError, match="gated_delta_rule: " + message):
        ops.gated_delta_rule_backward(torch.randn_like(v), None, q, q, v, g, beta, None, None, None,
                                      None, None, False, False, False, False, False, states)


def test_empty_tensors_may_have_any_strides():
    row = torch.randn(2, 0, 1, 8)[..., ::2]
    gate = torch.zeros(2, 0, 1)
    o, state = ops.gated_delta_rule(row, row, row, gate, gate)
    assert o.shape == (2, 0, 1, 4) and state.shape == (2, 1, 4, 4)
