#!/usr/bin/env bash
# The arms of docs/study/declared.md at widths 64 and 128, on one GPU, in calls of at most MINUTES.
#
#   MINUTES=9 bash docs/study/gpu.sh OUT [OPTIONS]       # repeat until nothing is left to do
#
# The texts of the declaration must be in data/. Runs go into runs/study/, 16 of them at once on the
# card; the finished ones are kept in OUT, a folder a sweep, of which a copy beside this file goes on
# on another machine. OPTIONS are added to each sweep, such as the --config of a rehearsal. The head
# of benchmarks/gpu_fit.sh says how to bring packages.
set -uo pipefail
cd "$(dirname "$0")/../.."

[[ $# -gt 0 ]] || { echo "gpu.sh: error: OUT, the folder for what is kept, is missing" >&2; exit 2; }
out=$1
shift
ends=$((SECONDS + ${MINUTES:-9} * 60 - 30)) # runs save a checkpoint before they end
python=${PYTHON:-python} failed=0

# arms NAME WIDTH BUDGET SEEDS OPTIONS...: begins or continues a sweep, and keeps what is finished.
arms() {
  local config name=$1 width=$2 configs=() seconds=$((ends - SECONDS))
  [[ $seconds -gt 0 ]] || return
  for config in base declared declared_table width64 "width$width"; do
    configs+=(--config "docs/study/$config.yaml")
  done
  [[ ! -e docs/study/$name || -e runs/study/$name ]] ||
    "$python" docs/study/restore.py "$name" "runs/study/$name"
  timeout "$seconds" "$python" -m dualpath_cli sweep "${configs[@]}" --budget "$3" --seeds "$4" \
    --alphas 50 --jobs 16 --yes --out "runs/study/$name" "${@:5}"
  local code=$?
  [[ $code == 0 || $code == 124 ]] || failed=1 # 124: the time is over
  "$python" docs/study/keep.py "runs/study/$name" "$out/$name"
}

# Each arm's own rate, as chosen at width 48, the nearest: at 32 all but PureLoop's are twice these.
k4=(--loops 4 --controls wide,loop --match linear,total --tune "wide=0.0245,loop=0.049,dual=0.049")
k1=(--loops 1 --controls none --tune "dual=0.0245")
arms width64 64 600K 2-4 "${k4[@]}" "$@"
arms width64_k1 64 600K 2-4 "${k1[@]}" "$@"
arms width128 128 2.4M 2-3 "${k4[@]}" "$@"
arms width128_k1 128 2.4M 2-3 "${k1[@]}" "$@"
exit $failed
