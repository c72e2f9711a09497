#!/usr/bin/env python3
"""Measures scans, ss2d and networks on one GPU and prints the tables of bench/results/.

    PYTHONPATH=python bench/gpu_tables.py [--peers FOLDER] [--program PROGRAM] [SECTION ...]

Sections: scan, ss2d, delta, networks, resolutions (default: all). Ours are launched from CUDA graphs; every
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
NETWORKS = ["vmamba_tiny_s1l8", "vmamba_tiny_s2l5", "vmamba_tiny_v0", "vmamba_small_s1l20",
            "vmamba_base_s1l20"]
PEER_NETWORKS = {"vmamba_tiny_s1l8": "vmamba_t_s1l8", "vmamba_tiny_s2l5": "vmamba_t_s2l5",
                 "vmamba_tiny_v0": "vanilla_t", "vmamba_small_s1l20": "vmamba_s_s1l20",
                 "vmamba_base_s1l20": "vmamba_b_s1l20"}
SIZES = [224, 384, 512, 768, 1024]


def milliseconds(work, count=20):
    """Median time of work() as a CUDA graph."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(count + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


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


def delta_table(peers):
    print("| heads / value heads, batch x length, K, V | forward ms | forward + backward ms | "
          "forward + backward MB | peer forward | peer forward + backward | peer MB |"
          "\n| --- | --- | --- | --- | --- | --- | --- |")
    for heads, value_heads, batch, length, K, V in DELTAS:
        torch.manual_seed(0)
        half = {"device": "cuda", "dtype": torch.bfloat16}
        q = torch.randn(batch, length, heads, K, **half)
        k = functional.normalize(torch.randn_like(q).float(), dim=-1).bfloat16()
        v = torch.randn(batch, length, value_heads, V, **half)
        g = functional.logsigmoid(torch.randn(batch, length, value_heads, device="cuda"))
        beta = torch.rand(batch, length, value_heads, device="cuda").bfloat16()
        given = [q, k, v, g, beta]

        def forward():
            return torch.ops.linescan.gated_delta_rule(*given)[0]

        with torch.no_grad():
            ahead = milliseconds(forward)
            gradient = torch.randn_like(forward())
        for tensor in given:
            tensor.requires_grad_()

        def both():
            return torch.autograd.grad(forward(), given, gradient)

        all_ms, all_mb = milliseconds(both), peak_megabytes(both)
        peer = find(peers, HK=heads, HV=value_heads, B=batch, T=length, K=K, peer="fla")
        memory = peer.get("fwdbwd_MB")
        print(f"| {heads}/{value_heads}, {batch}x{length}, {K}, {V} | {ahead:.3f} | {all_ms:.3f} | "
              f"{all_mb:.0f} | {beside(peer.get('fwd_ms'), ahead)} | "
              f"{beside(peer.get('fwdbwd_ms'), all_ms)} | {f'{memory:.0f}' if memory else '-'} |",
              flush=True)
        del q, k, v, g, beta, given, gradient
        torch.cuda.empty_cache()


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
                        choices=["scan", "ss2d", "delta", "networks", "resolutions", []])
    parser.add_argument("--peers", metavar="FOLDER")
    parser.add_argument("--program", default=str(ROOT / "build/cuda/bin/linescan"))
    arguments = parser.parse_args()
    sections = arguments.sections or ["scan", "ss2d", "delta", "networks", "resolutions"]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA "
          f"{torch.version.cuda}\n")
    for section, name in (("scan", "scan"), ("ss2d", "core"), ("delta", "gdn"), ("networks", "model"),
                          ("resolutions", "res")):
        if section not in sections:
            continue
        peers = peers_of(arguments.peers, name)
        print(f"## {section}\n", flush=True)
        if section == "scan":
            scan_table(peers)
        elif section == "ss2d":
            ss2d_table(peers)
        elif section == "delta":
            delta_table(peers)
        elif section == "networks":
            network_table(arguments.program, peers)
        else:
            resolution_table(arguments.program, peers)
        print()


if __name__ == "__main__":
    main()
