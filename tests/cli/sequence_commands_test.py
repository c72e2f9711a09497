"""The program's commands train, eval and generate on sequences as scripts use them.

Run by CTest with the program's path in LINESCAN_PROGRAM. Needs nothing but Python itself.
"""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["LINESCAN_PROGRAM"]
TINY = ["--set", "vocabulary=6", "--set", "length=8", "--set", "items=2", "--set", "hidden=32",
        "--set", "layers=1", "--set", "heads=1", "--set", "head_dim=16", "--threads", "1"]


def run(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **kwargs)


class SequenceCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="linescan-cli-"))
        cls.run_folder = cls.folder / "trained"
        cls.trained = run("train", "--task", "copying", *TINY, "--epochs", 1, "--limit-train", 3200,
                          "--batch", 16, "--lr", "0.01", "--set", "ema=0.9",
                          "--run", cls.run_folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def assert_refused(self, result, *words, code=2):
        """One line on standard error that has the words, nothing on standard output."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(word, lines[0])

    def test_train_and_eval_agree(self):
        self.assertEqual(self.trained.returncode, 0, self.trained.stderr)
        self.assertIn("3200 sequences of copying an epoch", self.trained.stderr)
        summary = json.loads((self.run_folder / "summary.json").read_text())
        self.assertGreater(summary["test_top1"], 0.8)
        self.assertEqual(summary["steps"], 200)
        result = run("eval", self.run_folder, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(set(document), {"top1", "top5", "loss", "answers"})
        self.assertEqual(document["top1"], summary["test_top1"])
        self.assertIn("top-1", run("eval", self.run_folder).stdout)

    def test_config_toml_repeats_the_options(self):
        name = self.folder / "again"
        result = run("train", "--config", self.run_folder / "config.toml", "--limit-train", 16,
                     "--run", name)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("16 sequences of copying", result.stderr)

    def test_generate_streams_what_was_learnt(self):
        right = 0
        for number in range(10):
            result = run("generate", self.run_folder, "--example", number, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            document = json.loads(result.stdout)
            self.assertEqual(len(document["prompt"]), 7)
            self.assertEqual(len(document["generated"]), 2)
            right += document["generated"] == document["expected"]
        self.assertGreaterEqual(right, 6)
        text = run("generate", self.run_folder, "--example", 9).stdout
        words = [line.split() for line in text.splitlines()]
        self.assertEqual([line[0] for line in words], ["prompt", "generated", "expected"])
        self.assertEqual(list(map(int, words[1][1:])), document["generated"])

    def test_generate_takes_prompts_lengths_and_seeds(self):
        command = ["generate", self.run_folder, "--prompt", "0,3,0,5,0,0,1", "--json"]
        document = json.loads(run(*command, "--tokens", 5).stdout)
        self.assertEqual(document["prompt"], [0, 3, 0, 5, 0, 0, 1])
        self.assertEqual(len(document["generated"]), 5)
        self.assertNotIn("expected", document)
        self.assertTrue(all(0 <= token < 6 for token in document["generated"]))

        def drawn(seed):
            return json.loads(run(*command, "--tokens", 30, "--temperature", 9, "--seed",
                                  seed).stdout)["generated"]
        self.assertEqual(drawn(1), drawn(1))
        self.assertNotEqual(drawn(1), drawn(2))
        likeliest = json.loads(run(*command, "--tokens", 5).stdout)["generated"]
        cold = run(*command, "--tokens", 5, "--temperature", "1e-300")
        self.assertEqual(json.loads(cold.stdout)["generated"], likeliest)

    def test_what_does_not_fit_is_refused(self):
        never = ["--run", self.folder / "never"]
        self.assert_refused(run("train", "--task", "recal", *never), "did you mean 'recall'?")
        for option, value in [("--data", "x"), ("--model", "vmamba_fashion"), ("--set", "dims=8")]:
            self.assert_refused(run("train", "--task", "copying", option, value, *never),
                                "of the task copying: only images has it")
        self.assert_refused(run("train", "--set", "items=4", *never),
                            "unknown option 'items' of the task images: only recall and copying have")
        self.assert_refused(run("train", "--set", "task=", *never),
                            "unknown task '' (known: images, recall, copying)")
        for budget in ("--epochs", "--minutes"):
            self.assert_refused(run("train", "--task", "copying", budget, "0", *never),
                                "epochs is 0 and minutes is 0, expected exactly one of them above 0")
        self.assert_refused(run("train", "--task", "recall", "--set", "length=1000000", *never),
                            "options batch and length are 64 and 1000000: such a step needs about",
                            "expected a length of at most")
        self.assert_refused(run("train", "--task", "recall", "--batch", "9999999999", *never),
                            "expected a batch of at most")
        self.assert_refused(run("generate", self.run_folder, "--prompt", ""), "--prompt is ''")
        self.assert_refused(run("generate", self.run_folder, "--prompt", "5", "--example", "3"),
                            "--prompt excludes --example")
        self.assert_refused(run("train", "--task", "recall", "--set", "items=99", *never),
                            "vocabulary is 64, expected 200")
        self.assert_refused(run("generate", self.run_folder, "--prompt", "6"), "token 6")
        self.assert_refused(run("generate", self.run_folder, "--prompt", "1;2"), "--prompt")
        for option, value, expected in [
            ("--example", "", "an integer"), ("--example", "9" * 20, "an integer of 64 bits"),
            ("--seed", "-1", "0 or more"), ("--seed", "9" * 20, "an integer of 64 bits"),
            ("--tokens", "", "an integer"), ("--tokens", "-1", "to 1000000"),
            ("--tokens", "1000001", "to 1000000"), ("--temperature", "", "a finite number"),
            ("--temperature", "nan", "a finite number"), ("--temperature", "-1", "0 or a positive"),
        ]:
            self.assert_refused(run("generate", self.run_folder, option, value),
                                option[2:], expected)
        self.assert_refused(run("generate", self.run_folder, "--example", "-1"), "--example is -1")
        self.assert_refused(run("generate", self.folder / "nowhere"), "nowhere")
        self.assert_refused(run("eval", self.run_folder, "--data", "fashion-mnist"), "no images")


if __name__ == "__main__":
    unittest.main()
