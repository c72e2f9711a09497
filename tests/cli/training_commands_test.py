"""The program's commands train, eval and classify as scripts use them: output, exit codes, signals.

Run by CTest with the program's path in LINESCAN_PROGRAM. Needs nothing but Python itself: data and
pictures are made here, small enough that a step takes milliseconds.
"""

import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import zlib

PROGRAM = os.environ["LINESCAN_PROGRAM"]
SIDE, CLASSES = 12, 4
TINY = ["--set", "dims=8", "--set", "depths=1,1", "--set", "stem_stride=2", "--threads", "1"]


def run(*arguments, **kwargs):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, **kwargs)


def idx(sizes, data):
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + data


def pixel(label, y, x, noise):
    bright = (y >= SIDE // 2) == (label >= 2) and (x >= SIDE // 2) == (label % 2 == 1)
    return (180 if bright else 20) + noise


def write_split(folder, prefix, count):
    rng = random.Random(1)
    labels = bytes(i % CLASSES for i in range(count))
    pixels = bytes(pixel(label, y, x, rng.randrange(60))
                   for label in labels for y in range(SIDE) for x in range(SIDE))
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx([count, SIDE, SIDE], pixels))
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx([count], labels))


def png(width, height, color_type, rows):
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
            + chunk(b"IEND", b""))


class TrainingCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="linescan-cli-"))
        cls.data = cls.folder / "data"
        cls.data.mkdir()
        write_split(cls.data, "train", 144)
        write_split(cls.data, "t10k", 24)
        cls.run_folder = cls.folder / "trained"
        cls.trained = run("train", "--data", cls.data, *TINY, "--epochs", 15, "--batch", 10, "--lr",
                          "0.01", "--set", "flip=false", "--set", "shift=1", "--run", cls.run_folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def assert_refused(self, result, *words, code=2):
        """One line on standard error that has the words, nothing on standard output."""
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        lines = result.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, result.stderr)
        self.assertTrue(lines[0].startswith("linescan: "), lines[0])
        for word in words:
            self.assertIn(word, lines[0])

    def tiny_train(self, name, *options):
        return run("train", "--data", self.data, *TINY, "--run", self.folder / name, *options)

    # What a good run says and leaves behind.

    def test_train_ends_with_its_folder_and_report(self):
        self.assertEqual(self.trained.returncode, 0, self.trained.stderr)
        self.assertIn(f"report        {self.run_folder}/report.html", self.trained.stdout)
        summary = json.loads((self.run_folder / "summary.json").read_text())
        self.assertGreater(summary["test_top1"], 0.9)
        self.assertGreater(summary["images_per_s"], 0)
        self.assertEqual(summary["steps"], 15 * 13)
        self.assertIn(f"test accuracy {100 * summary['test_top1']:.2f} %", self.trained.stdout)

    def test_eval_agrees_with_the_summary(self):
        result = run("eval", self.run_folder, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(set(document), {"top1", "top5", "loss", "images", "confusion"})
        summary = json.loads((self.run_folder / "summary.json").read_text())
        self.assertEqual(document["top1"], summary["test_top1"])
        self.assertAlmostEqual(document["loss"], summary["test_loss"], places=6)
        self.assertEqual(document["images"], 24)
        self.assertEqual(sum(map(sum, document["confusion"])), 24)
        right = sum(row[i] for i, row in enumerate(document["confusion"]))
        self.assertEqual(right, round(24 * document["top1"]))
        checkpoint = run("eval", self.run_folder / "checkpoints" / "best", "--json")
        self.assertEqual(json.loads(checkpoint.stdout), document)
        self.assertIn("top-1", run("eval", self.run_folder).stdout)

    def test_exported_images_are_classified_as_their_names_say(self):
        pictures = self.folder / "pictures"
        exported = run("eval", self.run_folder, "--export-images", 12, pictures, "--json")
        self.assertEqual(exported.returncode, 0, exported.stderr)
        self.assertEqual({entry["file"] for entry in json.loads(exported.stdout)},
                         {str(path) for path in pictures.iterdir()})
        result = run("classify", self.run_folder, pictures, "--topk", 2, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual([pathlib.Path(entry["file"]).name for entry in document],
                         sorted(path.name for path in pictures.iterdir()))
        right = 0
        for entry in document:
            self.assertEqual(set(entry), {"file", "labels"})
            self.assertEqual(len(entry["labels"]), 2)
            first, second = entry["labels"]
            self.assertGreaterEqual(first["probability"], second["probability"])
            right += pathlib.Path(entry["file"]).name.startswith(first["name"] + "-")
        self.assertGreaterEqual(right, 10)
        text = run("classify", self.run_folder, pictures).stdout
        self.assertEqual(len(text.splitlines()), 12)
        everything = run("classify", self.run_folder, pictures, "--topk", 99, "--json")
        labels = json.loads(everything.stdout)[0]["labels"]
        self.assertEqual(len(labels), CLASSES)
        self.assertAlmostEqual(sum(label["probability"] for label in labels), 1, places=5)

    def test_classify_takes_pictures_of_other_sizes_and_colours(self):
        for label in range(CLASSES):
            file = self.folder / f"large-{label}.png"
            rows = [b"".join(bytes([pixel(label, y // 5, x // 5, 30)] * 3) for x in range(5 * SIDE))
                    for y in range(5 * SIDE)]
            file.write_bytes(png(5 * SIDE, 5 * SIDE, 2, rows))
            result = run("classify", self.run_folder, file, "--topk", 1, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)[0]["labels"][0]["name"], str(label))

    def test_runs_are_numbered_without_a_name(self):
        where = self.folder / "numbered"
        where.mkdir()
        for number in ("001", "002"):
            result = run("train", "--data", self.data, *TINY, "--epochs", 1, "--limit-train", 16,
                         "--batch", 8, cwd=where)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue((where / "runs" / number / "report.html").exists())

    def test_a_config_file_is_read_and_overridden(self):
        config = self.folder / "config.toml"
        config.write_text('depths = [1]\n[recipe]\nlr = 0.5\nepochs = 1\n[network]\nstates = 2\n')
        name = self.folder / "configured"
        result = run("train", "--config", config, "--data", self.data, *TINY, "--lr", "0.25",
                     "--limit-train", 8, "--batch", 8, "--run", name)
        self.assertEqual(result.returncode, 0, result.stderr)
        state = json.loads((name / "checkpoints" / "last" / "state.json").read_text())
        self.assertEqual(state["config"]["recipe"]["lr"], 0.25)
        self.assertEqual(state["config"]["network"]["depths"], [1, 1])
        self.assertEqual(state["config"]["network"]["states"], 2)

    # Bad input: one line, exit code 2, nothing lost.

    def test_bad_options_are_refused(self):
        for options, words in [
                (["--lr", "nan"], ["lr", "nan"]), (["--lr", "-1"], ["lr"]),
                (["--lr", "quick"], ["lr", "quick"]),
                (["--set", "weight_dekay=1"], ["did you mean 'weight_decay'"]),
                (["--set", "novalue"], ["novalue"]),
                (["--model", "vmamba_fashon"], ["did you mean 'vmamba_fashion'"]),
                (["--batch", "1000"], ["1000", "132"]), (["--batch", "0"], ["batch"]),
                (["--set", "classes=0"], ["classes"]), (["--set", "classes=2"], ["classes"]),
                (["--epochs", "1", "--minutes", "1"], ["--"]), (["--minutes", "-1"], ["minutes"]),
                (["--no-such-option"], ["--no-such-option"]),
                (["--config", self.folder / "missing.toml"], ["missing.toml"])]:
            with self.subTest(options=options):
                self.assert_refused(self.tiny_train("refused", *options), *words)
                self.assertFalse((self.folder / "refused").exists())

    def test_training_in_bfloat16(self):
        folder = self.folder / "half"
        trained = run("train", "--data", self.data, *TINY, "--epochs", 2, "--precision", "bf16",
                      "--run", folder)
        self.assertEqual(trained.returncode, 0, trained.stderr)
        state = json.loads((folder / "checkpoints/last/state.json").read_text())
        self.assertEqual(state["compute"]["precision"], "bf16")
        self.assertEqual(state["compute"]["device"], "cpu")
        for precision in ("bf16", "fp32"):
            result = run("eval", folder, "--precision", precision, "--json")
            self.assertEqual(json.loads(result.stdout)["images"], 24, result.stderr)

    def test_devices_and_precisions_that_are_not_there_are_refused(self):
        train = ["train", "--data", self.data, *TINY, "--run", self.folder / "never"]
        for commands in (train, ["eval", self.run_folder],
                         ["classify", self.run_folder, self.folder]):
            self.assert_refused(run(*commands, "--device", "gpu"), "device is 'gpu'", "cuda:N")
            self.assert_refused(run(*commands, "--precision", "fp16"), "precision is fp16",
                                "on the CPU")
            self.assert_refused(run(*commands, "--precision", "half"), "unknown precision 'half'")
            no_gpu = run(*commands, "--device", "cuda",
                         env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            self.assert_refused(no_gpu, "device cuda")
        self.assertFalse((self.folder / "never").exists())

    def test_bad_data_is_refused(self):
        for name in ("fashion-mnits", self.folder / "nowhere", self.folder):
            self.assert_refused(run("train", "--data", name, "--run", self.folder / "refused"), "data")
        broken = self.folder / "broken"
        shutil.copytree(self.data, broken)
        file = broken / "train-images-idx3-ubyte"
        file.write_bytes(file.read_bytes()[:-1])
        self.assert_refused(run("train", "--data", broken, "--run", self.folder / "refused"),
                            "train-images-idx3-ubyte", str(16 + 144 * SIDE * SIDE - 1))
        environment = dict(os.environ, LINESCAN_DATA=str(self.folder))
        self.assert_refused(run("train", "--run", self.folder / "refused", env=environment),
                            "dataset-fashion-mnist")

    def test_an_existing_run_is_not_touched(self):
        before = (self.run_folder / "summary.json").read_bytes()
        self.assert_refused(self.tiny_train("trained"), "exists", "--resume")
        self.assertEqual((self.run_folder / "summary.json").read_bytes(), before)

    def test_a_finished_run_says_so(self):
        result = run("train", "--run", self.run_folder, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("finished already", result.stdout)

    def test_resume_needs_a_run_and_its_own_options(self):
        self.assert_refused(run("train", "--run", self.folder / "nowhere", "--resume"), "nowhere")
        self.assert_refused(run("train", "--resume"), "--resume")
        name = self.stopped_run("other-options", signal.SIGTERM)
        self.assert_refused(run("train", "--run", name, "--resume", "--lr", "0.123"), "lr", "0.123")

    def test_what_is_not_an_image_is_refused(self):
        text = self.folder / "text.png"
        text.write_text("not a picture")
        truncated = self.folder / "truncated.png"
        truncated.write_bytes(png(4, 4, 0, [b"abcd"] * 4)[:40])
        for file in (text, truncated, self.folder / "missing.png"):
            self.assert_refused(run("classify", self.run_folder, file, "--json"), file.name)
        self.assert_refused(run("classify", self.run_folder, text, "--topk", 0), "topk")

    def test_damaged_weights_are_refused(self):
        name = self.folder / "damaged"
        shutil.copytree(self.run_folder, name, symlinks=True)
        best = name / "checkpoints" / "best"
        for file in ("model.safetensors", "ema.safetensors", "state.json"):
            content = (best / file).read_bytes()
            for damaged in (content[:len(content) // 2], content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
                (best / file).write_bytes(damaged)
                self.assert_refused(run("eval", name, "--json"), file)
            (best / file).unlink()
            self.assert_refused(run("eval", best, "--json"), *([] if file == "state.json" else [file]))
            (best / file).write_bytes(content)
        self.assertEqual(run("eval", name, "--json").returncode, 0)
        self.assert_refused(run("eval", self.folder / "nowhere", "--json"), "nowhere")

    def test_a_loss_that_is_not_finite_has_its_own_code(self):
        result = self.tiny_train("bad-loss", "--epochs", 3, "--lr", "1e30", "--set", "clip=0",
                                 "--set", "warmup=0", "--batch", 10)
        self.assertEqual(result.returncode, 3, result.stderr)
        last = result.stderr.strip().splitlines()[-1]
        for word in ("step", "loss", "bad-loss/checkpoints/step-"):
            self.assertIn(word, last)

    def test_a_full_disk_ends_the_run_and_keeps_the_last_checkpoint(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            self.skipTest("mounting a small file system needs root")
        try:
            name = disk / "run"
            result = self.tiny_train(name, "--epochs", 200, "--batch", 10, "--set", "keep=100")
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("No space left on device", result.stderr.strip().splitlines()[-1])
            self.assertEqual(run("eval", name, "--checkpoint", "last", "--json").returncode, 0)
            self.assertEqual(list((name / "checkpoints").glob("*.tmp*")), [])
        finally:
            subprocess.run(["umount", str(disk)], check=True)

    def test_help_has_an_example(self):
        for command in ("train", "eval", "classify"):
            result = run(command, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn(f"Example:\n  linescan {command}", result.stdout)

    # Signals.

    def start(self, name, *options):
        """A run that would take minutes, as soon as its first checkpoint is there."""
        folder = self.folder / name
        process = subprocess.Popen(
            [PROGRAM, "train", "--data", self.data, *TINY, "--batch", "10", "--minutes", "5", "--run",
             folder, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.time() + 60
        while not (folder / "checkpoints" / "last").exists() and time.time() < deadline:
            time.sleep(0.01)
        return process, folder

    def stopped_run(self, name, number, *options):
        process, folder = self.start(name, *options)
        time.sleep(0.5)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + number, errors)
        self.assertIn("--resume' goes on", errors)
        self.assertEqual(output, "")
        return folder

    def test_signals_save_and_have_their_own_codes(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            folder = self.stopped_run(f"signal-{number.name}", number)
            state = json.loads((folder / "checkpoints" / "last" / "state.json").read_text())
            self.assertGreater(state["step"], 0)
            self.assertFalse((folder / "summary.json").exists())
            self.assertEqual(run("eval", folder, "--json").returncode, 0)

    def test_a_run_goes_on_in_another_precision_and_says_so(self):
        folder = self.stopped_run("half-and-whole", signal.SIGTERM, "--precision", "bf16")
        process = subprocess.Popen(
            [PROGRAM, "train", "--run", folder, "--resume", "--precision", "fp32"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM, errors)
        self.assertIn("the run was made with bf16 on cpu, this is fp32 on cpu", errors)

    def test_a_killed_run_goes_on(self):
        for trial in range(6):
            # Evaluating and saving every few steps, so that kills hit saves.
            process, folder = self.start(f"killed-{trial}", "--limit-train", "20")
            time.sleep(0.05 + 0.15 * trial)
            process.kill()
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -signal.SIGKILL)
            self.assertEqual(run("eval", folder, "--checkpoint", "last", "--json").returncode, 0)
            process = subprocess.Popen([PROGRAM, "train", "--run", folder, "--resume"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM, errors)
            leftovers = [path.name for path in (folder / "checkpoints").iterdir() if ".tmp" in path.name]
            self.assertEqual(leftovers, [])
            for line in (folder / "metrics.jsonl").read_text().splitlines():
                json.loads(line)


if __name__ == "__main__":
    unittest.main()
