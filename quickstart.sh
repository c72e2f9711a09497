#!/usr/bin/env bash
# From a fresh clone to a trained network in one command.
#
#   ./quickstart.sh [--minutes M] [--run-root DIR] [--cpu-only]
#
# Installs what is missing, builds the program, trains a small VMamba on Fashion-MNIST, judges it on
# the 10 000 test images, and names what is on a few of them. A second call starts training within
# seconds, in a new run folder. On a machine with an NVIDIA GPU the kernels for it are built as well,
# and the network is trained there.
#
#   --minutes M      minutes of training (default 2; a fraction is fine)
#   --run-root DIR   where the numbered run folders go (default runs)
#   --cpu-only       do not use the NVIDIA GPU, if there is one
set -euo pipefail
called_from=$PWD
cd "$(dirname "$0")"
. tools/steps.sh
. tools/setup.sh

minutes=2 run_root=runs model=vmamba_fashion cpu_only=
while (($#)); do
  case $1 in
    --minutes | --run-root)
      (($# > 1)) || fail "$1 needs a value"
      [[ $1 == --minutes ]] && minutes=$2 || run_root=$2
      shift 2 ;;
    --cpu-only) cpu_only=yes; shift ;;
    -h | --help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "unknown option '$1' (see --help)" ;;
  esac
done
[[ $minutes =~ ^[0-9]*\.?[0-9]+$ && $minutes =~ [1-9] ]] ||
  fail "--minutes $minutes: expected a positive number"

[[ $run_root == runs || $run_root == /* ]] || run_root=$called_from/$run_root

# The folder after the highest number there.
next_run() {
  local last=0 folder number
  for folder in "$run_root"/[0-9]*; do
    number=${folder##*/}
    [[ $number =~ ^[0-9]+$ ]] && ((10#$number > last)) && last=$((10#$number))
  done
  printf '%s/%03d' "$run_root" $((last + 1))
}

configure() {
  local options=(-DLINESCAN_PYTHON="$torch_python" -DLibTorch_DIR="$torch_dir")
  [[ $preset != cuda ]] || options+=(-DCMAKE_CUDA_COMPILER="$nvcc")
  # Whoever builds the tests as well keeps them.
  [[ -e build/$preset/CMakeCache.txt ]] || options+=(-DLINESCAN_TESTS=OFF -DLINESCAN_EXAMPLES=OFF)
  cmake --preset "$preset" "${options[@]}"
}

echo "Linescan quickstart: $minutes minutes of training on Fashion-MNIST, logs in $step_logs/"
echo "[1/5] set-up"
preset=release device=cpu targets=(linescan_program)
if [[ -z $cpu_only ]]; then
  obstacle=$(why_no_gpu)
  if [[ -z $obstacle ]]; then
    preset=cuda device=cuda targets+=(linescan_torch_cuda)
  else
    echo "  training on the CPU: $obstacle"
  fi
fi
if [[ $preset == cuda ]]; then
  set_up cuda
  if ! install_nvcc; then
    echo "  training on the CPU: nvcc 13 is not here and could not be installed"
    preset=release device=cpu targets=(linescan_program)
  fi
else
  set_up slim
fi

echo "[2/5] build"
run_step "configure" configure
((step_status == 0)) || fail "CMake could not configure build/$preset"
run_step "compile (first time: several minutes)" \
  cmake --build --preset "$preset" --target "${targets[@]}" --parallel "$(build_jobs)"
((step_status == 0)) || fail "the build failed"
program=build/$preset/bin/linescan

run=$(next_run)
mkdir -p "$run_root"
echo "[3/5] train $model into $run"
"$program" train --data fashion-mnist --model "$model" --minutes "$minutes" --device "$device" \
  --run "$run"

echo "[4/5] evaluate on the 10 000 test images"
"$program" eval "$run" --device "$device"

echo "[5/5] classify a few of them, written as PNG files named after what they are"
"$program" eval "$run" --export-images 8 "$run/samples"
"$program" classify "$run" "$run/samples" --topk 2 --device "$device"

echo
echo "Run folder  $run"
echo "Report      $run/report.html"
