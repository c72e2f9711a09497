"""`linescan info` as scripts use it. Run by CTest with the program's path in LINESCAN_PROGRAM."""

import json
import os
import subprocess
import unittest

PROGRAM = os.environ["LINESCAN_PROGRAM"]


def run(*arguments):
    return subprocess.run([PROGRAM, "info", *arguments], capture_output=True, text=True, timeout=60)


class Info(unittest.TestCase):
    def document(self, *arguments):
        done = run(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def test_json_has_exactly_the_promised_keys(self):
        document = self.document("vmamba_tiny_s1l8")
        self.assertEqual(document, {
            "model": "vmamba_tiny_s1l8",
            "parameters": 30249064,
            "gflops": 4.905609984,
            "stages": [
                {"channels": 96, "height": 56, "width": 56, "blocks": 2},
                {"channels": 192, "height": 28, "width": 28, "blocks": 2},
                {"channels": 384, "height": 14, "width": 14, "blocks": 8},
                {"channels": 768, "height": 7, "width": 7, "blocks": 2},
            ],
        })

    def test_options_and_size(self):
        document = self.document(
            "vmamba_tiny_v0", "--size", "65", "--set", "dims=96", "--set", "depths=2,2,8,2",
            "--set", "states=1", "--set", "ssm_ratio=1", "--set", "forward_type=v05_noz",
            "--set", "mlp_ratio=4", "--set", "conv_bias=false", "--set", "stem=v2",
            "--set", "downsample=v3")
        self.assertEqual(document["parameters"], 30249064)
        self.assertEqual([stage["height"] for stage in document["stages"]], [17, 9, 5, 3])

    def test_size_is_the_networks_own_unless_given(self):
        self.assertEqual(self.document("vmamba_fashion"),
                         self.document("vmamba_fashion", "--size", "28"))

    def test_table_fits_a_terminal(self):
        done = run("vmamba_base_s2l15", "--size", "1024")
        self.assertEqual(done.returncode, 0)
        self.assertIn("88,557,800", done.stdout)
        self.assertIn("256 x 256", done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_bad_input_is_one_line_and_exit_code_2(self):
        for arguments, message in [
            (["vmamba_tinny_s1l8"], "did you mean 'vmamba_tiny_s1l8'?"),
            (["vmamba_tiny_s1l8", "--set", "clases=3"], "did you mean 'classes'?"),
            (["vmamba_tiny_s1l8", "--set", "classes=0"], "classes is 0, expected 1 to"),
            (["vmamba_tiny_s1l8", "--set", "classes"], "expected key=value"),
            (["vmamba_tiny_s1l8", "--set", "forward_type=v05_nozz"], "unknown suffix '_nozz'"),
            (["vmamba_tiny_s1l8", "--set", "dims=96,192"], "as many as depths"),
            (["vmamba_tiny_s1l8", "--size", "0"], "--size is 0, expected 1 to"),
            (["vmamba_tiny_v0", "--size", "3"], "too small, stage 0 would be empty"),
        ]:
            done = run(*arguments, "--json")
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(done.stdout, "", arguments)
            self.assertIn(message, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
