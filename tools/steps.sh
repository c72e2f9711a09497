# Sourced by quickstart.sh and check.sh: named steps whose output goes to a log.
# Needs the repository root as working directory.

step_logs=build/logs
step_status=0  # exit status of the last run_step
step_log=      # its log

# run_step NAME COMMAND...: runs the command in a subshell under `set -e`, prints name, result and
# seconds, and the log's tail when it failed. Always returns 0 (the caller looks at step_status):
# called as a condition, bash would switch `set -e` off inside the command.
run_step() {
  local name=$1 begin=$SECONDS ticker=
  shift
  step_log=${name%% (*}
  step_log="$step_logs/${step_log//[^A-Za-z0-9]/-}.log"
  mkdir -p "$step_logs"
  if [[ -t 1 ]]; then
    show_seconds "$name" & ticker=$!
  fi
  set +e
  (set -e; "$@") >"$step_log" 2>&1 </dev/null
  step_status=$?
  set -e
  if [[ -n $ticker ]]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    printf '\r'
  fi
  local result=ok
  ((step_status == 0)) || result=FAILED
  printf '  %-46s %6s  %4d s\n' "$name" "$result" $((SECONDS - begin))
  if ((step_status)); then
    printf '  the end of %s:\n' "$step_log"
    tail -n 40 "$step_log" | sed 's/^/    | /'
  fi
}

# Counts up on the terminal until it is killed or the script is gone.
show_seconds() {
  local begin=$SECONDS
  while kill -0 $$ 2>/dev/null; do
    printf '\r  %-46s %6s  %4d s' "$1" ... $((SECONDS - begin))
    sleep 1
  done
}

# fail MESSAGE: one line on standard error, exit 1.
fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit 1
}

# Compile jobs: one a core, but no more than the free memory carries at 2 GB for a file that
# includes LibTorch.
build_jobs() {
  local cores free
  cores=$(nproc)
  free=$(awk '/^MemAvailable/ {print int($2 / 2000000)}' /proc/meminfo)
  if ((free < 1)); then free=1; fi
  echo $((cores < free ? cores : free))
}
