"""throughput as scripts use it: the forms of output, files, and how bad options are refused."""

import csv
import io
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["LINESCAN_PROGRAM"]
SMALL = ["vmamba_fashion", "--set", "dims=8", "--set", "depths=1,1", "--set", "stem_stride=2",
         "--batch", "2", "--warmup", "1", "--repetitions", "2", "--threads", "1"]


def run(*arguments):
    return subprocess.run([PROGRAM, "throughput", *map(str, arguments)], capture_output=True,
                          text=True, timeout=120)


class Throughput(unittest.TestCase):
    def document(self, *arguments):
        done = run(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_refused(self, message, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stdout, "")
        self.assertIn(message, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_help_fits_the_terminal_and_has_an_example(self):
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("Example:\n  linescan throughput", done.stdout)
        self.assertIn("vit_small", done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

    def test_measures_every_step_in_every_precision(self):
        document = self.document(*SMALL, "--precision", "bf16,fp32", "--with-optimizer")
        rows = [(row["precision"], row["step"]) for row in document["measurements"]]
        steps = ["inference", "training", "training with update"]
        self.assertEqual(rows, [("bf16", step) for step in steps] + [("fp32", step) for step in steps])
        for row in document["measurements"]:
            self.assertEqual((row["batch"], row["size"], row["repetitions"]), (2, 28, 2))
            self.assertAlmostEqual(row["images_per_s"], 2e3 / row["ms_median"])
            self.assertLessEqual(row["ms_least"], row["ms_median"])
            self.assertGreater(row["peak_mb"], 0)
            self.assertGreater(row["share_of_peak"], 0)
        for parts in document["breakdown"].values():
            self.assertAlmostEqual(sum(part["share"] for part in parts.values()), 1, places=3)
            self.assertGreater(parts["scan"]["share"], 0)

    def test_every_experiment_on_a_terminal_and_on_a_page(self):
        with tempfile.TemporaryDirectory() as folder:
            page, trace = pathlib.Path(folder) / "page.html", pathlib.Path(folder) / "trace.json"
            done = run(*SMALL, "--sweep", "resolution", "32,16", "--against", "attention,conv",
                       "--ladder", "--size", 32, "--scan-modes", "--rounds", 2, "--states", "1,8",
                       "--plan-device", "a100", "--html", page, "--trace", trace)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80, done.stdout)
            self.assertIn("million parameters, 1 thread\n", done.stdout)
            for word in ["Throughput", "Breakdown", "attention", "crossing", "vanilla", "cascade",
                         "Plans for a100"]:
                self.assertIn(word, done.stdout)
            text = page.read_text()
            self.assertTrue(text.startswith("<!DOCTYPE html>"))
            for outside in ["src=", "href=", "<link", "@import", "url("]:
                self.assertFalse(outside in text, outside)
            events = json.loads(trace.read_text())["traceEvents"]
            self.assertTrue(any(event["name"] == "linescan::ss2d_scan" for event in events))

    def test_a_file_that_cannot_be_written_costs_no_measurement(self):
        for option in ["--html", "--trace"]:
            done = run(*SMALL, "--json", option, "/proc/file")  # a folder that takes no files
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("cannot write /proc/file", done.stderr)
            self.assertEqual(len(json.loads(done.stdout)["measurements"]), 2)

    def test_a_page_goes_to_a_pipe_and_nowhere_too(self):
        done = run(*SMALL, "--csv", "--html", "/dev/stdout", "--trace", "/dev/null")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith("section,"))
        self.assertTrue(done.stdout.rstrip().endswith("</html>"))
        self.assertTrue(pathlib.Path("/dev/null").is_char_device())

    def test_csv_has_one_line_a_measurement(self):
        done = run(*SMALL, "--csv", "--sweep", "resolution", "16")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = list(csv.DictReader(io.StringIO(done.stdout)))
        self.assertEqual([row["section"] for row in rows], ["model"] * 2 + ["sweep"] * 2)
        self.assertTrue(all(float(row["images_per_s"]) > 0 for row in rows))

    def test_measures_the_plain_networks_too(self):
        for model in ["vit_fashion", "convnext_fashion"]:
            document = self.document(model, "--batch", 2, "--warmup", 0, "--repetitions", 1)
            self.assertEqual(len(document["measurements"]), 2)
            self.assertNotIn("scan", document["breakdown"]["training"])

    def test_refuses_bad_options_in_one_line(self):
        self.assert_refused("did you mean 'vit_small'?", "vit_smal")
        self.assert_refused("--batch is -1", *SMALL[:1], "--batch", -1)
        for option in ["--batch", "--size", "--threads", "--repetitions"]:
            self.assert_refused(f"{option} is 0", *SMALL[:1], option, 0)
        self.assert_refused("--rounds: expected --scan-modes", *SMALL[:1], "--rounds", 3)
        self.assert_refused("--graph: expected --device cuda", *SMALL[:1], "--graph")
        self.assert_refused("--sweep is 'resolution', expected", *SMALL[:1], "--sweep", "resolution")
        self.assert_refused("--sweep is 'size', expected resolution", *SMALL[:1], "--sweep", "size",
                            "32")
        self.assert_refused("--sweep", *SMALL[:1], "--sweep", "resolution", "32,x")
        self.assert_refused("too small", "vmamba_tiny_s1l8", "--set", "downsample=v2", "--sweep",
                            "resolution", "224,16")
        self.assert_refused("rival", *SMALL[:1], "--sweep", "resolution", "32", "--against", "cnn")
        self.assert_refused("--against", *SMALL[:1], "--against", "conv")
        self.assert_refused("--precision is 'fp32,fp32'", *SMALL[:1], "--precision", "fp32,fp32")
        self.assert_refused("fp64", *SMALL[:1], "--precision", "fp32,fp64")
        self.assert_refused("on the CPU there are fp32 and bf16", *SMALL[:1], "--precision", "fp16")
        self.assert_refused("--json and --csv", *SMALL[:1], "--json", "--csv")
        self.assert_refused("expected a VMamba", "vit_fashion", "--ladder")
        self.assert_refused("--states", *SMALL[:1], "--states", "0")
        self.assert_refused("backbone", *SMALL[:1], "--set", "backbone=true")
        self.assert_refused("device", *SMALL[:1], "--device", "gpu")

    def test_refuses_before_it_measures_what_is_needed_afterwards(self):
        endless = ["vmamba_tiny_s1l8", "--repetitions", 1000000]
        self.assert_refused("h1000", *endless, "--states", "1", "--plan-device", "h1000")
        self.assert_refused("ssm_ratio is 0", *endless, "--set", "ssm_ratio=0", "--states", "1")
        self.assert_refused("ssm_ratio is 0", *endless, "--set", "ssm_ratio=0", "--scan-modes")
        for precisions in ["fp16,fp32", "fp32,tf32"]:
            self.assert_refused("on the CPU there are", *endless, "--precision", precisions)
        self.assert_refused("expected two files", *endless, "--html", "both", "--trace", "./both")
        for option in ["--html", "--trace"]:
            self.assert_refused("nowhere", *endless, option, "nowhere/file")
            self.assert_refused("the name of a file", *endless, option, "")
            with tempfile.TemporaryDirectory() as folder:
                self.assert_refused("which is a folder", *endless, option, folder)


if __name__ == "__main__":
    unittest.main()
