#!/usr/bin/env bash
# The one command that says whether the tree is in order: formatting, layers, builds, all tests,
# examples, fuzzers, a short training. From a clean clone it first installs what it needs.
#
#   ./check.sh [--long] [--gpu]
#
#   --long   also train for 2 and 4 minutes and demand 88 % and 90 % on the Fashion-MNIST test images, and 99 % after 4 minutes on
#            recall and on copying
#   --gpu    also build with CUDA kernels, run all tests with the GPU of this machine, and the kernels'
#            own under compute-sanitizer; fails without a GPU
#
# Every step's output is in build/logs/. The last line counts tests (a step without tests is one);
# the exit status is 1 if anything failed. Where Python cannot import torch its tests are skipped,
# and under CI=true that is a failure.
set -euo pipefail
cd "$(dirname "$0")"
. tools/steps.sh
. tools/setup.sh

long= gpu=
while (($#)); do
  case $1 in
    --long) long=yes; shift ;;
    --gpu) gpu=yes; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "unknown option '$1' (see --help)" ;;
  esac
done

passed=0 failed=0 skipped=0
failed_steps=()
jobs=$(build_jobs)
install_prefix=$PWD/build/install

# check NAME COMMAND...: a step that counts as one test.
check() {
  run_step "$@"
  if ((step_status)); then
    failed=$((failed + 1)) failed_steps+=("$1")
  else
    passed=$((passed + 1))
  fi
}

# check_tests NAME JUNIT COMMAND...: a step whose tests are counted from the JUnit file it writes.
check_tests() {
  local name=$1 junit=$2 tests bad skips
  shift 2
  rm -f "$junit"
  run_step "$name" "$@"
  tests=$(junit_sum tests "$junit") bad=$(junit_sum 'failures|errors' "$junit")
  skips=$(junit_sum skipped "$junit")
  if ((step_status && bad == 0)) || ((tests == 0)); then
    bad=1 tests=$((tests + 1))  # it broke down outside of any test, or there was none
  fi
  passed=$((passed + tests - bad - skips)) failed=$((failed + bad)) skipped=$((skipped + skips))
  ((bad == 0)) || failed_steps+=("$name")
  printf '    %d tests, %d failed, %d skipped\n' "$tests" "$bad" "$skips"
}

# The sum of one attribute over the test suites of a JUnit file; 0 if there is no file.
junit_sum() {
  [[ -e $2 ]] || { echo 0; return; }
  tr '\n\t' '  ' <"$2" | { grep -o '<testsuite [^>]*>' || true; } |
    { grep -oE " ($1)=\"[0-9]+\"" || true; } | { grep -oE '[0-9]+' || true; } |
    awk '{sum += $1} END {print sum + 0}'
}

skip() {
  if [[ ${CI:-} == true ]]; then
    failed=$((failed + 1)) failed_steps+=("$1: skipped under CI=true")
    printf '  %-46s FAILED  skipped under CI=true: %s\n' "$1" "$2"
  else
    skipped=$((skipped + 1))
    printf '  %-46s %6s  %s\n' "$1" skipped "$2"
  fi
}

our_scripts() {
  printf '%s\n' quickstart.sh check.sh .ci/run tools/*.sh
}

check_formatting() {
  find linescan tests bench examples tools -regex '.*\.\(h\|cpp\|cu\|cuh\)' | sort |
    xargs clang-format-14 --dry-run -Werror
}

check_scripts() {
  local script
  for script in $(our_scripts); do bash -n "$script"; done
  python3 -m unittest discover -s tests/tools -p '*_test.py'
}

# The framework-free layers; a file that includes LibTorch would take a minute each.
check_lint() {
  find linescan/{base,device,files,ops} -name '*.cpp' | sort |
    xargs -P "$jobs" -n 4 clang-tidy-14 -p build/debug --quiet --warnings-as-errors='*'
}

# tests_of PRESET PROCESSES: its tests, so many at once. Each has two threads, however many cores there are: else
# they crowd each other out.
tests_of() {
  OMP_NUM_THREADS=2 ctest --preset "$1" --parallel "$2" --no-tests=error \
    --output-junit "$PWD/$step_logs/$1.xml"
}

build() {
  local preset=$1
  shift
  cmake --preset "$preset" -DLINESCAN_TESTS=ON "$@"
  cmake --build --preset "$preset" --parallel "$jobs"
}

# A project outside of the tree sees nothing but the installed package.
build_outside() {
  rm -rf "$install_prefix" build/outside
  cmake --install build/release --prefix "$install_prefix"
  cmake -S examples/outside -B build/outside -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$install_prefix"
  cmake --build build/outside --parallel "$jobs"
  build/outside/outside
  "$install_prefix/bin/linescan" --version
}

# python_tests PRESET: against that build's library and program.
python_tests() {
  LINESCAN_LIBRARY=$PWD/build/$1/lib/liblinescan_torch.so LINESCAN_PROGRAM=$PWD/build/$1/bin/linescan \
    PYTHONPATH=python "$torch_python" -m pytest -q --junitxml="build/logs/python-$1.xml" \
    -o python_files='*_test.py' -o cache_dir=build/pytest tests/python
}

# Tests of kernels, of every table the first ten cases: each tool slows a kernel down a hundredfold. racecheck, the slowest, takes the
# tables and a few sweeps over plans, of ss2d only float32: its packed kernels read sums that others write and throw them away
# (docs/cuda.md).
sanitize() {
  local cases='*Gpu*-*/??:*/???'
  [[ $1 != racecheck ]] ||
    cases='*Gpu.*/?:*GpuPlans.Walkers*:*GpuPlans.*WholeRows*-*Layouts/Ss2d*:OneRoute/*:SeveralStates/*:*Planes*/*'
  LINESCAN_TEST_ONCE=1 "$compute_sanitizer" --tool "$1" --error-exitcode 1 build/cuda/bin/ops_gpu_test \
    --gtest_filter="$cases"
}

echo "Linescan check: logs in $step_logs/"
if [[ -n $gpu ]]; then
  obstacle=$(why_no_gpu)
  [[ -z $obstacle ]] || fail "--gpu: $obstacle"
fi
set_up full
if [[ -n $gpu ]]; then
  set_up_nvcc
  set_up_sanitizer
fi
mkdir -p "$step_logs"

check "formatting" check_formatting
check "layers" tools/check_layers
check "scripts" check_scripts

check "debug build (sanitizers)" build debug
if ((step_status == 0)); then
  check_tests "debug tests" "$step_logs/debug.xml" tests_of debug "$(nproc)"
  check "lint of base, device, files, ops" check_lint
fi
check "fuzzers, briefly" tools/fuzz.sh

check "release build" build release -DLINESCAN_EXAMPLES=ON -DLINESCAN_PYTHON="$torch_python" \
  -DLibTorch_DIR="$torch_dir"
if ((step_status == 0)); then
  check_tests "release tests and examples" "$step_logs/release.xml" tests_of release "$(nproc)"
  check "installed package, project outside the tree" build_outside
  if "$torch_python" -c 'import torch, numpy, pytest' 2>/dev/null; then
    check_tests "Python operator tests" "$step_logs/python-release.xml" \
      python_tests release
    check "Python example" env PYTHONPATH=python "$torch_python" examples/python_scan.py
  else
    skip "Python operator tests" "torch cannot be imported by $torch_python"
  fi
  check "training smoke test" tools/check_training --epochs 1 --at-least 0.75
  check "examples in the documentation" tools/run_readme_examples --python "$torch_python" \
    --prefix "$install_prefix" README.md docs/*.md
  if [[ -n $long ]]; then
    check "accuracy after 2 minutes of training" tools/check_training --minutes 2 --at-least 0.88
    check "accuracy after 4 minutes of training" tools/check_training --minutes 4 --at-least 0.90
    check "recall after 4 minutes of training" tools/check_training --task recall --minutes 4 \
      --at-least 0.99
    check "copying after 4 minutes of training" tools/check_training --task copying --minutes 4 \
      --at-least 0.99
  fi
fi

if [[ -n $gpu ]]; then
  check "CUDA build" build cuda -DCMAKE_CUDA_COMPILER="$nvcc" -DLINESCAN_PYTHON="$torch_python" \
    -DLibTorch_DIR="$torch_dir"
  if ((step_status == 0)); then
    # Every process has a context of its own in the GPU's memory.
    check_tests "tests of the CUDA build" "$step_logs/cuda.xml" tests_of cuda 4
    check_tests "Python operator tests on the GPU" "$step_logs/python-cuda.xml" python_tests cuda
    for tool in memcheck racecheck initcheck synccheck; do
      check "compute-sanitizer $tool" sanitize "$tool"
    done
    check "training on the GPU" tools/check_training --program build/cuda/bin/linescan \
      --device cuda --minutes 0.5 --at-least 0.88
  fi
fi

echo
for name in "${failed_steps[@]}"; do echo "FAILED: $name"; done
echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
