"""linescan doctor and the guards of linescan train as scripts use them: exit codes, JSON, reports.

Run by CTest with the program's path in LINESCAN_PROGRAM. Needs nothing but Python itself.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

from training_commands_test import TINY, run, write_split

CHECKS = ["versions", "host", "values", "loss", "reach", "anomaly", "gradients", "memory", "guards",
          "operators", "bisection"]
# No step is over in ten milliseconds.
SLOW = ["--set", "dims=32", "--set", "depths=2,2", "--batch", 132]


class DoctorCommand(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="linescan-doctor-"))
        cls.data = cls.folder / "data"
        cls.data.mkdir()
        write_split(cls.data, "train", 144)
        write_split(cls.data, "t10k", 24)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def examine(self, *options):
        return run("doctor", "--data", self.data, *TINY, "--batch", 8, "--folder", self.folder, *options)

    def train(self, name, *options):
        return run("train", "--data", self.data, *TINY, "--run", self.folder / name, *options)

    def plant(self, fault, code):
        """The findings by check, all of them those of `doctor --plant` with that exit code."""
        # A report on a hang stays, here with everything else.
        result = run("doctor", "--plant", fault, "--json", env={**os.environ, "TMPDIR": str(self.folder)})
        self.assertEqual(result.returncode, code, result.stderr)
        document = json.loads(result.stdout)
        self.assertTrue(document["failed"])
        findings = {finding["check"]: finding for finding in document["checks"]}
        self.assertEqual(findings["checkpoint"]["grade"], "pass", findings)
        return findings

    def assert_refused(self, result, *words):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertEqual(result.stdout, "")
        for word in words:
            self.assertIn(word, result.stderr.strip().splitlines()[-1])

    def test_a_healthy_run_passes(self):
        result = self.examine("--json")
        self.assertEqual(result.returncode, 0, result.stdout)
        document = json.loads(result.stdout)
        self.assertFalse(document["failed"])
        self.assertEqual([finding["check"] for finding in document["checks"]], CHECKS)
        for finding in document["checks"]:
            self.assertEqual(set(finding), {"check", "grade", "measured", "advice"})

    def test_the_checklist_fits_a_terminal(self):
        result = self.examine("--only", "values,loss,gradients", "--set", "clip=0")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertLessEqual(max(map(len, lines)), 80)
        self.assertEqual(lines[-1], "2 passed, 1 to look at, 0 failed, 0 skipped")
        self.assertIn("-> One odd batch", result.stdout)

    def test_a_run_is_examined_with_its_options_and_weights(self):
        trained = self.train("examined", "--epochs", 6, "--batch", 8, "--lr", "0.01")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        losses = []
        for options in ([], ["--run", self.folder / "examined"]):
            result = self.examine("--only", "loss", "--json", *options)
            self.assertEqual(result.returncode, 0, result.stderr)
            losses.append(float(json.loads(result.stdout)["checks"][0]["measured"].split()[0]))
        self.assertLess(losses[1], 0.7 * losses[0])
        result = run("doctor", "--run", self.folder / "examined", "--only", "gradients", "--lr", "1e20")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("The learning rate is too high", result.stdout)
        self.assert_refused(run("doctor", "--run", self.folder / "nowhere"), "nowhere")

    def test_options_of_train_that_no_check_reads_are_refused(self):
        for given in (["--minutes", 1], ["--epochs", 1], ["--on-hang", "continue"], ["--no-graph"],
                      ["--detect-anomaly"], ["--fail-on-unused"], ["--log-memory"],
                      ["--no-log-memory"]):
            self.assert_refused(self.examine("--only", "loss", *given), f"no check reads {given[0]},")
        # A run's file has them all.
        file = self.folder / "options.toml"
        file.write_text("minutes = 3\non_hang = \"continue\"\ngraph = false\n")
        result = self.examine("--only", "loss", "--config", file, "--watchdog", "off")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_truncated_data_are_a_finding_with_exit_code_1(self):
        broken = self.folder / "broken"
        shutil.copytree(self.data, broken)
        file = broken / "t10k-labels-idx1-ubyte"
        file.write_bytes(file.read_bytes()[:-1])
        result = run("doctor", "--data", broken, *TINY)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertTrue(result.stdout.startswith("fail  data"), result.stdout)
        self.assertIn(file.name, "".join(result.stdout.split()))

    def test_bad_options_are_refused(self):
        self.assert_refused(self.examine("--only", "gradient"), "did you mean 'gradients'")
        self.assert_refused(self.examine("--steps", "0"), "steps is 0")
        self.assert_refused(self.examine("--lr", "nan"), "lr")
        self.assert_refused(run("doctor", "--plant", "nan"), "unknown fault 'nan'")
        unknown = run("doctor", "--plant", "nan-input", "--only", "value")
        self.assert_refused(unknown, "unknown check 'value'")
        self.assertEqual(len(unknown.stderr.splitlines()), 1, unknown.stderr)  # nothing was trained
        for given, words in [(["--lr", "0.1"], "lr=0.1"), (["--set", "clip=1"], "--set clip=1"),
                             (["--config", "run.toml"], "--config run.toml"),
                             (["--run", "runs/first"], "--run runs/first"),
                             (["--folder", "/nowhere"], "--folder /nowhere")]:
            self.assert_refused(run("doctor", "--plant", "nan-input", *given), "--plant has a run", words)
        self.assert_refused(self.train("never", "--watchdog", "soon"), "watchdog is 'soon'")
        self.assert_refused(self.train("never", "--on-hang", "wait"), "on_hang is 'wait'")
        self.assert_refused(self.train("never", "--max-grad-norm", "-1"), "clip is -1")
        self.assertFalse((self.folder / "never").exists())

    def test_planted_faults_have_the_exit_codes_of_train(self):
        for fault, check, words in [
                ("nan-input", "values", "exit code 3"),
                ("out-of-memory", "bisection", "exit code 1"),
                ("full-disk", "host", "exit code 2"),
                ("truncated-data", "data", "exit code 2")]:
            with self.subTest(fault=fault):
                findings = self.plant(fault, 1)
                self.assertEqual(findings[check]["grade"], "fail")
                self.assertIn(words, findings["training"]["measured"])

    def test_a_block_that_sleeps_ends_with_exit_code_4(self):
        findings = self.plant("sleeping-block", 4)
        training = findings["training"]["measured"]
        self.assertIn("exit code 4", training)
        report = pathlib.Path(re.search(r"; see (\S+)", training).group(1))
        self.assertIn("linescan::Watchdog::watch", report.read_text())
        standing = [finding for finding in findings.values() if "stands still in" in finding["measured"]]
        self.assertEqual(len(standing), 1, findings)
        self.assertIn("layers.1.blocks.0.op", standing[0]["measured"])

    def test_a_kernel_that_loops_ends_with_exit_code_4_or_needs_a_gpu(self):
        result = run("doctor", "--plant", "looping-kernel", "--json")
        if result.returncode == 2:  # no GPU, or no kernels in this build
            return self.assert_refused(result, "cuda")
        self.assertEqual(result.returncode, 4, result.stderr)
        training = json.loads(result.stdout)["checks"][0]
        self.assertIn("exit code 4", training["measured"])

    # The guards of train.

    def test_a_hang_ends_train_with_a_report_and_the_run_can_go_on(self):
        hung = self.train("hung", *SLOW, "--epochs", 3, "--watchdog", "0.01")
        self.assertEqual(hung.returncode, 4, hung.stderr)
        self.assertEqual(hung.stdout, "")
        last = hung.stderr.strip().splitlines()[-1]
        reports = list((self.folder / "hung").glob("hang-*.txt"))
        self.assertEqual(len(reports), 1)
        self.assertIn(f"; see {reports[0]}", last)
        self.assertIn("the limit is 0.01 s", last)
        report = reports[0].read_text()
        for words in ("median step", "operator", "GPU             not used", "checkpoints/step-",
                      "wrote this report", "linescan::Watchdog::watch"):
            self.assertIn(words, report)
        resumed = run("train", "--run", self.folder / "hung", "--resume", "--watchdog", "off")
        self.assertEqual(resumed.returncode, 0, resumed.stderr)

    def test_a_hang_may_be_gone_on_from(self):
        result = self.train("goes-on", *SLOW, "--epochs", 2, "--watchdog", "0.01", "--on-hang",
                            "continue")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("see " + str(self.folder / "goes-on" / "hang-step-1.txt"), result.stderr)
        self.assertIn("step 1 has gone on after", result.stderr)

    def test_guards_that_find_nothing_change_nothing(self):
        plain = self.train("plain", "--epochs", 1, "--batch", 8, "--no-log-memory")
        guarded = self.train("guarded", "--epochs", 1, "--batch", 8, "--detect-anomaly",
                             "--fail-on-unused", "--watchdog", "100x", "--log-memory")
        weights = []
        for result, name, memory in [(plain, "plain", False), (guarded, "guarded", True)]:
            self.assertEqual(result.returncode, 0, result.stderr)
            folder = self.folder / name
            weights.append((folder / "checkpoints/last/model.safetensors").read_bytes())
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            self.assertTrue(all(("memory_bytes" in line) == memory
                                for line in lines if line["kind"] == "train"))
        self.assertEqual(weights[0], weights[1])

    def test_help_lists_checks_and_faults(self):
        result = run("doctor", "--help")
        self.assertEqual(result.returncode, 0)
        for name in CHECKS + ["sleeping-block", "looping-kernel"]:
            self.assertIn(f"\n  {name} ", result.stdout)
        options = result.stdout.split("Checks:")[0]
        self.assertIn("medians count as 600 s", " ".join(options.split()))
        for unread in ("--minutes", "--epochs", "--no-graph", "--on-hang", "--detect-anomaly",
                       "--fail-on-unused", "log-memory"):
            self.assertNotIn(unread, options)
        self.assertIn("Example:\n  linescan doctor", result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)


if __name__ == "__main__":
    unittest.main()
