#!/usr/bin/env bash
# Feeds broken files to every reader of linescan/files, under the address and undefined-behaviour
# sanitizers: tools/fuzz.sh [seconds per target, default 5] [target...]
# Needs clang++ with libFuzzer. As many targets at a time as there are cores. Ends with 1 after a crash and says
# where the input is kept.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-5}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: seconds are '$seconds', expected a number" >&2; exit 2; }
shift || true
targets=("$@")
[[ $# -gt 0 ]] || targets=(safetensors image idx toml)

build=build/fuzz
data=tests/files/data
mkdir -p "$build/objects"
launcher=$(command -v ccache || true)
flags=(-std=c++20 -g -O1 -fno-omit-frame-pointer -I. -DFMT_SHARED -fno-sanitize-recover=all)

# The readers once, with coverage; each target then only adds its own few lines. Objects are made
# anew where their source, this script or any header is newer.
compile() {
  $launcher clang++ "${flags[@]}" -fsanitize=fuzzer-no-link,address,undefined -c "$1" -o "$2"
}
newest_header=$(ls -t linescan/base/*.h linescan/files/*.h | head -1)
objects=()
jobs=()
for source in linescan/base/*.cpp linescan/files/*.cpp; do
  object="$build/objects/$(echo "${source%.cpp}" | tr / _).o"
  objects+=("$object")
  if [[ ! -e $object || $source -nt $object || $0 -nt $object || $newest_header -nt $object ]]; then
    compile "$source" "$object" &
    jobs+=($!)
    if (( ${#jobs[@]} >= $(nproc) )); then wait "${jobs[0]}"; jobs=("${jobs[@]:1}"); fi
  fi
done
for job in "${jobs[@]}"; do wait "$job"; done

# Valid files from the tests are where the fuzzer starts; what it learns stays in build/.
seeds_of() {
  case $1 in
    safetensors) ls "$data"/*.safetensors ;;
    image) ls "$data"/*.jpg "$data"/{gray1,gray4,gray8_transparent,gray_alpha,huge_chunk,interlaced,palette,rgb16,rgba}.png ;;
    idx) ls "$data"/*.idx "$data"/*.idx.gz ;;
    toml) ls "$data"/*.toml ;;
    *) echo "fuzz: unknown target '$1' (known: safetensors image idx toml)" >&2; exit 2 ;;
  esac
}

fuzz() {
  local target=$1 seeds options log
  seeds=$(seeds_of "$target")
  clang++ "${flags[@]}" -fsanitize=fuzzer,address,undefined "tests/fuzz/${target}_fuzz.cpp" \
    "${objects[@]}" -o "$build/${target}_fuzz" -lfmt -lpng -ljpeg -lz
  mkdir -p "$build/corpus/$target"
  cp $seeds "$build/corpus/$target/"
  options=(-max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=4096 -print_final_stats=1
           -artifact_prefix="$build/crashes/$target-")
  [[ -e tests/fuzz/$target.dict ]] && options+=(-dict="tests/fuzz/$target.dict")
  log="$build/$target.log"
  if ! "$build/${target}_fuzz" "${options[@]}" "$build/corpus/$target" > "$log" 2>&1; then
    tail -40 "$log" >&2
    echo "fuzz: $target failed; the input lies in $build/crashes, the log in $log" >&2
    return 1
  fi
  echo "fuzz: $target: $(awk '/number_of_executed_units/ {print $2}' "$log") inputs in $seconds s, no crash"
}

for target in "${targets[@]}"; do seeds_of "$target" > /dev/null; done  # refuses unknown names
mkdir -p "$build/corpus" "$build/crashes"
running=()
failed=0
finish_first() { wait "${running[0]}" || failed=1; running=("${running[@]:1}"); }
for target in "${targets[@]}"; do
  (( ${#running[@]} < $(nproc) )) || finish_first
  fuzz "$target" &
  running+=($!)
done
while (( ${#running[@]} > 0 )); do finish_first; done
exit "$failed"
