"""Whether tools/setup.sh sees the GPU that a driver shows. Run by CTest with the folder of the tests'
own drivers in LINESCAN_TEST_DRIVERS."""

import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVERS = os.environ["LINESCAN_TEST_DRIVERS"]


def why_no_gpu(driver):
    done = subprocess.run(["bash", "-euc", ". tools/setup.sh; why_no_gpu"], cwd=ROOT, text=True,
                          capture_output=True, check=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": f"{DRIVERS}/{driver}"})
    return done.stdout.strip()


class SetUpGpu(unittest.TestCase):
    def test_a_driver_with_gpus_is_no_obstacle(self):
        self.assertEqual(why_no_gpu("two_gpus"), "")

    def test_what_is_the_matter_is_said(self):
        self.assertEqual(why_no_gpu("no_device"), "the driver shows no GPU")
        self.assertEqual(why_no_gpu("broken"), "the driver fails with error 999")
        self.assertEqual(why_no_gpu("old"), "the driver lacks functions that CUDA 13 needs")


if __name__ == "__main__":
    unittest.main()
