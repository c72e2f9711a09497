"""Linescan's operators for PyTorch: loads the library, names the operators, documents them.

    import torch, linescan
    out, last_state = linescan.selective_scan(u, delta, A, B, C, delta_softplus=True)

Needs a torch that can be imported (tools/setup.sh full) and liblinescan_torch.so, built by
`cmake --build --preset release` or installed by `cmake --install`; CUDA tensors need the preset
`cuda`. The operators are differentiable, pass torch.compile(fullgraph=True), and are also there as
torch.ops.linescan.*.

Everywhere: data tensors (u, delta, B, C, z; x and the projection weights) share one type of float32,
float16, bfloat16 or float64; parameters of the recurrence (A, A_log, D, biases, states) are float32,
or float64 where the data is. Wrong shapes, types or devices raise RuntimeError with one line that
names the argument, what was got and what was expected.
"""

import pathlib

import torch

_NAME = "liblinescan_torch.so"
_CUDA_NAME = "liblinescan_torch_cuda.so"  # beside it in a build with CUDA kernels


def _load_library():
    package = pathlib.Path(__file__).resolve().parent
    builds = package.parents[1] / "build"  # in the source tree
    prefix = (package / "../../../..").resolve()  # installed: PREFIX/share/linescan/python/linescan
    use_cuda = torch.cuda.is_available()
    presets = ("cuda", "release") if use_cuda else ("release", "cuda")
    places = [
        *(builds / preset / "lib" for preset in presets),
        prefix / "lib",
        prefix / "lib64",
        *prefix.glob("lib/*-linux-gnu"),
    ]
    for place in places:
        if (place / _NAME).exists():
            torch.ops.load_library(str(place / _NAME))
            if use_cuda and (place / _CUDA_NAME).exists():
                torch.ops.load_library(str(place / _CUDA_NAME))
            return
    looked = ", ".join(str(place) for place in places)
    raise ImportError(f"{_NAME} is in none of {looked}; build it with ./check.sh or ./quickstart.sh")


_load_library()


def selective_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, initial_state=None,
                   delta_softplus=False, out_dtype=None):
    """Selective scan (S6) along the last dimension; returns (out, last_state).

    dt = delta + delta_bias, through softplus if delta_softplus;
    h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t];  out[t] = C[t] . h[t] + D u[t], times silu(z[t]).

    u, delta, z, out            [batch, channels, length]
    A                           [channels, states], real
    B, C                        [batch, groups, states, length], or [batch, states, length] for one
                                group, or [channels, states] for constants in time
    D, delta_bias               [channels]
    initial_state, last_state   [batch, channels, states]
    out_dtype                   type of out; that of u if None

    channels must be a multiple of groups; channel c reads group c // (channels // groups). Any length
    and any number of states from 1 up. Differentiable in every tensor, last_state included.
    """
    return torch.ops.linescan.selective_scan(
        u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, out_dtype)


def selective_scan_step(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, *,
                        state):
    """One token of selective_scan: advances `state` in place and returns the token's output.

    u, delta, z, result         [batch, channels]
    B, C                        [batch, groups, states], [batch, states] or [channels, states]
    A, D, delta_bias            as in selective_scan
    state                       [batch, channels, states], overwritten

    For inference: not differentiable.
    """
    return torch.ops.linescan.selective_scan_step(
        u, delta, A, B, C, D, z, delta_bias, delta_softplus, state=state)


def ss2d(x, x_proj_weight, x_proj_bias, dt_proj_weight, dt_proj_bias, A_log, D, routes,
         out_dtype=None):
    """Selective scan of an image along K routes, summed back onto the pixels.

    Along route k: (dts, B, C) = x_proj_weight[k] x + x_proj_bias[k];
    delta = dt_proj_weight[k] dts; then selective_scan with A = -exp(A_log[k]), D[k],
    delta_bias = dt_proj_bias[k] and softplus.

    x, result                   [batch, channels, height, width], contiguous or channels-last; the
                                result has the strides of x
    x_proj_weight, x_proj_bias  [K, rank + 2 states, channels], [K, rank + 2 states] or None
    dt_proj_weight              [K, channels, rank]
    dt_proj_bias                [K, channels]
    A_log, D                    [K * channels, states], [K * channels]
    routes                      K integers of four bits: 1 column-major, 2 reverse within the line,
                                4 reverse the order of the lines, 8 restart the state at every line;
                                [0, 1, 6, 7] is VMamba's cross scan
    out_dtype                   type of the result; that of x if None

    Differentiable in every tensor.
    """
    return torch.ops.linescan.ss2d(
        x, x_proj_weight, x_proj_bias, dt_proj_weight, dt_proj_bias, A_log, D, list(routes), out_dtype)


def layer_norm(x, weight=None, bias=None, epsilon=1e-5, out_dtype=None):
    """Layer normalisation over the last dimension, statistics in float32.

    x, result                   [..., channels]
    weight, bias                [channels], both or neither; float32
    out_dtype                   type of the result; that of x if None

    Differentiable in x, weight and bias.
    """
    return torch.ops.linescan.layer_norm(x, weight, bias, epsilon, out_dtype)[0]


def depthwise_conv(x, weight, bias=None, silu=True):
    """3x3 convolution of every channel by itself, zeros around the image, SiLU behind it if `silu`.

    x, result                   [batch, height, width, channels]
    weight, bias                [channels, 1, 3, 3], [channels] or None; float32

    Differentiable in every tensor.
    """
    return torch.ops.linescan.depthwise_conv(x, weight, bias, silu)


def causal_conv1d(x, weight, bias=None, initial_state=None, cu_seqlens=None, silu=True):
    """Short convolution of every channel by itself, looking back in time only, SiLU behind it if
    `silu`; returns (out, final_state).

    out[t] = bias + sum_j weight[:, j] x[t - (width - 1) + j]; times before the first read the state.

    x, out                      [batch, length, channels]
    weight, bias                [channels, width] with width 2 to 4, [channels] or None
    initial_state, final_state  [sequences, channels, width - 1], the newest last
    cu_seqlens                  [sequences + 1], int32 or int64: packs sequences along the length of a
                                batch of one; if None, every batch item is a sequence

    Differentiable in every floating tensor, final_state included.
    """
    return torch.ops.linescan.causal_conv1d(x, weight, bias, initial_state, cu_seqlens, silu)


def causal_conv1d_step(x, weight, bias=None, *, state, silu=True):
    """One token of causal_conv1d: advances `state` in place and returns the token's output.

    x, result                   [batch, channels]
    weight, bias                as in causal_conv1d
    state                       [batch, channels, width - 1], overwritten

    For inference: not differentiable.
    """
    return torch.ops.linescan.causal_conv1d_step(x, weight, bias, state=state, silu=silu)


def gated_delta_rule(q, k, v, g, beta, *, scale=None, initial_state=None, cu_seqlens=None, A_log=None,
                     dt_bias=None, qk_l2norm=False, beta_sigmoid=False, allow_neg_eigval=False,
                     state_v_first=False, reverse=False, mode="auto", output_final_state=True):
    """Gated delta rule along the length; returns (o, final_state).

    S[t] = exp(g[t]) S[t-1] + k[t] u[t]^T with u[t] = beta[t] (v[t] - exp(g[t]) S[t-1]^T k[t]);
    o[t] = scale S[t]^T q[t].

    q, k                        [batch, length, heads, K], K from 1 to 512
    v, o                        [batch, length, value_heads, V], V from 1 to 512; value head j reads
                                q and k of head j // (value_heads // heads)
    g, beta                     [batch, length, value_heads]; g is float32 (float64 where q is), beta
                                that or of the type of q
    initial_state, final_state  [sequences, value_heads, K, V], or [.., V, K] if state_v_first
    scale                       K ** -0.5 if None
    cu_seqlens                  [sequences + 1], int32 or int64: packs sequences along the length of a
                                batch of one; if None, every batch item is a sequence
    A_log, dt_bias              [value_heads]: g becomes -exp(A_log) softplus(g + dt_bias)
    qk_l2norm                   rows of q and k become x / sqrt(sum x^2 + 1e-6)
    beta_sigmoid                beta becomes sigmoid(beta), 2 sigmoid(beta) if allow_neg_eigval
    reverse                     from the last token of a sequence to its first
    mode                        "chunk", "recurrent", or "auto": the faster one
    output_final_state          if False, final_state is None, and nothing is stored for it

    Differentiable in every floating tensor, final_state included.
    """
    o, final_state = torch.ops.linescan.gated_delta_rule(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens,
        A_log=A_log, dt_bias=dt_bias, qk_l2norm=qk_l2norm, beta_sigmoid=beta_sigmoid,
        allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, reverse=reverse, mode=mode,
        output_final_state=output_final_state)
    return o, final_state if output_final_state else None


def gated_delta_rule_step(q, k, v, g, beta, pool, slots, *, scale=None, A_log=None, dt_bias=None,
                          qk_l2norm=False, beta_sigmoid=False, allow_neg_eigval=False,
                          state_v_first=False):
    """One token of gated_delta_rule for each of `tokens` sequences whose states lie in a pool.

    q, k                        [tokens, heads, K]
    v, result                   [tokens, value_heads, V]
    g, beta                     [tokens, value_heads]
    pool                        [slots, value_heads, K, V], or [.., V, K] if state_v_first; token i
                                overwrites pool[slots[i]]
    slots                       [tokens], int32 or int64, none twice; a slot outside the pool stands
                                for no sequence: its result is zero, no state changes

    For inference: not differentiable.
    """
    return torch.ops.linescan.gated_delta_rule_step(
        q, k, v, g, beta, pool, slots, scale=scale, A_log=A_log, dt_bias=dt_bias,
        qk_l2norm=qk_l2norm, beta_sigmoid=beta_sigmoid, allow_neg_eigval=allow_neg_eigval,
        state_v_first=state_v_first)
