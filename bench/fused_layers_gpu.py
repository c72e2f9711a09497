#!/usr/bin/env python3
"""Times layer_norm and depthwise_conv on a GPU at the stages of VMamba-T, beside PyTorch's own.

    PYTHONPATH=python python bench/fused_layers_gpu.py

One row an operator, stage and pass: medians of CUDA-event times over inputs that rotate through more
memory than the cache holds, the bytes that must move (every input read once, every output written
once) over that time, and their share of the device's copy speed, measured first.
"""

import statistics

import linescan
import torch

BATCH = 128
STAGES = [(56, 96), (28, 192), (14, 384), (7, 768)]
CACHE_BYTES = 512 << 20


def seconds(work, inputs):
    """Median over 30 runs, each on the next of the inputs."""
    for i in range(5):
        work(inputs[i % len(inputs)])
    times = []
    for i in range(30):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work(inputs[i % len(inputs)])
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def copies(shape, dtype=torch.bfloat16):
    count = CACHE_BYTES // (2 * torch.Size(shape).numel()) + 1
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(min(count, 16))]


def norm_calls(channels):
    weight, bias = torch.rand(2, channels, device="cuda")
    ops, aten = torch.ops.linescan, torch.ops.aten

    def ours(x):
        return ops.layer_norm(x, weight, bias, 1e-5)

    def ours_back(x):
        return ops.layer_norm_backward(x, x, *state(x), weight, x)

    def theirs(x):
        return aten.native_layer_norm(x, [channels], weight.to(x.dtype), bias.to(x.dtype), 1e-5)

    def theirs_back(x):
        gamma, (mean, rstd) = weight.to(x.dtype), state(x)
        grad = aten.native_layer_norm_backward(x, x, [channels], mean[..., None], rstd[..., None],
                                               gamma, gamma, [True, True, True])
        return grad[0] + x

    saved = {}

    def state(x):
        if "state" not in saved:
            saved["state"] = ops.layer_norm(x, weight, bias, 1e-5)[1:]
        return saved["state"]

    return {"layer_norm": (2, ours, theirs), "layer_norm backward": (4, ours_back, theirs_back)}


def conv_calls(channels):
    weight = torch.rand(channels, 1, 3, 3, device="cuda") - 0.5
    half = weight.bfloat16().contiguous(memory_format=torch.channels_last)
    ops, functional = torch.ops.linescan, torch.nn.functional

    def theirs(x):
        sums = functional.conv2d(x.permute(0, 3, 1, 2), half, padding=1, groups=channels)
        return functional.silu(sums)

    def theirs_back(x):
        planes = x.permute(0, 3, 1, 2)
        sums = functional.conv2d(planes, half, padding=1, groups=channels)
        grad = torch.ops.aten.silu_backward(planes, sums)
        return torch.ops.aten.convolution_backward(grad, planes, half, None, [1, 1], [1, 1], [1, 1],
                                                   False, [0, 0], channels, [True, True, False])

    return {"depthwise_conv": (2, lambda x: ops.depthwise_conv(x, weight, None, True), theirs),
            "depthwise_conv backward": (
                3, lambda x: ops.depthwise_conv_backward(x, x, weight, None, True), theirs_back)}


def main():
    print(torch.cuda.get_device_name(), "| torch", torch.__version__, "|", linescan.__name__)
    large = copies((1 << 28,))
    target = torch.empty_like(large[0])
    speed = 4 * large[0].numel() / seconds(target.copy_, large)
    print(f"copy {speed * 1e-12:.2f} TB/s\n")
    del large, target
    print(f"{'operator':<26}{'shape':<22}{'ms':>9}{'TB/s':>7}{'of copy':>9}{'PyTorch ms':>12}")
    for side, channels in STAGES:
        shape = (BATCH, side, side, channels)
        inputs = copies(shape)
        for name, (passes, ours, theirs) in {**norm_calls(channels), **conv_calls(channels)}.items():
            time, other = seconds(ours, inputs), seconds(theirs, inputs)
            rate = passes * 2 * inputs[0].numel() / time
            print(f"{name:<26}{'x'.join(map(str, shape)):<22}{time * 1e3:>9.4f}{rate * 1e-12:>7.2f}"
                  f"{rate / speed:>9.0%}{other * 1e3:>12.4f}")


if __name__ == "__main__":
    main()
