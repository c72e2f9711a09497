"""device, plan, check and bench as scripts use them. Run by CTest with the program's path in
LINESCAN_PROGRAM and the folder of the tests' own drivers in LINESCAN_TEST_DRIVERS."""

import json
import os
import subprocess
import unittest

PROGRAM = os.environ["LINESCAN_PROGRAM"]
DRIVERS = os.environ["LINESCAN_TEST_DRIVERS"]
KNOWN_GPUS = ["v100", "a100", "rtx3090", "rtx4090", "l4", "h100", "h200", "b200", "orin"]
MEASURED = {"ms_median", "ms_p10", "ms_p90", "gb_per_s", "share_of_floor"}
THROUGHPUT = {"images_per_s", "ms_median", "ms_p10", "ms_p90", "peak_mb"}


def run(*arguments, **environment):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


class MachineCommands(unittest.TestCase):
    def document(self, *arguments, **environment):
        done = run(*arguments, "--json", **environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_refused(self, arguments, message, **environment):
        done = run(*arguments, **environment)
        self.assertEqual(done.returncode, 2, (arguments, done.stdout, done.stderr))
        self.assertEqual(done.stdout, "")
        self.assertIn(message, done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_version_and_help_of_every_command(self):
        self.assertRegex(run("--version").stdout, r"^linescan \d+\.\d+\.\d+$")
        overview = run("--help").stdout
        self.assertLessEqual(max(map(len, overview.splitlines())), 80)
        for command in ["train", "eval", "classify", "generate", "forward", "info", "device", "plan",
                        "check", "bench"]:
            self.assertIn(f"  {command}", overview)
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertIn("Example:\n  linescan " + command, done.stdout)
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80, command)

    def test_device_names_what_is_in_force(self):
        document = self.document("device")
        self.assertIn(document["simd"]["in_force"], document["simd"]["available"])
        self.assertGreater(document["cpu"]["cores"], 0)
        self.assertGreater(document["cpu"]["memory_bytes"], 0)
        self.assertIsNone(document["environment"]["LINESCAN_SIMD"])
        for target in document["simd"]["available"]:
            forced = self.document("device", LINESCAN_SIMD=target)
            self.assertEqual(forced["simd"]["in_force"], target)
            self.assertEqual(forced["environment"]["LINESCAN_SIMD"], target)
        self.assert_refused(["device"], "LINESCAN_SIMD: unknown instruction set 'AVX9'",
                            LINESCAN_SIMD="AVX9")

    def test_device_shows_the_gpus_of_the_driver_or_says_why_there_is_none(self):
        two = self.document("device", LD_LIBRARY_PATH=f"{DRIVERS}/two_gpus")
        self.assertEqual([gpu["name"] for gpu in two["gpus"]], ["Test GPU 0", "Test GPU 1"])
        self.assertEqual([gpu["capability"] for gpu in two["gpus"]], ["9.0", "12.0"])
        self.assertEqual(two["gpus"][0]["shared_per_block"], 232448)
        self.assertEqual(two["why_no_gpu"], "")
        for gpu in two["gpus"]:
            self.assertEqual(gpu["code_runs"], "code of" in gpu["code"])
        text = run("device", LD_LIBRARY_PATH=f"{DRIVERS}/two_gpus").stdout
        self.assertIn("cuda:1        Test GPU 1\n", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        for driver, why in [("broken", "cuInit says CUDA_ERROR_UNKNOWN (999)"),
                            ("old", "has no cuDeviceGetAttribute"),
                            ("no_device", "finds no GPU")]:
            none = self.document("device", LD_LIBRARY_PATH=f"{DRIVERS}/{driver}")
            self.assertEqual(none["gpus"], [])
            self.assertIn(why, none["why_no_gpu"])

    def test_plan_for_gpus_that_need_not_be_here(self):
        shape = "batch=128,channels=96,height=56,width=56,states=1,rank=6,routes=cross"
        document = self.document("plan", "ss2d", "--shape", shape, "--dtype", "bfloat16",
                                 "--device", "h100")
        self.assertEqual(document["device"]["name"], "h100")
        ahead = document["forward"]
        self.assertEqual(ahead["exponentials"], 3 * 128 * 96 * 56 * 56 * 4)
        # 132 SMs x 16 a clock x 1.98 GHz
        self.assertAlmostEqual(ahead["exponential_ms"], ahead["exponentials"] / 4.1818e9, places=3)
        self.assertAlmostEqual(ahead["memory_ms"], ahead["bytes"] / 3.35e9, places=3)
        self.assertEqual(ahead["floor_ms"], max(ahead["exponential_ms"], ahead["memory_ms"]))
        self.assertLessEqual(ahead["shared_bytes"], ahead["shared_limit"])
        self.assertEqual(ahead["shared_limit"], 232448)
        self.assertGreaterEqual(ahead["blocks_per_multiprocessor"], 1)

        # More states than peers' fixed limit, on every known device.
        shape = "batch=8,channels=1024,groups=1,length=2048,states=512"
        for device in KNOWN_GPUS:
            document = self.document("plan", "selective_scan", "--shape", shape, "--device", device)
            for direction in ("forward", "backward"):
                plan = document[direction]
                self.assertLessEqual(plan["shared_bytes"], plan["shared_limit"], device)
                self.assertGreaterEqual(plan["blocks_per_multiprocessor"], 1, device)
            text = run("plan", "selective_scan", "--shape", shape, "--device", device).stdout
            self.assertLessEqual(max(map(len, text.splitlines())), 80, device)
            self.assertIn("floor", text)
            self.assertIn("code: ", text)
        v100 = self.document("plan", "selective_scan", "--device", "v100")["device"]
        self.assertFalse(v100["code_runs"])
        # The machine's own, by number.
        own = self.document("plan", "ss2d", "--device", "cuda:1",
                            LD_LIBRARY_PATH=f"{DRIVERS}/two_gpus")
        self.assertEqual(own["device"]["name"], "Test GPU 1")
        self.assert_refused(["plan", "ss2d", "--device", "cuda:2"], "expected cuda:0 to cuda:1",
                            LD_LIBRARY_PATH=f"{DRIVERS}/two_gpus")
        self.assert_refused(["plan", "ss2d", "--device", "cuda"], "the NVIDIA driver finds no GPU",
                            LD_LIBRARY_PATH=f"{DRIVERS}/no_device")

    def test_plan_prints_what_the_operator_would_do(self):
        shape = "batch=8,channels=384,groups=1,length=3136,states=16"
        document = self.document("plan", "selective_scan", "--shape", shape)
        self.assertEqual(document["forward"]["tasks"], 8 * 384 // 64)
        self.assertEqual(document["forward"]["exponentials"], 8 * 384 * 3136 * 16)
        self.assertGreater(document["backward"]["workspace_bytes"], 0)
        shape = "batch=2,channels=96,height=56,width=56,states=1,rank=6,routes="
        four = self.document("plan", "ss2d", "--shape", shape + "cross")
        one = self.document("plan", "ss2d", "--shape", shape + "0")
        self.assertEqual(four["forward"]["exponentials"], 4 * one["forward"]["exponentials"])
        self.assertIn("channel block", run("plan", "ss2d").stdout)
        shape = "length=2048,heads=2,value_heads=4,V=512,mode="
        rule = self.document("plan", "gated_delta_rule", "--shape", shape + "auto")
        self.assertEqual(rule["forward"]["mode"], "chunk")
        self.assertEqual(rule["backward"]["head_sums"], 2 * rule["backward"]["column_parts"])
        self.assertIn("mode            recurrent",
                      run("plan", "gated_delta_rule", "--shape", shape + "recurrent").stdout)

    def test_check_judges_every_instruction_set(self):
        document = self.document("check")
        self.assertTrue(document["passed"])
        self.assertEqual({row["simd"] for row in document["results"]},
                         set(self.document("device")["simd"]["available"]))
        for row in document["results"]:
            self.assertLessEqual(row["error"], row["bound"], row)
            self.assertGreater(row["bound"], 0)

    def test_bench_op(self):
        for op, shape in [("selective_scan", "batch=1,channels=8,length=64,states=2"),
                          ("ss2d", "batch=1,channels=8,height=7,width=7,rank=1")]:
            document = self.document("bench", "op", op, "--shape", shape, "--seconds", "0.05")
            for direction in ("forward", "backward"):
                self.assertLessEqual(MEASURED, set(document[direction]))
                self.assertGreater(document[direction]["ms_median"], 0)

    def test_bench_network(self):
        document = self.document("bench", "network", "vmamba_fashion", "--size", "28", "--batch",
                                 "4", "--seconds", "0.05")
        for kind in ("inference", "training"):
            self.assertLessEqual(THROUGHPUT, set(document[kind]))
            self.assertGreater(document[kind]["images_per_s"], 0)
            self.assertGreater(document[kind]["peak_mb"], 0)
        self.assertIn("cpu", document["machine"])

    def test_bad_input_is_one_line_and_exit_code_2(self):
        for arguments, message in [
            (["plan", "ss3d"], "unknown operator 'ss3d'; did you mean 'ss2d'?"),
            (["plan", "ss2d", "--shape", "hight=3"], "did you mean 'height'?"),
            (["plan", "ss2d", "--shape", "height=three"], "is 'three', expected an integer"),
            (["plan", "ss2d", "--shape", "height=-1"], "height is -1, expected 0 to"),
            (["plan", "ss2d", "--shape", "routes=16"], "routes is '16', expected"),
            (["plan", "gated_delta_rule", "--shape", "mode=x"], "mode is 'x', expected auto, chunk"),
            (["plan", "gated_delta_rule", "--shape", "heads=2,value_heads=3"], "do not divide 3"),
            (["plan", "ss2d", "--dtype", "float33"], "unknown --dtype 'float33'"),
            (["plan", "selective_scan", "--shape", "groups=7"], "7 groups, which do not divide"),
            (["plan", "selective_scan", "--layout", "sideways"], "expected length or channels"),
            (["plan", "selective_scan", "--threads", "0"], "--threads is 0"),
            (["plan", "selective_scan", "--device", "h1oo"], "did you mean 'h100'?"),
            (["plan", "ss2d", "--device", "h100", "--dtype", "float64"], "on the CPU alone"),
            (["bench", "op", "ss2d", "--shape", "batch=0"], "nothing to time"),
            (["bench", "op", "ss2d", "--seconds", "nan"], "--seconds is nan"),
            (["bench", "network", "vmamba_fasion"], "did you mean 'vmamba_fashion'?"),
            (["bench", "network", "vmamba_fashion", "--device", "cuda"], "device cuda: "),
            (["bench", "network", "vmamba_fashion", "--precision", "fp8"], "precision 'fp8'"),
            (["bench", "network", "vmamba_fashion", "--batch", "0"], "--batch is 0"),
            (["bench"], "subcommand is required"),
            (["trian"], "linescan --help"),
        ]:
            self.assert_refused(arguments, message, LD_LIBRARY_PATH=f"{DRIVERS}/no_device")


if __name__ == "__main__":
    unittest.main()
