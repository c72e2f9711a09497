"""Tensors of more than 2^31 elements on a GPU: the first and last entries of the batch, computed
with all the others, have the bits that they have alone. Skipped without a GPU of enough memory."""

import pytest
from support import HAS_CUDA, ops, torch

LIMIT = 2**31


def free_bytes():
    return torch.cuda.mem_get_info()[0] if HAS_CUDA else 0


pytestmark = pytest.mark.skipif(free_bytes() < 70 << 30, reason="no GPU with 70 GiB of free memory")


def run(operator, batch_first, shared=(), count=2):
    """Results and gradients for all, then for so many at either end: [(whole, alone)] of what has a batch. Fewer
    may have kernels of their own, or blocks whose sums are rounded otherwise."""
    ends = slice(0, count), slice(-count, None)
    tensors = [t.requires_grad_() for t in batch_first]

    def results(inputs):
        out = operator(*inputs, *shared)
        return [out.detach(), *torch.autograd.grad(out, inputs, torch.ones_like(out))]

    whole = [[t[end].clone() for end in ends] for t in results(tensors)]
    alone = zip(*(results([t.detach()[end].clone().requires_grad_() for t in tensors])
                  for end in ends))
    return [pair for of_whole, of_alone in zip(whole, alone) for pair in zip(of_whole, of_alone)]


def random(*shape, dtype=torch.bfloat16, low=-1.0, high=1.0):
    return torch.empty(shape, dtype=dtype, device="cuda").uniform_(low, high)


def expect_equal_bits(pairs):
    for whole, alone in pairs:
        assert torch.isfinite(whole).all()
        assert torch.equal(whole, alone)
    torch.cuda.empty_cache()


# Planes of one tile, of several, small ones of which a lane has its own; several states, on chip and by scans; the general kernels.
@pytest.mark.parametrize("batch,channels,side,states,dtype", [
    (7200, 96, 56, 1, torch.bfloat16), (12, 128, 1200, 1, torch.bfloat16),
    (115000, 384, 7, 1, torch.bfloat16), (14400, 192, 28, 4, torch.bfloat16),
    (7200, 96, 56, 1, torch.float32)])
def test_ss2d(batch, channels, side, states, dtype):
    assert batch * channels * side * side > LIMIT
    x = random(batch, side, side, channels, dtype=dtype).permute(0, 3, 1, 2)
    shared = [random(4, 8 + 2 * states, channels, low=-0.1, high=0.1, dtype=dtype), None,
              random(4, channels, 8, dtype=dtype),
              random(4, channels, dtype=torch.float32, low=-4.0, high=-2.0),
              random(4 * channels, states, dtype=torch.float32),
              random(4 * channels, dtype=torch.float32), [0, 1, 6, 7]]
    expect_equal_bits(run(ops.ss2d, [x], shared, 2 if side > 1000 else 600))


# Rows that are long, that a warp has as a whole, that a lane has; several states: walkers and lanes that divide them; a step's channels
# side by side.
@pytest.mark.parametrize("batch,channels,length,states,channels_last", [
    (70000, 4, 7700, 1, False), (28600, 384, 196, 1, False), (115000, 384, 49, 1, False),
    (28600, 384, 196, 16, False), (14300, 384, 400, 64, False), (28600, 384, 196, 16, True)])
def test_selective_scan(batch, channels, length, states, channels_last):
    assert batch * channels * length > LIMIT and batch * channels > 65535

    def draw():
        if channels_last:
            return random(batch, length, channels).transpose(1, 2)
        return random(batch, channels, length)

    data = [draw() for _ in range(2)]
    factors = [random(batch, 1, states, length) for _ in range(2)]
    A = random(channels, states, dtype=torch.float32, low=-1.0, high=-0.1)

    def scan(u, delta, B, C):
        return ops.selective_scan(u, delta, A, B, C, delta_softplus=True)[0]

    expect_equal_bits(run(scan, data + factors, count=2 if length > 1000 else batch // 2))


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
