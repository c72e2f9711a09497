"""Tensors of more than 2^31 elements on a GPU: the first and last entries of the batch, computed
with all the others, have the bits that they have alone. Skipped without a GPU of enough memory."""

import pytest
from support import HAS_CUDA, ops, torch

ENDS = slice(0, 2), slice(-2, None)  # of the batch, each computed alone
LIMIT = 2**31


def free_bytes():
    return torch.cuda.mem_get_info()[0] if HAS_CUDA else 0


pytestmark = pytest.mark.skipif(free_bytes() < 70 << 30, reason="no GPU with 70 GiB of free memory")


def run(operator, batch_first, shared=()):
    """Results and gradients for all, then for the ends: [(whole, alone)] of what has a batch."""
    tensors = [t.requires_grad_() for t in batch_first]

    def results(inputs):
        out = operator(*inputs, *shared)
        return [out.detach(), *torch.autograd.grad(out, inputs, torch.ones_like(out))]

    whole = [[t[end].clone() for end in ENDS] for t in results(tensors)]
    alone = zip(*(results([t.detach()[end].clone().requires_grad_() for t in tensors])
                  for end in ENDS))
    return [pair for of_whole, of_alone in zip(whole, alone) for pair in zip(of_whole, of_alone)]


def random(*shape, dtype=torch.bfloat16, low=-1.0, high=1.0):
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(low, high)


def expect_equal_bits(pairs):
    for whole, alone in pairs:
        assert torch.isfinite(whole).all()
        assert torch.equal(whole, alone)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("batch,channels,side", [(7200, 96, 56), (12, 128, 1200)])
def test_ss2d(batch, channels, side):
    assert batch * channels * side * side > LIMIT
    x = random(batch, side, side, channels).permute(0, 3, 1, 2)
    shared = [random(4, 10, channels, low=-0.1, high=0.1), None, random(4, channels, 8),
              random(4, channels, dtype=torch.float32, low=-4.0, high=-2.0),
              random(4 * channels, 1, dtype=torch.float32), random(4 * channels, dtype=torch.float32),
              [0, 1, 6, 7]]
    expect_equal_bits(run(ops.ss2d, [x], shared))


def test_selective_scan():
    batch, channels, length, states = 70000, 4, 7700, 1
    assert batch * channels * length > LIMIT and batch * channels > 65535
    data = [random(batch, channels, length) for _ in range(2)]
    factors = [random(batch, 1, states, length) for _ in range(2)]
    A = random(channels, states, dtype=torch.float32, low=-1.0, high=-0.1)

    def scan(u, delta, B, C):
        return ops.selective_scan(u, delta, A, B, C, delta_softplus=True)[0]

    expect_equal_bits(run(scan, data + factors))


def test_layer_norm_and_depthwise_conv():
    x = random(7200, 56, 56, 96)
    assert x.numel() > LIMIT
    weight, bias = random(96, dtype=torch.float32), random(96, dtype=torch.float32)
    expect_equal_bits(run(lambda t: ops.layer_norm(t, weight, bias, 1e-5)[0], [x]))
    kernel = random(96, 1, 3, 3, dtype=torch.float32)
    expect_equal_bits(run(lambda t: ops.depthwise_conv(t, kernel, bias, True), [x]))


@pytest.mark.parametrize("packed", [False, True])
def test_causal_conv1d(packed):
    """Of a batch, or one sequence behind the other: more than 65 535 either way."""
    x = random(70000, 64, 512)
    assert x.numel() > LIMIT
    weight, bias = random(512, 4, dtype=torch.float32), random(512, dtype=torch.float32)

    def convolve(t):
        if not packed:
            return ops.causal_conv1d(t, weight, bias)[0]
        bounds = torch.arange(len(t) + 1, device="cuda") * t.shape[1]
        return ops.causal_conv1d(t.flatten(0, 1)[None], weight, bias, None, bounds)[0].view_as(t)

    expect_equal_bits(run(convolve, [x]))
