"""tools/check_layers must see each kind of offence, and must not see one in honest includes."""
import pathlib
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "check_layers"


def check(path, include):
    """Exit status and output for a tree that holds one file with one include."""
    with tempfile.TemporaryDirectory() as root:
        file = pathlib.Path(root, "linescan", path)
        file.parent.mkdir(parents=True)
        file.write_text(f"// headline\n#include {include}\n")
        run = subprocess.run([TOOL, root], capture_output=True, text=True, check=False)
        return run.returncode, run.stdout


class CheckLayers(unittest.TestCase):
    def test_refuses(self):
        for path, include in [
            ("ops/ss2d/cpu.cpp", "<torch/torch.h>"),
            ("ops/ss2d/cpu.cpp", "<ATen/Parallel.h>"),
            ("base/shape.cpp", "<c10/util/Exception.h>"),
            ("files/png.cpp", "<Python.h>"),
            ("base/shape.h", '"linescan/device/cpu.h"'),
            ("ops/ss2d/ss2d.cpp", '"linescan/files/idx.h"'),
            ("files/idx.cpp", '"linescan/ops/parallel.h"'),
            ("models/layers/ss2d.cpp", '"linescan/train/recipe.h"'),
            ("ops/ss2d/cpu.cpp", '"linescan/ops/selective_scan/plan.h"'),
            ("train/loop.cpp", '"../models/networks/vmamba.h"'),
            ("train/loop.cpp", '"linescan/util/strings.h"'),
            ("util/strings.h", "<string>"),
        ]:
            with self.subTest(path=path, include=include):
                status, output = check(path, include)
                self.assertEqual(status, 1, output)
                self.assertIn(f"linescan/{path}", output)

    def test_allows(self):
        for path, include in [
            ("ops/ss2d/ss2d.cpp", '"linescan/ops/selective_scan/selective_scan.h"'),
            ("ops/ss2d/cpu.cpp", '"linescan/ops/ss2d/plan.h"'),
            ("ops/ss2d/cpu.cpp", '"linescan/ops/simd.h"'),
            ("binding/ss2d.cpp", "<torch/library.h>"),
            ("cli/train.cpp", '"linescan/version.h"'),
            ("train/loop.cpp", '"linescan/files/idx.h"'),
        ]:
            with self.subTest(path=path, include=include):
                status, output = check(path, include)
                self.assertEqual(status, 0, output)

    def test_refuses_an_empty_tree(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(subprocess.run([TOOL, root], capture_output=True, check=False).returncode, 1)


if __name__ == "__main__":
    unittest.main()
