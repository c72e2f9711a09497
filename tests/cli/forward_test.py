"""`linescan forward` on a network without blocks, whose result fits on paper, and its bad inputs.

Run by CTest with the program's path in LINESCAN_PROGRAM; needs nothing but Python itself. Whole
networks are compared in tests/python/vmamba_parity_test.py.
"""

import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["LINESCAN_PROGRAM"]
# One convolution of one pixel to two channels, norm, pool, head with three classes.
NETWORK = ["vmamba_fashion"]
for setting in ["stem=v1", "stem_stride=1", "patch_norm=false", "dims=2", "depths=0", "classes=3"]:
    NETWORK += ["--set", setting]
WEIGHTS = {
    "patch_embed.0.weight": ("F32", [2, 1, 1, 1], [1.0, -1.0]),
    "patch_embed.0.bias": ("F32", [2], [0.0, 0.0]),
    "classifier.norm.weight": ("F32", [2], [1.0, 2.0]),
    "classifier.norm.bias": ("F32", [2], [0.0, 0.5]),
    "classifier.head.weight": ("F32", [3, 2], [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
    "classifier.head.bias": ("F32", [3], [0.0, 0.0, 0.25]),
}
X = ("F32", [2, 1, 1, 1], [3.0, -3.0])
CODES = {"F32": "f", "F64": "d", "I64": "q", "I32": "i"}


def write(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{CODES[dtype]}", *values)
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, entry in json.loads(raw[8:8 + length]).items():
        if name == "__metadata__":
            continue
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        code = CODES[entry["dtype"]]
        values = struct.unpack(f"<{(end - start) // struct.calcsize(code)}{code}", raw[start:end])
        tensors[name] = (entry["dtype"], entry["shape"], list(values))
    return tensors


class Forward(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_on(self, inputs, weights=WEIGHTS, extra=()):
        write(self.folder / "w", weights)
        write(self.folder / "x", inputs)
        return subprocess.run(
            [PROGRAM, "forward", *NETWORK, "--weights", self.folder / "w", "--input",
             self.folder / "x", *(() if "--output" in extra else ("--output", self.folder / "y")), *extra],
            capture_output=True, text=True, timeout=60)

    def results(self, inputs, **options):
        done = self.run_on(inputs, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "")
        return read(self.folder / "y")

    def refused(self, message, inputs, **options):
        done = self.run_on(inputs, **options)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertFalse((self.folder / "y").exists())

    # The norm of (x, -x) is (s, -s) with s = x / sqrt(x^2 + 1e-5), times (1, 2) plus (0, 0.5).
    def logits(self):
        rows = []
        for x in X[2]:
            s = x / math.sqrt(x * x + 1e-5)
            a, b = s, 0.5 - 2 * s
            rows.append([a, b, a + b + 0.25])
        return rows

    def close(self, got, want):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertAlmostEqual(a, b, places=5)

    def test_logits_alone(self):
        got = self.results({"x": X})
        self.assertEqual(list(got), ["logits"])
        dtype, shape, values = got["logits"]
        self.assertEqual((dtype, shape), ("F32", [2, 3]))
        self.close(values, sum(self.logits(), []))

    def test_loss_and_gradients_with_labels(self):
        for dtype in ("I64", "I32"):
            got = self.results({"x": X, "labels": (dtype, [2], [2, 0])})
            self.assertEqual(set(got), {"logits", "loss", *(f"grad.{name}" for name in WEIGHTS)})
            losses, bias = [], [0.0, 0.0, 0.0]
            for row, label in zip(self.logits(), (2, 0)):
                total = sum(map(math.exp, row))
                losses.append(math.log(total) - row[label])
                for j in range(3):
                    bias[j] += (math.exp(row[j]) / total - (j == label)) / 2
            self.assertEqual(got["loss"][1], [])
            self.close(got["loss"][2], [sum(losses) / 2])
            self.close(got["grad.classifier.head.bias"][2], bias)

    def test_double_precision(self):
        wide = {name: ("F64", shape, values) for name, (_, shape, values) in WEIGHTS.items()}
        got = self.results({"x": ("F64", *X[1:])}, weights=wide, extra=["--dtype", "float64"])
        self.assertEqual(got["logits"][0], "F64")
        for a, b in zip(got["logits"][2], sum(self.logits(), [])):
            self.assertAlmostEqual(a, b, places=12)

    def test_bad_inputs(self):
        self.refused("x is float32 [2, 2, 1, 1], expected float32 [batch, 1, height, width]",
                     {"x": ("F32", [2, 2, 1, 1], [1.0] * 4)})
        self.refused("x is float32 [2, 1], expected", {"x": ("F32", [2, 1], [1.0] * 2)})
        self.refused("x is int64 [2, 1, 1, 1], expected float32",
                     {"x": ("I64", [2, 1, 1, 1], [1, 2])})
        self.refused("x is float64 [2, 1, 1, 1], expected float32", {"x": ("F64", *X[1:])})
        self.refused("an image of 0 x 4 is too small", {"x": ("F32", [1, 1, 0, 4], [])})
        self.refused("there is no tensor x", {"labels": ("I64", [1], [0])})
        self.refused("unexpected tensor 'lables'", {"x": X, "lables": ("I64", [2], [0, 1])})

    def test_bad_labels(self):
        self.refused("labels is int64 [3], expected integers [2]",
                     {"x": X, "labels": ("I64", [3], [0, 1, 2])})
        self.refused("labels is float32 [2], expected integers",
                     {"x": X, "labels": ("F32", [2], [0.0, 1.0])})
        self.refused("labels reach from 0 to 3, expected 0 to 2",
                     {"x": X, "labels": ("I64", [2], [0, 3])})
        self.refused("labels reach from -1 to 1", {"x": X, "labels": ("I64", [2], [-1, 1])})
        self.refused("a loss needs at least one image",
                     {"x": ("F32", [0, 1, 1, 1], []), "labels": ("I64", [0], [])})

    def test_bad_weights_are_all_listed(self):
        weights = dict(WEIGHTS)
        del weights["classifier.head.bias"]
        weights["spare"] = ("F32", [1], [0.0])
        weights["classifier.head.weight"] = ("F32", [4, 2], [0.0] * 8)
        done = self.run_on({"x": X}, weights=weights)
        self.assertEqual(done.returncode, 2)
        for part in ("missing: classifier.head.bias", "unexpected: spare",
                     "classifier.head.weight float32 [4, 2], expected float32 [3, 2]"):
            self.assertIn(part, done.stderr)

    def test_a_long_list_of_what_does_not_fit_is_cut(self):
        done = self.run_on({"x": X}, weights={f"spare.{i}": ("F32", [1], [0.0]) for i in range(10)})
        self.assertEqual(done.returncode, 2)
        self.assertIn("spare.3, spare.4 and 5 more", done.stderr)

    def test_results_never_replace_what_they_come_from(self):
        (self.folder / "link").symlink_to(self.folder / "x")
        for option, name in [("--weights", "w"), ("--input", "link")]:
            output = self.folder / name
            self.refused(f"--output and {option} are both {output}, expected two files", {"x": X},
                         extra=["--output", output])
            self.assertEqual(len(read(output)), len(WEIGHTS) if name == "w" else 1)

    def test_results_that_are_not_finite_have_their_own_code(self):
        done = self.run_on({"x": ("F32", [1, 1, 1, 1], [math.inf])})
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("logits has numbers that are not finite", done.stderr)

    def test_bad_options(self):
        self.refused("--dtype is 'float16'", {"x": X}, extra=["--dtype", "float16"])
        self.refused("classes is 0", {"x": X}, extra=["--set", "classes=0"])
        self.refused("has no classifier", {"x": X}, extra=["--set", "backbone=true"])


if __name__ == "__main__":
    unittest.main()
