#!/usr/bin/env python3
"""Measures operators and networks on one GPU and prints the tables of bench/results/.

    PYTHONPATH=python bench/gpu_tables.py [--peers FOLDER] [--program PROGRAM] [SECTION ...]

Sections: scan, ss2d, delta, packed, conv, networks, resolutions (default: all). Ours are launched from CUDA graphs; every
figure is a median after warm-up. --peers: a folder with a program baseline.py that takes sections
`scan core gdn model res` and prints one JSON line a figure; it runs first, on the same GPU, and its
figures stand beside ours. The program is build/cuda's unless given.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import linescan  # noqa: F401  loads the operators
import torch
from torch.nn import functional

ROOT = pathlib.Path(__file__).resolve().parents[1]
# batch, groups, channels of a group, length, states
SCANS = [(128, 4, 96, 3136, 1), (128, 4, 192, 784, 1), (128, 4, 384, 196, 1), (128, 4, 768, 49, 1),
         (64, 4, 192, 3136, 16), (32, 4, 96, 16384, 1), (8, 1, 4096, 2048, 16),
         (1, 1, 4096, 16384, 16), (8, 1, 2048, 2048, 64), (8, 1, 1024, 2048, 256)]
CROSS, TWO = (0, 1, 6, 7), (0, 0, 6, 6)
# batch, channels, side, states, rank, routes
PLANES = [(128, 96, 56, 1, 6, CROSS), (128, 192, 28, 1, 12, CROSS), (128, 384, 14, 1, 24, CROSS),
          (128, 768, 7, 1, 48, CROSS), (128, 96, 56, 16, 6, CROSS), (32, 96, 128, 1, 6, CROSS),
          (8, 96, 256, 1, 6, CROSS), (128, 96, 56, 1, 6, TWO), (128, 96, 56, 1, 6, (0, 6)),
          (128, 96, 56, 1, 6, (0,))]
# heads, value heads, batch, length, K, V
DELTAS = [(2, 8, 1, 8192, 128, 128), (4, 16, 1, 8192, 128, 128), (16, 64, 1, 2048, 128, 128),
          (16, 64, 1, 8192, 128, 128), (32, 32, 1, 8192, 128, 128), (32, 32, 1, 32768, 128, 128),
          (16, 64, 4, 8192, 128, 128), (32, 32, 8, 1024, 128, 128), (16, 16, 8, 2048, 64, 64),
          (6, 6, 8, 2048, 256, 512), (4, 4, 2048, 196, 32, 32)]
# heads, value heads, lengths of the sequences, K, V
PACKED = [(2, 8, [8192], 128, 128), (2, 8, [4096, 4096], 128, 128), (2, 8, [6144, 1024, 1024], 128, 128),
          (16, 64, [2048] * 4, 128, 128), (16, 64, [5000, 1, 700, 2491], 128, 128),
          (32, 32, [64] * 2050, 128, 128)]
# batch, length, channels, width
CONVOLUTIONS = [(8, 2048, 1536, 4), (8, 2048, 3072, 4), (1, 8192, 4096, 4), (2048, 196, 128, 4),
                (8, 2048, 1536, 2)]
NETWORKS = ["vmamba_tiny_s1l8", "vmamba_tiny_s2l5", "vmamba_tiny_v0", "vmamba_small_s1l20",
            "vmamba_base_s1l20"]
PEER_NETWORKS = {"vmamba_tiny_s1l8": "vmamba_t_s1l8", "vmamba_tiny_s2l5": "vmamba_t_s2l5",
                 "vmamba_tiny_v0": "vanilla_t", "vmamba_small_s1l20": "vmamba_s_s1l20",
                 "vmamba_base_s1l20": "vmamba_b_s1l20"}
SIZES = [224, 384, 512, 768, 1024]
SECTIONS = ["scan", "ss2d", "delta", "packed", "conv", "networks", "resolutions"]


def milliseconds(work, count=20):
    """Median time of work() as a CUDA graph. Like the peers' program it waits once, behind all of them: otherwise the GPU
    would be idle when a time begins."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count + 3)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events[3:])


def peak_megabytes(work):
    work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def peers_of(folder, section):
    """What the peers' program prints for a section; nothing without a folder."""
    if folder is None:
        return []
    done = subprocess.run([sys.executable, "baseline.py", section], cwd=folder, text=True,
                          stdout=subprocess.PIPE)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def find(rows, **wanted):
    return next((row for row in rows if all(row.get(k) == v for k, v in wanted.items())), {})


def beside(peer, ours):
    """A peer's figure and how many times ours it is; '-' where there is none."""
    if not isinstance(peer, (int, float)):
        return "-"
    return f"{peer:.3f} ({peer / ours:.1f} x)"


def scan_table(peers):
    print("| batch x groups x channels, length, states | forward ms | backward ms | "
          "best peer forward | backward |\n| --- | --- | --- | --- | --- |")
    for batch, groups, channels, length, states in SCANS:
        torch.manual_seed(0)
        rows = groups * channels
        data = {"device": "cuda", "dtype": torch.bfloat16}
        u = torch.randn(batch, rows, length, **data)
        delta = 0.5 * torch.randn(batch, rows, length, **data)
        A = -torch.rand(rows, states, device="cuda") - 0.5
        B, C = torch.randn(2, batch, groups, states, length, **data)
        D, bias = torch.randn(rows, device="cuda"), 0.1 * torch.randn(rows, device="cuda")
        ops = torch.ops.linescan

        def forward():  # as autograd calls it
            return ops.selective_scan_kept(u, delta, A, B, C, D, None, bias, None, True,
                                           torch.float32)

        out, _, kept = forward()
        gradient = torch.randn_like(out)

        def backward():
            return ops.selective_scan_backward(gradient, None, u, delta, A, B, C, D, None, bias,
                                               None, True, kept)

        ahead, back = milliseconds(forward), milliseconds(backward)
        peer = find(peers, B=batch, K=groups, C=channels, L=length, N=states, dtype="bfloat16",
                    peer="oflex")
        print(f"| {batch} x {groups} x {channels}, {length}, {states} | {ahead:.3f} | {back:.3f} | "
              f"{beside(peer.get('fwd_ms'), ahead)} | {beside(peer.get('bwd_ms'), back)} |",
              flush=True)


def ss2d_table(peers):
    print("| batch, channels, side, states, routes | forward ms | forward + backward ms | "
          "forward MB | forward + backward MB | peer forward | peer forward + backward | peer MB |"
          "\n| --- | --- | --- | --- | --- | --- | --- | --- |")
    types = {CROSS: "v05_noz", TWO: "v052d_noz"}
    for batch, channels, side, states, rank, routes in PLANES:
        torch.manual_seed(0)
        K, record = len(routes), rank + 2 * states
        half = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(batch, channels, side, side, **half)
        x = x.to(memory_format=torch.channels_last)
        parameters = [0.1 * torch.randn(K, record, channels, **half), None,
                      0.1 * torch.randn(K, channels, rank, **half),
                      torch.randn(K, channels, device="cuda") - 4,
                      0.5 * torch.randn(K * channels, states, device="cuda"),
                      torch.ones(K * channels, device="cuda")]
        given = [x, *(p for p in parameters if p is not None)]

        def forward():
            return torch.ops.linescan.ss2d(x, *parameters, routes)

        with torch.no_grad():
            ahead, ahead_mb = milliseconds(forward), peak_megabytes(forward)
            gradient = torch.randn_like(forward())
        for tensor in given:
            tensor.requires_grad_()

        def both():
            return torch.autograd.grad(forward(), given, gradient)

        all_ms, all_mb = milliseconds(both), peak_megabytes(both)
        peer = find(peers, B=batch, D=channels, H=side, N=states, dtype="bfloat16",
                    type=types.get(routes))
        memory = [peer.get(k) for k in ("fwd_MB", "fwdbwd_MB")]
        print(f"| {batch}, {channels}, {side}, {states}, {' '.join(map(str, routes))} | "
              f"{ahead:.3f} | {all_ms:.3f} | {ahead_mb:.0f} | {all_mb:.0f} | "
              f"{beside(peer.get('fwd_ms'), ahead)} | {beside(peer.get('fwdbwd_ms'), all_ms)} | "
              f"{' / '.join(f'{m:.0f}' if m else '-' for m in memory)} |", flush=True)
        del x, parameters, given
        torch.cuda.empty_cache()


def delta_inputs(heads, value_heads, batch, length, K, V):
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(batch, length, heads, K, **half)
    k = functional.normalize(torch.randn_like(q).float(), dim=-1).bfloat16()
    v = torch.randn(batch, length, value_heads, V, **half)
    g = functional.logsigmoid(torch.randn(batch, length, value_heads, device="cuda"))
    beta = torch.rand(batch, length, value_heads, device="cuda").bfloat16()
    return [q, k, v, g, beta]


def delta_outputs(given, **options):
    """Without final states, which the peer's program does not ask for either."""
    return torch.ops.linescan.gated_delta_rule(*given, output_final_state=False, **options)[0]


def forward_and_both(forward, given):
    """Milliseconds of forward() without gradients, and a function that also computes those of `given`."""
    with torch.no_grad():
        ahead = milliseconds(forward)
        gradient = torch.randn_like(forward())
    for tensor in given:
        tensor.requires_grad_()
    return ahead, lambda: torch.autograd.grad(forward(), given, gradient)


def delta_table(peers):
    print("| heads / value heads, batch x length, K, V | forward ms | forward + backward ms | "
          "forward + backward MB | peer forward | peer forward + backward | peer MB |"
          "\n| --- | --- | --- | --- | --- | --- | --- |")
    for heads, value_heads, batch, length, K, V in DELTAS:
        given = delta_inputs(heads, value_heads, batch, length, K, V)
        ahead, both = forward_and_both(lambda: delta_outputs(given), given)
        all_ms, all_mb = milliseconds(both), peak_megabytes(both)
        peer = find(peers, HK=heads, HV=value_heads, B=batch, T=length, K=K, peer="fla")
        memory = peer.get("fwdbwd_MB")
        print(f"| {heads}/{value_heads}, {batch}x{length}, {K}, {V} | {ahead:.3f} | {all_ms:.3f} | "
              f"{all_mb:.0f} | {beside(peer.get('fwd_ms'), ahead)} | "
              f"{beside(peer.get('fwdbwd_ms'), all_ms)} | {f'{memory:.0f}' if memory else '-'} |",
              flush=True)
        del given, both
        torch.cuda.empty_cache()


def packed_table():
    """Packed sequences of the gated delta rule, beside the same ones in calls of their own."""
    print("| heads / value heads, lengths, K, V | forward ms | forward + backward ms | "
          "forward + backward MB | one by one forward | one by one forward + backward |"
          "\n| --- | --- | --- | --- | --- | --- |")
    for heads, value_heads, lengths, K, V in PACKED:
        given = delta_inputs(heads, value_heads, 1, sum(lengths), K, V)
        bounds = torch.tensor([0] + lengths, device="cuda").cumsum(0)

        def packed():
            return delta_outputs(given, cu_seqlens=bounds)

        def one_by_one():
            parts = zip(*(tensor.split(lengths, dim=1) for tensor in given))
            return torch.cat([delta_outputs(part) for part in parts], dim=1)

        ahead, both = forward_and_both(packed, given)
        all_ms, all_mb = milliseconds(both), peak_megabytes(both)
        cells = ["-", "-"]
        if len(lengths) <= 16:
            other_ahead, other_both = forward_and_both(one_by_one, given)
            cells = [beside(other_ahead, ahead), beside(milliseconds(other_both), all_ms)]
        name = (f"{len(lengths)} x {lengths[0]}" if len(set(lengths)) == 1 else
                " + ".join(str(length) for length in lengths))
        print(f"| {heads}/{value_heads}, {name}, {K}, {V} | {ahead:.3f} | {all_ms:.3f} | {all_mb:.0f} | "
              f"{' | '.join(cells)} |", flush=True)
        del given, both
        torch.cuda.empty_cache()


def convolution_table():
    """The short convolution with SiLU, beside PyTorch's and in copies of x (floor: one forward, two and a half with
    the backward pass, which reads x and a gradient and writes one)."""
    print("| batch x length x channels, width | forward ms | forward + backward ms | in copies | "
          "PyTorch forward | PyTorch forward + backward |\n| --- | --- | --- | --- | --- | --- |")
    for batch, length, channels, width in CONVOLUTIONS:
        torch.manual_seed(0)
        half = {"device": "cuda", "dtype": torch.bfloat16}
        x = torch.randn(batch, length, channels, **half)
        given = [x, torch.randn(channels, width, **half)]
        copy = torch.empty_like(x)
        copied = milliseconds(lambda: copy.copy_(x.detach()))

        def ours():
            return torch.ops.linescan.causal_conv1d(*given)[0]

        def theirs():
            rows, weight = given[0].transpose(1, 2), given[1].unsqueeze(1)
            out = functional.conv1d(rows, weight, padding=width - 1, groups=channels)
            return functional.silu(out[..., :length]).transpose(1, 2)

        ahead, both = forward_and_both(ours, given)
        all_ms = milliseconds(both)
        their_ahead, their_both = forward_and_both(theirs, given)
        print(f"| {batch} x {length} x {channels}, {width} | {ahead:.3f} | {all_ms:.3f} | "
              f"{ahead / copied:.1f} / {all_ms / copied:.1f} | {beside(their_ahead, ahead)} | "
              f"{beside(milliseconds(their_both), all_ms)} |", flush=True)


def network(program, model, size, batch, precision, seconds=2):
    done = subprocess.run([program, "bench", "network", model, "--size", str(size), "--batch",
                           str(batch), "--device", "cuda", "--precision", precision, "--seconds",
                           str(seconds), "--json"], text=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout) if done.returncode == 0 else None


def network_table(program, peers):
    print("| network, 224 px, batch 128 | inference tf32 | inference bf16 | training bf16 | "
          "training MB | peer inference bf16 | peer training bf16 | peer MB |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- |")

    def row(name, figures, peer):
        cells = [f"{f:.0f}" if isinstance(f, (int, float)) else "-" for f in figures]
        others = [peer.get(k) for k in ("infer_bf16", "train_bf16", "train_MB_bf16")]
        cells += [f"{f:.0f}" if isinstance(f, (int, float)) else "-" for f in others]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)

    for model in NETWORKS:
        half, tf32 = (network(program, model, 224, 128, p) for p in ("bf16", "tf32"))
        figures = [tf32 and tf32["inference"]["images_per_s"],
                   half and half["inference"]["images_per_s"],
                   half and half["training"]["images_per_s"],
                   half and half["training"]["peak_mb"]]
        row(model, figures, find(peers, net=PEER_NETWORKS[model]))
    for name in ("swin_t", "convnext_t", "deit_s"):
        if peer := find(peers, net=name):
            row(f"{name} (peer)", [None] * 4, peer)


def resolution_table(program, peers):
    print("| size, batch 32, images/s training / inference | vmamba_tiny_s1l8 | its authors' code | "
          "Swin-T | ConvNeXt-T | DeiT-S |\n| --- | --- | --- | --- | --- | --- |")
    for size in SIZES:
        ours = network(program, "vmamba_tiny_s1l8", size, 32, "bf16")
        cells = [f"{ours['training']['images_per_s']:.0f} / "
                 f"{ours['inference']['images_per_s']:.0f}" if ours else "-"]
        for name in ("vmamba_t_s1l8", "swin_t", "convnext_t", "deit_s"):
            peer = find(peers, net=name, size=size)
            cells.append(f"{peer['train']:.0f} / {peer['infer']:.0f}" if "infer" in peer else "-")
        print(f"| {size} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION",
                        choices=[*SECTIONS, []])
    parser.add_argument("--peers", metavar="FOLDER")
    parser.add_argument("--program", default=str(ROOT / "build/cuda/bin/linescan"))
    arguments = parser.parse_args()
    sections = arguments.sections or SECTIONS
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA "
          f"{torch.version.cuda}\n")

    def peers(section):
        return peers_of(arguments.peers, section)

    tables = {"scan": lambda: scan_table(peers("scan")), "ss2d": lambda: ss2d_table(peers("core")),
              "delta": lambda: delta_table(peers("gdn")), "packed": packed_table,
              "conv": convolution_table,
              "networks": lambda: network_table(arguments.program, peers("model")),
              "resolutions": lambda: resolution_table(arguments.program, peers("res"))}
    for section in SECTIONS:
        if section not in sections:
            continue
        print(f"## {section}\n", flush=True)
        tables[section]()
        print()


if __name__ == "__main__":
    main()
