#!/usr/bin/env python3
"""Times gated_delta_rule on the CPU beside a plain PyTorch loop over tokens, both modes.

    python bench/gated_delta_rule_cpu.py [--library PATH] [--threads N]

Prints one row a shape: medians in ms of the forward pass and of forward and backward together, for
auto, chunk and recurrent, which take turns, and for the plain loop (left out where its autograd
would keep more than 4 GiB), and how many times slower the plain loop is than auto. Run it with
nothing else on the machine.
"""

import argparse
import functools
import pathlib
import statistics
import time

import torch

# batch, length, heads, value heads, K, V
SHAPES = (
    *((1, length, 4, 4, 64, 64) for length in (8, 16, 32, 64, 128, 512, 2048)),
    (1, 2048, 4, 4, 128, 128),
    (1, 2048, 2, 2, 256, 512),
    (16, 128, 2, 4, 32, 32),
)


LARGEST_PLAIN = 2**30  # numbers that autograd may keep for the plain loop


def plain_loop(q, k, v, g, beta):
    """The recurrence as one would write it: all batch items and heads at once, token after token."""
    batch, length, heads, K = q.shape
    group = v.shape[2] // heads
    q = q.repeat_interleave(group, 2) * K**-0.5
    k = k.repeat_interleave(group, 2)
    state = v.new_zeros(batch, v.shape[2], K, v.shape[3])
    decay = g.exp()
    rows = []
    for t in range(length):
        state = state * decay[:, t, :, None, None]
        error = (v[:, t] - (state * k[:, t, :, :, None]).sum(2)) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * error[:, :, None]
        rows.append((state * q[:, t, :, :, None]).sum(2))
    return torch.stack(rows, 1)


def inputs(batch, length, heads, value_heads, K, V):
    torch.manual_seed(0)
    normal = torch.nn.functional.normalize
    q = normal(torch.randn(batch, length, heads, K), dim=-1)
    k = normal(torch.randn(batch, length, heads, K), dim=-1)
    v = torch.randn(batch, length, value_heads, V)
    g = -torch.rand(batch, length, value_heads)
    beta = torch.rand(batch, length, value_heads)
    return [x.requires_grad_() for x in (q, k, v, g, beta)]


def medians_ms(calls, seconds):
    """Of each call, which take turns: what else the machine does meets all of them."""
    for call in calls:
        call()
    times, end = [[] for _ in calls], time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(times[0]) < 3:
        for call, own in zip(calls, times):
            start = time.perf_counter()
            call()
            own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own) for own in times]


def both_passes(functions, tensors, seconds):
    """Pairs of medians, forward and forward + backward, one for each function."""
    def forward(function):
        with torch.no_grad():
            function(*tensors)

    upstream = torch.randn_like(functions[0](*tensors))

    def both(function):
        torch.autograd.grad(function(*tensors), tensors, upstream)

    return list(zip(*(medians_ms([functools.partial(work, f) for f in functions], seconds)
                      for work in (forward, both))))


def main():
    root = pathlib.Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", default=root / "build/release/lib/liblinescan_torch.so")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="for each number")
    arguments = parser.parse_args()
    torch.ops.load_library(str(arguments.library))
    torch.set_num_threads(arguments.threads)
    print(f"{arguments.threads} threads, float32; ms forward / forward + backward")
    print("| batch, length, heads, value heads, K, V | auto | chunk | recurrent | plain loop | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for shape in SHAPES:
        tensors = inputs(*shape)
        columns = both_passes(
            [lambda *x, mode=mode: torch.ops.linescan.gated_delta_rule(*x, mode=mode)[0]
             for mode in ("auto", "chunk", "recurrent")], tensors, arguments.seconds)
        batch, length, _, value_heads, K, V = shape
        if 5 * batch * length * value_heads * K * V < LARGEST_PLAIN:  # five products a token
            columns += both_passes([plain_loop], tensors, arguments.seconds)
            columns.append([p / a for p, a in zip(columns[-1], columns[0])])
        cells = " | ".join(" / ".join(f"{x:.4g}" for x in pair) for pair in columns)
        print(f"| {', '.join(map(str, shape))} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
