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

    def test_plan_says_what_was_asked_and_what_does_not_fit(self):
        document = self.document("plan", "ss2d", "--shape", "batch=2,routes=0+6", "--device", "h100")
        self.assertEqual(document["problem"],
                         {"batch": 2, "channels": 96, "height": 56, "width": 56, "states": 1, "rank": 6,
                          "routes": [0, 6], "dtype": "float32", "layout": "channels"})
        self.assertEqual(document["forward"]["variant"], "whole planes: one tile each")
        self.assertTrue(document["forward"]["fits_memory"])
        for op in ("selective_scan", "ss2d", "gated_delta_rule", "causal_conv1d"):
            for device in ("cpu", "h100"):
                text = run("plan", op, "--shape", "batch=3", "--device", device).stdout
                self.assertTrue(text.startswith("problem batch=3 "), text)
                self.assertLessEqual(max(map(len, text.splitlines())), 80)
        # One pass of two fits; then a device too small for the tensors.
        arguments = ["plan", "gated_delta_rule", "--shape", "K=512", "--device", "RTX3090"]
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("gated_delta_rule backward on a GPU\n  does not fit    gated_delta_rule: ", done.stdout)
        document = json.loads(run(*arguments, "--json").stdout)
        self.assertIn("shared memory", document["backward"]["refused"])
        self.assertGreater(document["forward"]["records"]["grid"], 0)
        arguments = ["plan", "selective_scan", "--shape", "batch=1000,channels=4096,length=65536",
                     "--device", "l4"]
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertIn("of the device's 24.00 GiB: does not fit", done.stdout)
        self.assertFalse(json.loads(run(*arguments, "--json").stdout)["forward"]["fits_memory"])

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

    def test_plan_of_every_other_operator(self):
        conv = self.document("plan", "causal_conv1d", "--shape", "batch=2,length=300,channels=70")
        self.assertEqual(conv["forward"]["exponentials"], 2 * 300 * 70)
        self.assertEqual(conv["forward"]["tasks"], conv["forward"]["parts"] * 2)
        self.assertIn("ranges of tokens x 4 blocks", run("plan", "causal_conv1d").stdout)
        for op, shape in [("causal_conv1d", "batch=2,length=300,channels=70"),
                          ("layer_norm", "rows=1000,channels=96"),
                          ("depthwise_conv", "batch=2,height=14,width=14,channels=96")]:
            document = self.document("plan", op, "--shape", shape, "--device", "h100")
            for direction in ("forward", "backward"):
                plan = document[direction]
                self.assertGreater(plan["grid"], 0, op)
                self.assertGreater(plan["bytes"], 0, op)
                self.assertLessEqual(plan["shared_bytes"], plan["shared_limit"], op)
            self.assertGreater(document["backward"]["workspace_bytes"], 0, op)
            text = run("plan", op, "--shape", shape, "--device", "h100").stdout
            self.assertLessEqual(max(map(len, text.splitlines())), 80, op)
            self.assertIn("floor", text)
            self.assertIn(f"grid            {document['forward']['grid']} blocks of ", text)
        rule = self.document("plan", "gated_delta_rule", "--device", "h100", "--dtype", "bfloat16")
        self.assertEqual(set(rule["forward"]) & {"records", "scan", "reverse_scan", "gradients"},
                         {"records", "scan"})
        for launch in ("records", "scan", "reverse_scan", "gradients"):
            self.assertGreater(rule["backward"][launch]["grid"], 0)
            self.assertLessEqual(rule["backward"][launch]["shared_bytes"],
                                 rule["backward"]["shared_limit"])
        # Channels that are not adjacent are not moved in packs.
        packs = {layout: self.document("plan", "causal_conv1d", "--device", "h100", "--layout",
                                       layout)["forward"]["vector"]
                 for layout in ("channels", "length")}
        self.assertEqual(packs, {"channels": 4, "length": 1})

    def test_plan_says_which_way_the_operator_goes(self):
        def plan(op, shape, *options):
            return self.document("plan", op, "--shape", shape, "--device", "h100", *options)
        one = plan("selective_scan", "states=1")["backward"]
        self.assertEqual((one["one_state"], one["many_states"]), (True, False))
        many = plan("selective_scan", "batch=8,channels=2048,length=2048,states=256")["backward"]
        self.assertEqual((many["one_state"], many["many_states"]), (False, True))
        self.assertEqual(many["shares"], many["warps"])
        self.assertIn(many["ahead_lanes"], (2, 4, 8))
        self.assertEqual(many["kept_bytes"], 0)
        lanes = plan("selective_scan", "batch=8,channels=4096,length=2048,states=16")
        self.assertEqual((lanes["forward"]["state_lanes"], lanes["forward"]["segments"]), (True, 2))
        for direction in ("forward", "backward"):
            kept = lanes[direction]
            self.assertEqual((kept["kept_steps"], kept["kept_bytes"]), (16, 127 * 8 * 4096 * 16 * 4))
        self.assertEqual(lanes["backward"]["ahead_lanes"], 0)
        long = plan("selective_scan", "batch=1,channels=4096,length=16384,states=16")
        self.assertEqual([(long[d]["walkers"], long[d]["places"]) for d in ("forward", "backward")],
                         [(True, 4), (True, 2)])
        self.assertFalse(plan("selective_scan", "states=1", "--layout",
                              "channels")["backward"]["one_state"])
        # ss2d of several states is left to selective_scan by the operator for LibTorch.
        shape = "batch=128,channels=96,height=56,width=56,rank=6,states="
        self.assertNotIn("by_scans", plan("ss2d", shape + "1"))
        self.assertNotIn("by_scans", plan("ss2d", shape + "16,routes=cascade"))
        scans = plan("ss2d", shape + "16")["by_scans"]
        self.assertEqual(scans["op"], "selective_scan")
        # delta and the results of 4 x 96 channels in float32, in 1280 MiB.
        fitting = 5 * 2**28 // (2 * 4 * 96 * 56 * 56 * 4)
        parts = -(-128 // fitting)
        self.assertEqual(scans["images"][0], -(-128 // parts))
        self.assertEqual(scans["forward"]["exponentials"] % scans["images"][0], 0)
        half = plan("ss2d", shape + "16", "--dtype", "bfloat16")
        for direction in ("forward", "backward"):
            self.assertTrue(half[direction]["walks_states"])
        self.assertNotIn("by_scans", half)
        text = run("plan", "ss2d", "--shape", shape + "16", "--dtype", "bfloat16", "--device",
                   "h100").stdout
        self.assertNotIn("selective_scan", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        small = "batch=128,channels=768,height=7,width=7,rank=48,states=1"
        planned = plan("ss2d", small, "--dtype", "bfloat16")
        self.assertEqual([planned[way]["walks_images"] for way in ("forward", "backward")],
                         [True, False])
        text = run("plan", "ss2d", "--shape", small, "--dtype", "bfloat16", "--device",
                   "h100").stdout
        self.assertIn("a lane walks one of them", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        large = "batch=32,channels=96,height=128,width=128,rank=6,states=1"
        planned = plan("ss2d", large, "--dtype", "bfloat16")
        self.assertEqual([planned[way]["cells"] for way in ("forward", "backward")], [True, True])
        text = run("plan", "ss2d", "--shape", large, "--dtype", "bfloat16", "--device",
                   "h100").stdout
        self.assertIn("a warp a cell of 8 x 8 pixels", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        text = run("plan", "ss2d", "--shape", shape + "16", "--device", "h100").stdout
        self.assertIn("With 16 states the operator for LibTorch", " ".join(text.split()))
        for direction in ("forward", "backward"):
            self.assertIn(f"selective_scan {direction} on a GPU", text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)

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
                          ("ss2d", "batch=1,channels=8,height=7,width=7,rank=1"),
                          ("gated_delta_rule", "length=64,heads=1,value_heads=2,K=8,V=8"),
                          ("causal_conv1d", "batch=1,length=64,channels=8")]:
            document = self.document("bench", "op", op, "--shape", shape, "--seconds", "0.05")
            for direction in ("forward", "backward"):
                self.assertLessEqual(MEASURED, set(document[direction]))
                self.assertGreater(document[direction]["ms_median"], 0)
                # Products with states are what gated_delta_rule costs besides.
                self.assertEqual("multiply_adds_per_s" in document[direction],
                                 op == "gated_delta_rule")

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
            (["plan", "selective_scan", "--threads", "0"], "--threads is 0, expected 1 to 1024"),
            (["plan", "selective_scan", "--threads", "1025"], "--threads is 1025, expected 1 to 1024"),
            (["plan", "selective_scan", "--threads", ""], "--threads is '', expected an integer"),
            (["plan", "selective_scan", "--threads", "9" * 20], "'99999999999999999999', expected"),
            (["plan", "gated_delta_rule", "--shape", "K=513"], "K is 513, expected 1 to 512"),
            (["plan", "gated_delta_rule", "--shape", "V=0"], "V is 0, expected 1 to 512"),
            (["plan", "gated_delta_rule", "--layout", "length"], "expected none: gated_delta_rule has"),
            (["plan", "gated_delta_rule", "--device", "h100", "--dtype", "float64"], "CPU alone"),
            (["plan", "causal_conv1d", "--shape", "width=5"], "width is 5, expected 2 to 4"),
            (["plan", "causal_conv1d", "--device", "h100", "--dtype", "float64"], "on the CPU alone"),
            (["plan", "layer_norm"], "kernels for GPUs alone"),
            (["plan", "layer_norm", "--device", "h100", "--shape", "channels=0"], "channels is 0"),
            (["plan", "depthwise_conv", "--device", "h100", "--layout", "channels"], "expected none"),
            (["plan", "ss2d", "--shape", "height=3,width=4,height=3"], "height is given twice"),
            (["plan", "selective_scan", "--shape", f"batch={2**40},length={2**40}"],
             f"batch x channels x length x states = {2**40} x 384 x {2**40} x 1, expected at most 2^48"),
            (["plan", "ss2d", "--shape", f"batch={2**40},states={2**40}"], "(rank + 2 states) = "),
            (["plan", "gated_delta_rule", "--shape", f"batch=0,length={2**40},heads={2**40}"],
             "batch x length x value_heads x K x V = 0 x"),
            (["plan", "selective_scan", "--device", "h1oo"], "did you mean 'h100'?"),
            (["plan", "ss2d", "--device", "h100", "--dtype", "float64"], "on the CPU alone"),
            (["bench", "op", "ss2d", "--shape", "batch=0"], "nothing to time"),
            (["bench", "op", "ss2d", "--seconds", "nan"], "--seconds is 'nan', expected a finite"),
            (["bench", "op", "ss2d", "--seconds", "0"], "--seconds is 0, expected more than 0"),
            (["bench", "op", "layer_norm"], "unknown operator 'layer_norm'"),
            (["bench", "network", "vmamba_fasion"], "did you mean 'vmamba_fashion'?"),
            (["bench", "network", "vmamba_fashion", "--device", "cuda"], "device cuda: "),
            (["bench", "network", "vmamba_fashion", "--precision", "fp8"], "precision 'fp8'"),
            (["bench", "network", "vmamba_fashion", "--batch", "0"], "--batch is 0"),
            (["plan", "ss2d", "--shape", "batch=2,"], "--shape size is '', expected key=value"),
            (["plan", "ss2d", "--shape", "routes=0+"], "routes is '0+', expected"),
            (["plan", "ss2d", "--shape", "routes=" + "+".join("0" * 1025), "--device", "h100"],
             "1025 routes, GPUs take up to 1024"),
            (["plan", "ss2d", "--shape", "height=65536,width=32768", "--device", "h100"], "fewer than 2^31"),
            (["plan", "selective_scan", "--shape", f"batch={2**31},channels=1,length=1", "--device", "h100"],
             f"batch is {2**31}, GPUs take less"),
            (["bench", "op", "ss2d", "--softplus"], "--softplus: expected with selective_scan alone"),
            (["bench", "network", "vmamba_fashion", "--threads", "0"], "--threads is 0, expected 1 to 1024"),
            (["bench", "network", "vmamba_fashion", "--threads", "100000"], "expected 1 to 1024"),
            (["bench", "network", "vmamba_fashion", "--size", "9" * 20], "expected an integer"),
            (["bench", "network", "vmamba_fashion", "--seconds", "1e9"], "expected more than 0 and at most"),
            (["info", "vmamba_fashion", "--size", "9" * 20], "expected an integer"),
            (["bench"], "subcommand is required (see 'linescan bench --help')"),
            (["bench", "opp"], "unknown command 'opp'; did you mean 'op'?"),
            (["bench", "op", "--bogus"], "linescan bench op --help"),
            (["trian"], "unknown command 'trian'; did you mean 'train'?"),
            (["plan", "--nowhere"], "linescan plan --help"),
        ]:
            self.assert_refused(arguments, message, LD_LIBRARY_PATH=f"{DRIVERS}/no_device")

    def test_output_that_nobody_receives_is_no_success(self):
        for arguments in (["device"], ["device", "--json"], ["--help"], ["plan", "--help"]):
            with open("/dev/full", "w") as full:
                done = subprocess.run([PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                                      timeout=120)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertEqual(done.stderr, "linescan: cannot write to standard output\n")


if __name__ == "__main__":
    unittest.main()
