#!/usr/bin/env python3
"""Measures operators and networks with `linescan bench` and prints the tables of bench/results/.

    bench/cpu_tables.py > bench/results/NAME.md

Takes about three minutes and wants a quiet machine. Every figure is a median; the spread is the
10 % and 90 % quantile. The floor is the slower of the copy bandwidth and the rate of exponentials,
both measured in the same process just before.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/release/bin/linescan"

NETWORKS = [("vmamba_tiny_s1l8", 224, 8), ("vmamba_tiny_v0", 224, 8), ("vmamba_fashion", 28, 128)]
SCAN = "batch=8,channels=384,groups=1,length=3136,states="
OPERATORS = [
    ("selective_scan", SCAN + "1", "length"),
    ("selective_scan", SCAN + "1", "channels"),
    ("selective_scan", SCAN + "16", "length"),
    ("ss2d", "batch=8,channels=96,height=56,width=56,states=1,rank=6", "channels"),
    ("ss2d", "batch=8,channels=192,height=28,width=28,states=1,rank=12", "channels"),
    ("ss2d", "batch=8,channels=384,height=14,width=14,states=1,rank=24", "channels"),
    ("ss2d", "batch=8,channels=768,height=7,width=7,states=1,rank=48", "channels"),
    ("ss2d", "batch=8,channels=96,height=56,width=56,states=16,rank=6", "channels"),
]


def ask(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments), "--json"], check=True, text=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], text=True,
                          stdout=subprocess.PIPE)
    return done.stdout.strip() or "unknown"


def spread(row):
    return f"{row['ms_median']:.2f} ({row['ms_p10']:.2f} to {row['ms_p90']:.2f})"


def print_networks():
    print("| network, size, batch | pass | images/s | ms a batch | peak MB |")
    print("| --- | --- | --- | --- | --- |")
    for model, size, batch in NETWORKS:
        document = ask("bench", "network", model, "--size", size, "--batch", batch)
        for kind in ("inference", "training"):
            row = document[kind]
            print(f"| {model}, {size}, {batch} | {kind} | {row['images_per_s']:.2f} | "
                  f"{spread(row)} | {row['peak_mb']:.0f} |", flush=True)


def print_operators():
    print("| operator, shape, adjacent index | pass | ms | ns an element | GB/s | of copy | of exp | "
          "of floor |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for op, shape, layout in OPERATORS:
        document = ask("bench", "op", op, "--shape", shape, "--layout", layout)
        for direction in ("forward", "backward"):
            row = document[direction]
            print(f"| {op} {shape.replace(',', ' ')}, {layout} | {direction} | {spread(row)} | "
                  f"{row['ns_per_element']:.3f} | {row['gb_per_s']:.1f} | {row['share_of_copy']:.0%} | "
                  f"{row['share_of_exp']:.0%} | {row['share_of_floor']:.0%} |", flush=True)


def main():
    machine = ask("device")
    cpu = machine["cpu"]
    print(f"# {cpu['model']}, {cpu['threads']} threads\n")
    print(f"`{pathlib.Path(__file__).relative_to(ROOT)}`, commit {commit()}; {machine['system']}, "
          f"{machine['simd']['in_force']}, LibTorch {machine['libtorch']['version']}; float32. "
          "Training is forward, loss and backward, without an optimiser step.\n")
    print_networks()
    print("\nAn element of ss2d is one pixel, channel and route; its projection is included.\n")
    print_operators()


if __name__ == "__main__":
    sys.exit(main())
