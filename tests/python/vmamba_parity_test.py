"""`linescan forward` against VMamba in plain PyTorch: logits, loss and every gradient.

In double precision the two differ by rounding alone, so a wrong sign, order or transposition
anywhere cannot hide.
"""

import os
import pathlib
import statistics
import subprocess

import pytest

torch = pytest.importorskip("torch", reason="Python cannot import torch: slim set-up")

import plain_vmamba  # noqa: E402
from tensor_file import read_tensors, write_tensors  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("LINESCAN_PROGRAM", str(ROOT / "build/release/bin/linescan"))

KERNELS = pathlib.Path(PROGRAM).parents[1] / "lib/liblinescan_torch_cuda.so"
needs_gpu = pytest.mark.skipif(not (torch.cuda.is_available() and KERNELS.exists()), reason="no GPU")

# What is changed from plain_vmamba.DEFAULTS, and the authors' name of it where there is one.
NETWORKS = {
    "v05_noz": dict(),
    "v05": dict(gate="silu"),
    "v05_nozact": dict(gate="plain"),
    "v051d_noz": dict(routes="one"),
    "v052d_noz": dict(routes="two"),
    "v052d3_noz": dict(routes="rotated"),
    "v052dc_noz": dict(routes="cascade"),
    "v052dc_noz authors": dict(routes="cascade", authors_cascade=True),
    "v05_noz_oact": dict(out_act="gelu"),
    "v05_oact": dict(out_act="gelu", gate="silu"),
    "v05_onnone_noz": dict(out_norm="none"),
    "v05_ondwconv3_noz": dict(out_norm="dwconv3"),
    "v05_oncnorm_noz": dict(out_norm="cnorm"),
    "v05_onsoftmax_noz": dict(out_norm="softmax"),
    "v05_onsigmoid_noz": dict(out_norm="sigmoid"),
    "v0": dict(vanilla=True, gate="silu", conv_bias=True, mlp_ratio=0.0, stem="v1",
               downsample="v1", states=5),
    "no convolution": dict(conv=0),
    "large convolution": dict(conv=5, conv_bias=True),
    "gated mlp": dict(gmlp=True, mlp_act="relu"),
    "activations": dict(gate="silu", ssm_act="gelu", mlp_act="sigmoid"),
    "batch norm": dict(norm="bn", downsample="v2"),
    "post norm": dict(post_norm=True, stem="v1", stem_stride=2),
    "position embedding": dict(pos_embed=True),
    "position embedding of its size": dict(pos_embed=True, image_size=24),
    "three stages at stride 1": dict(stem_stride=1, dims=(6, 8, 10), depths=(1, 0, 1)),
    "one grey stage": dict(in_channels=1, dims=(8,), depths=(2,), stem_stride=2, patch_norm=False),
    "no down-sampling": dict(downsample="none", dims=(8, 8)),
}


def settings(options):
    """The program's options for a network."""
    named = {key: value for key, value in options.items() if key != "vanilla"}
    if options["vanilla"]:
        named["forward_type"] = "v0"
    words = []
    for key, value in named.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += ["--set", f"{key}={text.lower() if isinstance(value, bool) else text}"]
    return words


def run(folder, weights, x, labels, words):
    write_tensors(folder / "w.safetensors", weights)
    write_tensors(folder / "x.safetensors", {"x": x, "labels": labels})
    done = subprocess.run(
        [PROGRAM, "forward", "vmamba_tiny_s1l8", *words, "--weights", folder / "w.safetensors",
         "--input", folder / "x.safetensors", "--output", folder / "y.safetensors"],
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return read_tensors(folder / "y.safetensors")


def expected(weights, x, labels, options):
    logits = plain_vmamba.forward(weights, x, options)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    results = {"logits": logits.detach(), "loss": loss.detach()}
    for name, value in weights.items():
        if value.requires_grad:
            results[f"grad.{name}"] = value.grad
    return results


def draw(changed, dtype, seed=0):
    """A network's options, weights, images and labels."""
    options = {**plain_vmamba.DEFAULTS, **changed}
    torch.manual_seed(seed)
    weights = plain_vmamba.draw_weights(options, dtype)
    # An odd grid that is not square; 24 x 24 where the position embedding is made for it.
    size = (24, 24) if options["image_size"] == 24 else (19, 26)
    x = torch.randn(2, options["in_channels"], *size, dtype=torch.float64).to(dtype)
    return options, weights, x, torch.tensor([0, options["classes"] - 1])


def relative_error(got, want):
    return ((got.to(want.dtype) - want).abs().max() / want.abs().max()).item()


def compare(folder, changed, dtype, tolerance, words):
    options, weights, x, labels = draw(changed, dtype)
    want = expected(weights, x, labels, options)
    got = run(folder, weights, x, labels, settings(options) + words)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert value.abs().max() > 0, name
        error = relative_error(got[name], value)
        assert error < tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("name", NETWORKS)
def test_double_precision(name, tmp_path):
    compare(tmp_path, NETWORKS[name], torch.float64, 1e-10, ["--dtype", "float64"])


@pytest.mark.parametrize("name", ["v05_noz", "v0"])
def test_single_precision(name, tmp_path):
    compare(tmp_path, NETWORKS[name], torch.float32, 2e-4, [])


@needs_gpu
@pytest.mark.parametrize("name", ["v05_noz", "v05", "v051d_noz", "v0"])
def test_single_precision_on_a_gpu(name, tmp_path):
    compare(tmp_path, NETWORKS[name], torch.float32, 5e-4, ["--device", "cuda"])


@pytest.mark.parametrize("name", ["v05_noz", "v0", "v052dc_noz"])
def test_single_precision_loses_no_more_than_pytorch(name, tmp_path):
    """Both against double precision, over several draws.

    A cascade normalises pixels of few channels before each of its scans. Where a pixel's channels
    are nearly equal that magnifies roundings a hundredfold, PyTorch's as well as ours, and which of
    the two is then nearer to the truth is chance. So no single draw is judged, but their mean.
    """
    ours, theirs = [], []
    for seed in range(8):
        options, weights, x, labels = draw(NETWORKS[name], torch.float32, seed)
        plain = expected(weights, x, labels, options)
        got = run(tmp_path, weights, x, labels, settings(options))
        doubles = {key: value.detach().double().requires_grad_(value.requires_grad)
                   for key, value in weights.items()}
        truth = expected(doubles, x.double(), labels, options)
        assert got.keys() == truth.keys()
        ours.append(max(relative_error(got[key], value) for key, value in truth.items()))
        theirs.append(max(relative_error(plain[key], value) for key, value in truth.items()))
    mean = statistics.geometric_mean
    assert mean(ours) < 2e-4, ours
    # A draw's ratio scatters by a factor of some 2.5 either way, the mean of eight by some 1.4.
    assert mean(ours) < 4 * mean(theirs), (ours, theirs)


def test_checkpointing_changes_nothing(tmp_path):
    compare(tmp_path, dict(), torch.float64, 1e-10,
            ["--dtype", "float64", "--set", "use_checkpoint=true"])


@pytest.mark.parametrize("forward_type", [name for name in NETWORKS if name.startswith("v05")
                                          and " " not in name])
def test_names_of_the_authors(forward_type, tmp_path):
    """The string alone gives the network that its parts give."""
    options = {**plain_vmamba.DEFAULTS, **NETWORKS[forward_type]}
    torch.manual_seed(0)
    weights = plain_vmamba.draw_weights(options, torch.float64)
    x = torch.randn(1, options["in_channels"], 16, 16, dtype=torch.float64)
    labels = torch.tensor([1])
    spelt = {key: value for key, value in options.items()
             if key not in ("routes", "gate", "out_norm", "out_act")}
    words = ["--dtype", "float64", "--set", f"forward_type={forward_type}"]
    got = run(tmp_path, weights, x, labels, settings(spelt) + words)
    want = expected(weights, x, labels, options)
    assert torch.allclose(got["logits"], want["logits"], rtol=1e-9, atol=1e-12)
