"""VMamba in plain PyTorch, written from the equations, for comparison: slow loops, channels first.

A network is a dictionary of options (DEFAULTS shows them), its weights a dictionary of tensors
under the names of the published checkpoints. Nothing here uses the library.
"""

import math

import torch
import torch.nn.functional as F

DEFAULTS = dict(
    in_channels=2, classes=3, image_size=16, dims=(8, 12), depths=(1, 1), states=2, ssm_ratio=1.5,
    dt_rank=2, vanilla=False, routes="cross", gate="none", out_norm="ln", out_act="none", conv=3,
    conv_bias=False, ssm_act="silu", authors_cascade=False, mlp_ratio=2.0, gmlp=False,
    mlp_act="gelu", norm="ln", stem="v2", stem_stride=4, patch_norm=True, downsample="v3",
    post_norm=False, pos_embed=False,
)
ACTIVATIONS = dict(silu=F.silu, gelu=F.gelu, relu=F.relu, sigmoid=torch.sigmoid)


# ---- Weights -------------------------------------------------------------------------------------


def shapes(o):
    """Name -> shape of every parameter; buffers of batch norms end in running_mean and the like."""
    table = {}

    def affine(name, size, batch=False):
        table[f"{name}.weight"] = table[f"{name}.bias"] = (size,)
        if batch:
            table[f"{name}.running_mean"] = table[f"{name}.running_var"] = (size,)
            table[f"{name}.num_batches_tracked"] = ()

    def norm(name, size):
        affine(name, size, o["norm"] == "bn")

    def convolution(name, inputs, outputs, kernel):
        table[f"{name}.weight"] = (outputs, inputs, kernel, kernel)
        table[f"{name}.bias"] = (outputs,)

    def block(name, dim):
        inner, hidden = int(o["ssm_ratio"] * dim), int(o["mlp_ratio"] * dim)
        rank, states = o["dt_rank"], o["states"]
        norm(f"{name}.norm", dim)
        op = f"{name}.op"
        table[f"{op}.in_proj.weight"] = ((1 if o["gate"] == "none" else 2) * inner, dim)
        if o["conv"]:
            table[f"{op}.conv2d.weight"] = (inner, 1, o["conv"], o["conv"])
            if o["conv_bias"]:
                table[f"{op}.conv2d.bias"] = (inner,)
        table[f"{op}.x_proj_weight"] = (4, rank + 2 * states, inner)
        table[f"{op}.dt_projs_weight"] = (4, inner, rank)
        table[f"{op}.dt_projs_bias"] = (4, inner)
        table[f"{op}.A_logs"] = (4 * inner, states)
        table[f"{op}.Ds"] = (4 * inner,)
        if o["out_norm"] == "ln":
            affine(f"{op}.out_norm", inner)
        elif o["out_norm"] == "dwconv3":
            table[f"{op}.out_norm.1.weight"] = (inner, 1, 3, 3)
        elif o["out_norm"] == "cnorm":
            affine(f"{op}.out_norm.0", inner)
            table[f"{op}.out_norm.2.weight"] = (inner, 1, 3, 3)
        table[f"{op}.out_proj.weight"] = (dim, inner)
        if hidden:
            norm(f"{name}.norm2", dim)
            table[f"{name}.mlp.fc1.weight"] = ((2 if o["gmlp"] else 1) * hidden, dim)
            table[f"{name}.mlp.fc1.bias"] = ((2 if o["gmlp"] else 1) * hidden,)
            table[f"{name}.mlp.fc2.weight"] = (dim, hidden)
            table[f"{name}.mlp.fc2.bias"] = (dim,)

    dims = o["dims"]
    if o["stem"] == "v1":
        convolution("patch_embed.0", o["in_channels"], dims[0], o["stem_stride"])
        if o["patch_norm"]:
            norm("patch_embed.2", dims[0])
    else:
        convolution("patch_embed.0", o["in_channels"], dims[0] // 2, 3)
        convolution("patch_embed.5", dims[0] // 2, dims[0], 3)
        if o["patch_norm"]:
            norm("patch_embed.2", dims[0] // 2)
            norm("patch_embed.7", dims[0])
    if o["pos_embed"]:
        side = o["image_size"] // o["stem_stride"]
        table["pos_embed"] = (1, dims[0], side, side)
    for i, dim in enumerate(dims):
        for j in range(o["depths"][i]):
            block(f"layers.{i}.blocks.{j}", dim)
        if i + 1 < len(dims):
            down = f"layers.{i}.downsample"
            if o["downsample"] == "v1":
                norm(f"{down}.norm", 4 * dim)
                table[f"{down}.reduction.weight"] = (dims[i + 1], 4 * dim)
            elif o["downsample"] != "none":
                convolution(f"{down}.1", dim, dims[i + 1], dict(v2=2, v3=3)[o["downsample"]])
                norm(f"{down}.3", dims[i + 1])
    norm("classifier.norm", dims[-1])
    table["classifier.head.weight"] = (o["classes"], dims[-1])
    table["classifier.head.bias"] = (o["classes"],)
    return table


def draw_weights(o, dtype):
    """Weights spread wide enough that every part of the network matters to the result."""
    weights = {}
    for name, shape in shapes(o).items():
        if name.endswith("num_batches_tracked"):
            weights[name] = torch.tensor(1)
            continue
        value = torch.randn(shape, dtype=torch.float64)
        if name.endswith("running_var"):
            value = value.abs() + 0.5
        elif len(shape) > 1 and not name.endswith(("A_logs", "dt_projs_bias")):
            value = value / math.sqrt(math.prod(shape[1:]) if len(shape) != 3 else shape[-1])
        elif name.endswith(".weight"):
            value = 1 + 0.3 * value
        else:
            value = 0.5 * value
        weights[name] = value.to(dtype).requires_grad_("running" not in name)
    return weights


# ---- Layers --------------------------------------------------------------------------------------


def channel_norm(x, weight=None, bias=None):
    return F.layer_norm(x.movedim(1, -1), (x.shape[1],), weight, bias).movedim(-1, 1)


def product(x, weight, bias=None):
    """A product over the channels of [batch, channels, height, width]."""
    y = torch.einsum("oc,bchw->bohw", weight, x)
    return y if bias is None else y + bias[None, :, None, None]


def scan(u, x_weight, dt_weight, dt_bias, A_log, D):
    """u [batch, channels, length] -> the same, one step at a time."""
    states, rank = A_log.shape[1], dt_weight.shape[1]
    dts, B, C = torch.einsum("oc,bcl->bol", x_weight, u).split([rank, states, states], dim=1)
    dt = F.softplus(torch.einsum("cr,brl->bcl", dt_weight, dts) + dt_bias[:, None])
    A = -torch.exp(A_log)
    h, rows = u.new_zeros(*u.shape[:2], states), []
    for t in range(u.shape[2]):
        h = torch.exp(dt[:, :, t, None] * A) * h + (dt * u)[:, :, t, None] * B[:, None, :, t]
        rows.append((h * C[:, None, :, t]).sum(-1))
    return torch.stack(rows, -1) + D[:, None] * u


def group(p, k):
    """Weights of route k."""
    inner = p["dt_projs_weight"].shape[1]
    rows = slice(k * inner, (k + 1) * inner)
    return (p["x_proj_weight"][k], p["dt_projs_weight"][k], p["dt_projs_bias"][k],
            p["A_logs"][rows], p["Ds"][rows])


# The four ways to look at an image before reading it row by row, and back.
def same(x):
    return x


def half_turn(x):
    return x.flip(2, 3)


def transposed(x):
    return x.transpose(2, 3)


def transposed_half_turn(x):
    return x.transpose(2, 3).flip(2, 3)


def from_transposed_half_turn(x):
    return x.flip(2, 3).transpose(2, 3)


def quarter(turns):
    return lambda x: torch.rot90(x, turns, (2, 3))


VIEWS = dict(
    cross=[(same, same), (transposed, transposed), (half_turn, half_turn),
           (transposed_half_turn, from_transposed_half_turn)],
    one=[(same, same)] * 4,
    two=[(same, same)] * 2 + [(half_turn, half_turn)] * 2,
    rotated=[(quarter(k), quarter(-k)) for k in range(4)],
)


def scan_views(x, p, routes):
    total = 0
    for k, (there, back) in enumerate(VIEWS[routes]):
        seen = there(x)
        total = total + back(scan(seen.flatten(2), *group(p, k)).view_as(seen))
    return total


def scan_rows(x, p, first, turn_back):
    """Both directions of every row, each row on its own."""
    batch, channels, height, width = x.shape
    lines = x.transpose(1, 2).reshape(batch * height, channels, width)
    forward = scan(lines, *group(p, first))
    backward = scan(lines.flip(2), *group(p, first + 1))
    if turn_back:
        backward = backward.flip(2)
    return (forward + backward).view(batch, height, channels, width).transpose(1, 2)


def cascade(x, p, turn_back):
    rows = scan_rows(channel_norm(x), p, 0, turn_back)
    return transposed(scan_rows(transposed(channel_norm(rows)), p, 2, turn_back))


def op(x, p, o):
    act = ACTIVATIONS[o["ssm_act"]]
    u, z = product(x, p["in_proj.weight"]), None
    if o["gate"] != "none":
        u, z = u.chunk(2, dim=1)
    if o["conv"]:
        u = F.conv2d(u, p["conv2d.weight"], p.get("conv2d.bias"), padding=o["conv"] // 2,
                     groups=u.shape[1])
    u = act(u)
    if o["routes"] == "cascade":
        y = cascade(u, p, not o["authors_cascade"])
    else:
        y = scan_views(u, p, o["routes"])
    kind = o["out_norm"]
    if kind == "ln":
        y = channel_norm(y, p["out_norm.weight"], p["out_norm.bias"])
    elif kind == "cnorm":
        y = channel_norm(y, p["out_norm.0.weight"], p["out_norm.0.bias"])
        y = F.conv2d(y, p["out_norm.2.weight"], padding=1, groups=y.shape[1])
    elif kind == "dwconv3":
        y = F.conv2d(y, p["out_norm.1.weight"], padding=1, groups=y.shape[1])
    elif kind == "softmax":
        y = y.flatten(2).softmax(-1).view_as(y)
    elif kind == "sigmoid":
        y = torch.sigmoid(y)
    if o["out_act"] == "gelu":
        y = F.gelu(y)
    if z is not None:
        y = y * (act(z) if o["gate"] == "silu" else z)
    return product(y, p["out_proj.weight"])


def mlp(x, p, o):
    hidden = product(x, p["fc1.weight"], p["fc1.bias"])
    if o["gmlp"]:
        value, gate = hidden.chunk(2, dim=1)
        hidden = value * ACTIVATIONS[o["mlp_act"]](gate)
    else:
        hidden = ACTIVATIONS[o["mlp_act"]](hidden)
    return product(hidden, p["fc2.weight"], p["fc2.bias"])


# ---- The network ---------------------------------------------------------------------------------


def part(weights, prefix):
    return {name[len(prefix):]: value for name, value in weights.items() if name.startswith(prefix)}


def forward(weights, x, o):
    """x [batch, in_channels, height, width] -> logits [batch, classes], evaluation mode."""

    def norm(x, name):
        p = part(weights, name + ".")
        if not p:
            return x
        if o["norm"] == "bn":
            return F.batch_norm(x, p["running_mean"], p["running_var"], p["weight"], p["bias"])
        return channel_norm(x, p["weight"], p["bias"])

    def convolution(x, name, **options):
        return F.conv2d(x, weights[name + ".weight"], weights[name + ".bias"], **options)

    def residual(x, norm_name, layer, layer_name):
        p = part(weights, layer_name)
        if o["post_norm"]:
            return x + norm(layer(x, p, o), norm_name)
        return x + layer(norm(x, norm_name), p, o)

    def downsample(x, name):
        if o["downsample"] == "none":
            return x
        if o["downsample"] == "v1":
            x = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
            x = torch.cat([x[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)], 1)
            return product(norm(x, name + ".norm"), weights[name + ".reduction.weight"])
        x = convolution(x, name + ".1", stride=2, padding=dict(v2=0, v3=1)[o["downsample"]])
        return norm(x, name + ".3")

    if o["stem"] == "v1":
        x = norm(convolution(x, "patch_embed.0", stride=o["stem_stride"]), "patch_embed.2")
    else:
        strides = {4: (2, 2), 2: (2, 1), 1: (1, 1)}[o["stem_stride"]]
        x = norm(convolution(x, "patch_embed.0", stride=strides[0], padding=1), "patch_embed.2")
        x = convolution(F.gelu(x), "patch_embed.5", stride=strides[1], padding=1)
        x = norm(x, "patch_embed.7")
    if o["pos_embed"]:
        x = x + F.interpolate(weights["pos_embed"], x.shape[2:], mode="bicubic")
    for i, depth in enumerate(o["depths"]):
        for j in range(depth):
            name = f"layers.{i}.blocks.{j}"
            x = residual(x, name + ".norm", op, name + ".op.")
            if o["mlp_ratio"]:
                x = residual(x, name + ".norm2", mlp, name + ".mlp.")
        if i + 1 < len(o["depths"]):
            x = downsample(x, f"layers.{i}.downsample")
    x = norm(x, "classifier.norm").mean((2, 3))
    return F.linear(x, weights["classifier.head.weight"], weights["classifier.head.bias"])
