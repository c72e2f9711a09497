#!/usr/bin/env bash
# Installs what a machine lacks to build and run Linescan, and nothing that is already there.
#
#   tools/setup.sh slim    what the program needs: compiler, libraries, data set, LibTorch
#   tools/setup.sh cuda    the same for a machine with an NVIDIA GPU: besides, CUDA's libraries and nvcc 13
#   tools/setup.sh full    besides, what check.sh needs: test tools and a torch that Python can import
#
# Debian packages come through apt-get (as root or with sudo). LibTorch comes from the PyTorch wheel
# in the private environment .venv; a torch >= 2.11 that is already active is used instead.
# quickstart.sh and check.sh source this file for its functions.

torch_release=2.11.0
# libtorch_cpu of that wheel loads these two of NVIDIA's libraries even where there is no GPU.
slim_wheels=("torch==$torch_release" nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
cuda_wheels=("torch==$torch_release")
full_wheels=("torch==$torch_release" 'numpy>=2' 'pytest>=8')
# Where the machine has no nvcc 13: the five that compile and link a kernel, of CUDA 13.0 as torch is.
nvcc_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96)
sanitizer_wheels=(nvidia-cuda-sanitizer-api==13.5.25)

slim_packages=(g++ cmake ninja-build python3 python3-venv libhwy-dev libcli11-dev
  nlohmann-json3-dev libtomlplusplus-dev libspdlog-dev libfmt-dev libjpeg-dev libpng-dev zlib1g-dev
  dataset-fashion-mnist)
cuda_packages=("${slim_packages[@]}")
# python3-dev: torch.compile builds an extension module.
full_packages=("${slim_packages[@]}" libgtest-dev clang clang-format-14 clang-tidy-14
  libclang-rt-14-dev python3-dev)

# Measured on a bare Debian 12; free disk space includes downloads and the build.
slim_sizes="packages 133 MB, LibTorch 544 MB" slim_disk_gb=4
cuda_sizes="packages 133 MB, PyTorch with CUDA 2.8 GB" cuda_disk_gb=12
full_sizes="packages 206 MB, PyTorch 2.7 GB" full_disk_gb=12

environment=.venv
environment_stamp=$environment/linescan-setup

# Prints "VERSION FOLDER" of the torch that PYTHON has (2.11 or later, with LibTorch's headers);
# fails if there is none. Does not import it: the slim set-up cannot be imported.
torch_of() {
  "$1" - 2>/dev/null <<'PYTHON'
import importlib.util, pathlib, re, sys
spec = importlib.util.find_spec("torch")
if not spec or not spec.submodule_search_locations:
    sys.exit(1)
folder = pathlib.Path(spec.submodule_search_locations[0])
version = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", (folder / "version.py").read_text())
usable = (folder / "lib/libtorch_cpu.so").exists() and (folder / "include/torch").exists()
if not usable or (int(version[2]), int(version[3])) < (2, 11):
    sys.exit(1)
print(version[1], folder)
PYTHON
}

# serves MODE PYTHON: whether this Python's torch is enough.
serves() {
  torch_of "$2" >/dev/null || return 1
  case $1 in
    slim) ;;
    cuda) "$2" -c 'import torch; assert torch.version.cuda.startswith("13.")' 2>/dev/null ;;
    full) "$2" -c 'import torch, numpy, pytest' 2>/dev/null ;;
  esac
}

environment_contents() {
  local -n wheels=$1_wheels
  printf '%s: %s\n' "$1" "${wheels[*]}"
}

# environment_ready MODE: whether .venv was completed in that mode, or in a larger one.
environment_ready() {
  [[ -e $environment_stamp && -x $environment/bin/python ]] || return 1
  local have mode
  have=$(<"$environment_stamp")
  local larger="slim cuda full"
  for mode in $1 ${larger#*"$1"}; do
    [[ $have != "$(environment_contents "$mode")" ]] || return 0
  done
  return 1
}

# find_torch MODE: sets torch_python, torch_version and torch_dir; fails if an installation is due.
# The order is that of cmake/FindLibTorch.cmake: what is active, .venv, python3 on the PATH.
find_torch() {
  torch_python=
  local active=${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}
  if [[ -n $active && ! $VIRTUAL_ENV -ef $environment ]] && serves "$1" "$active"; then
    torch_python=$active
  elif environment_ready "$1"; then
    torch_python=$PWD/$environment/bin/python
  elif command -v python3 >/dev/null && serves "$1" python3; then
    torch_python=$(command -v python3)
  fi
  [[ -n $torch_python ]] && read -r torch_version torch_dir < <(torch_of "$torch_python")
}

# Sets missing_packages; an empty array where everything is installed.
find_missing_packages() {
  local -n wanted=$1_packages
  local package
  missing_packages=()
  for package in "${wanted[@]}"; do
    [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      missing_packages+=("$package")
  done
}

# Says in one line what stands in the way, if something does.
check_machine() {
  [[ $(uname -sm) == "Linux x86_64" ]] ||
    fail "this machine is $(uname -sm); Linescan needs Linux on x86-64"
  grep -qw avx2 /proc/cpuinfo ||
    fail "this processor has no AVX2; Linescan needs AVX2 or better"
  command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
    fail "apt-get not found; the set-up knows Debian's packages only (list: tools/setup.sh)"
  local ID=unknown VERSION_ID=
  # shellcheck disable=SC1091
  [[ ! -e /etc/os-release ]] || . /etc/os-release
  [[ $ID == debian && $VERSION_ID == 12 ]] ||
    echo "note: written for Debian 12; this is $ID $VERSION_ID, package names may differ"
}

check_disk() {
  local free_gb
  free_gb=$(df -Pk . | awk 'NR == 2 {print int($4 / 1000000)}')
  ((free_gb >= $1)) || fail "$free_gb GB of disk space are free here; the set-up needs $1 GB"
}

check_rights() {
  ((EUID == 0)) || command -v sudo >/dev/null ||
    fail "neither root nor sudo; run as root: apt-get install ${missing_packages[*]}"
}

install_packages() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120)
  "${apt[@]}" update
  "${apt[@]}" install -y --no-install-recommends "${missing_packages[@]}"
}

install_environment() {
  local -n wheels=$1_wheels
  local options=()
  [[ $1 != slim ]] || options+=(--no-deps)
  pip_install "${options[@]}" "${wheels[@]}"
  environment_contents "$1" >"$environment_stamp"
}

# pip_install ARGUMENTS...: into .venv. Fails if pip does, also where the shell does not end at an error.
pip_install() {
  [[ -x $environment/bin/python ]] || /usr/bin/python3 -m venv "$environment"
  # pip unpacks where TMPDIR says, and /tmp may be a small memory disk.
  local scratch=$PWD/$environment/tmp status=0
  mkdir -p "$scratch"
  TMPDIR=$scratch "$environment/bin/python" -m pip install --disable-pip-version-check --no-input \
    --progress-bar off "$@" || status=$?
  rm -rf "$scratch"
  return "$status"
}

# cuda_tool NAME: prints the paths where that tool of CUDA may be: PATH, /usr/local/cuda, our wheels.
cuda_tool() {
  command -v "$1" || true
  printf '%s\n' "/usr/local/cuda/bin/$1" "$PWD/$environment"/lib/python*/site-packages/nvidia/cu13/bin/"$1"
}

# Sets nvcc to one of CUDA 13; fails if there is none.
find_nvcc() {
  for nvcc in ${CUDACXX:-} $(cuda_tool nvcc); do
    [[ ! -x $nvcc ]] || [[ $("$nvcc" --version) != *"release 13."* ]] || return 0
  done
  return 1
}

# Sets compute_sanitizer to one of 2026 or later, whose racecheck follows named barriers; fails if there is none.
find_sanitizer() {
  for compute_sanitizer in $(cuda_tool compute-sanitizer); do
    [[ ! -x $compute_sanitizer ]] ||
      [[ ! $("$compute_sanitizer" --version) =~ Version\ 20(2[6-9]|[3-9][0-9])\. ]] || return 0
  done
  return 1
}

# Sets nvcc as find_nvcc does, installing it if need be; fails if it cannot be installed.
install_nvcc() {
  find_nvcc && return
  run_step "nvcc 13 (from PyPI)" pip_install --no-deps "${nvcc_wheels[@]}"
  ((step_status == 0)) && find_nvcc
}

set_up_nvcc() {
  install_nvcc || fail "pip could not install nvcc into $environment"
}

set_up_sanitizer() {
  find_sanitizer && return
  run_step "compute-sanitizer (from PyPI)" pip_install --no-deps "${sanitizer_wheels[@]}"
  ((step_status == 0)) && find_sanitizer ||
    fail "pip could not install compute-sanitizer into $environment"
}

# why_no_gpu: prints in one line what keeps the kernels from running here; nothing if nothing does. Asks
# the driver itself: nvidia-smi is missing in many containers.
why_no_gpu() {
  if ! command -v python3 >/dev/null; then
    nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || echo "nvidia-smi shows no GPU"
    return
  fi
  python3 - 2>/dev/null <<'PYTHON' || echo "the driver lacks functions that CUDA 13 needs"
import ctypes, sys
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(print("there is no NVIDIA driver"))
def ask(function, *arguments):
    value = ctypes.c_int()
    error = getattr(driver, function)(ctypes.byref(value), *arguments)
    return value.value if error == 0 else sys.exit(print(f"the driver's {function} fails with error {error}"))
if error := driver.cuInit(0):
    sys.exit(print("the driver shows no GPU" if error == 100 else f"the driver fails with error {error}"))
if ask("cuDeviceGetCount") == 0:
    sys.exit(print("the driver shows no GPU"))
if (version := ask("cuDriverGetVersion")) < 13000:
    sys.exit(print(f"the driver is for CUDA {version // 1000}.{version % 1000 // 10}; 13.0 (release 580) is needed"))
device = ask("cuDeviceGet", 0)
capability = ask("cuDeviceGetAttribute", 75, device), ask("cuDeviceGetAttribute", 76, device)
if capability < (8, 0):
    print("the GPU's compute capability is {}.{}; the kernels need 8.0".format(*capability))
PYTHON
}

# set_up MODE: the whole of it, as steps. Sets torch_python, torch_version, torch_dir.
set_up() {
  local mode=$1 sizes=$1_sizes disk=$1_disk_gb torch_due=
  check_machine
  find_missing_packages "$mode"
  find_torch "$mode" || torch_due=yes
  if ((${#missing_packages[@]})) || [[ -n $torch_due ]]; then
    echo "  to install: ${#missing_packages[@]} Debian packages${torch_due:+ and torch in $environment};" \
      "downloads on a bare machine: ${!sizes}"
    check_disk "${!disk}"
  fi
  if ((${#missing_packages[@]})); then
    check_rights
    ((EUID == 0)) || sudo -v || fail "sudo was refused; as root: apt-get install ${missing_packages[*]}"
    run_step "Debian packages" install_packages
    ((step_status == 0)) || fail "apt-get could not install: ${missing_packages[*]}"
    find_torch "$mode" || torch_due=yes  # without python3 it could not be known
  fi
  if [[ -n $torch_due ]]; then
    run_step "LibTorch $torch_release ($mode)" install_environment "$mode"
    if ((step_status)) && [[ $mode == full ]] && find_torch slim; then
      echo "  note: only the slim LibTorch is here; Python cannot import it"
    else
      ((step_status == 0)) || fail "pip could not install torch $torch_release into $environment"
      find_torch "$mode" || fail "$environment has no usable torch; delete the folder and try again"
    fi
  fi
  echo "  torch $torch_version of $torch_python"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  cd "$(dirname "$0")/.."
  . tools/steps.sh
  case ${1:-} in
    slim | full) set_up "$1" ;;
    cuda) set_up cuda; set_up_nvcc ;;
    *) sed -n '4,6s/^# *//p' "$0"; exit 2 ;;
  esac
fi
