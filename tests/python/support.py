"""What every Python test starts from: the library loaded, and inputs drawn with a fixed seed."""

import os
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="Python cannot import torch: slim set-up")

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(
    os.environ.get("LINESCAN_LIBRARY", ROOT / "build/release/lib/liblinescan_torch.so")
)
torch.ops.load_library(str(LIBRARY))
CUDA_LIBRARY = LIBRARY.with_name("liblinescan_torch_cuda.so")
HAS_CUDA = torch.cuda.is_available() and CUDA_LIBRARY.exists()
if HAS_CUDA:
    torch.ops.load_library(str(CUDA_LIBRARY))
ops = torch.ops.linescan


def uniform(*shape, low=-1.0, high=1.0, dtype=torch.float64, requires_grad=True):
    values = torch.rand(*shape, dtype=torch.float64) * (high - low) + low
    return values.to(dtype).requires_grad_(requires_grad)


def scan_inputs(batch=2, channels=4, length=5, states=3, groups=2, dtype=torch.float64,
                requires_grad=True, **options):
    """Keyword arguments of selective_scan with every option on."""
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    torch.manual_seed(0)

    def data(*shape, **bounds):
        return uniform(*shape, dtype=dtype, requires_grad=requires_grad, **bounds)

    def parameters(*shape, **bounds):
        return uniform(*shape, dtype=parameter, requires_grad=requires_grad, **bounds)

    inputs = dict(
        u=data(batch, channels, length),
        delta=data(batch, channels, length),
        A=parameters(channels, states, low=-1.5, high=-0.2),
        B=data(batch, groups, states, length),
        C=data(batch, groups, states, length),
        D=parameters(channels),
        z=data(batch, channels, length),
        delta_bias=parameters(channels),
        initial_state=parameters(batch, channels, states),
        delta_softplus=True,
    )
    inputs.update(options)
    return inputs


def ss2d_inputs(batch=2, channels=3, height=3, width=4, states=2, rank=2, routes=(0, 1, 6, 7),
                dtype=torch.float64, bias=True, requires_grad=True):
    """Positional arguments of ss2d."""
    parameter = torch.float64 if dtype == torch.float64 else torch.float32
    torch.manual_seed(0)
    count = len(routes)

    def draw(*shape, kind=parameter, **bounds):
        return uniform(*shape, dtype=kind, requires_grad=requires_grad, **bounds)

    return [
        draw(batch, channels, height, width, kind=dtype),
        draw(count, rank + 2 * states, channels, kind=dtype),
        draw(count, rank + 2 * states, kind=dtype) if bias else None,
        draw(count, channels, rank, kind=dtype),
        draw(count, channels),
        draw(count * channels, states),
        draw(count * channels),
        list(routes),
    ]
