#!/usr/bin/env bash
# The commands of dualpath on one CUDA GPU: training, sharded and not, continued, profiled; studies.
#
#   bash benchmarks/gpu_fit.sh OUT [--data FOLDER] [--recipe NAME] [--steps N] [--only 'STEP...']
#   bash benchmarks/gpu_fit.sh OUT --rehearse        # tiny, on a CPU, some minutes
#
# Each step has a time limit and a log, OUT/STEP.log; one that fails does not stop the others. The
# table at the end is also OUT/summary.md. Runs are made in WORK (default: a new folder under
# TMPDIR), for checkpoints take gigabytes; their metrics and traces are copied to OUT. With --only
# and the WORK of an earlier call, single steps are done again.
#
# Where nothing can be downloaded but torch is there, bring the other packages as wheels. On a
# machine with a network, for the Python version of the other one (here 3.12):
#
#   pip download --only-binary=:all: --python-version 3.12 --implementation cp \
#       --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
#       --platform manylinux2014_x86_64 --no-deps --dest .whl \
#       litdata lightning-utilities 'jsonargparse>=4.44' typeshed-client docstring-parser \
#       datasketch pydantic pydantic-core annotated-types typing-inspection ...
#
# (`pip show` there says what is missing; --no-deps keeps a second torch out.) Then, there:
#
#   python3 -m pip install --no-index --no-deps --target /tmp/site .whl/*.whl
#   PYTHONPATH=/tmp/site bash benchmarks/gpu_fit.sh OUT
set -uo pipefail
cd "$(dirname "$0")/.."

usage="usage: bash benchmarks/gpu_fit.sh OUT [--data FOLDER] [--recipe NAME] [--steps N]"
usage+=" [--only 'STEP...'] [--rehearse]"
mistake() { echo "gpu_fit.sh: error: $1; $usage" >&2; exit 2; }
[[ $# -ge 1 && $1 != -* ]] || mistake "OUT, the folder of the results, is missing"
out=$(realpath -m "$1"); shift
data= recipe=f80m_a50_k4 steps=16 only= rehearse=
while [[ $# -gt 0 ]]; do
  case $1 in
    --rehearse) rehearse=1; shift; continue ;;
    --data|--recipe|--steps|--only) [[ $# -ge 2 ]] || mistake "$1 has no value" ;;
    *) mistake "unknown word '$1'" ;;
  esac
  case $1 in
    --data) data=$(realpath -m "$2") ;;
    --recipe) recipe=$2 ;;
    --steps) steps=$2 ;;
    --only) only=" $2 " ;;
  esac
  shift 2
done
[[ $steps =~ ^[1-9][0-9]*$ && $((steps % 4)) = 0 ]] || mistake "--steps must be a multiple of 4, not '$steps'"

python=${PYTHON:-python3}
work=${WORK:-$(mktemp -d)}
mkdir -p "$out" "$work"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
dualpath="$python -m dualpath_cli"
texts=$work/sample/val  # what the studies read, whatever was trained on
data=${data:-$work/sample}

# The words of a run. batch_tokens are 16 micro-batches of 4 sequences.
length=4096 device=(--config h100)
if [[ $rehearse ]]; then
  length=64
  device=(--trainer.accelerator cpu --trainer.devices 1 --model.vocab_size 2048 --model.n_layers 2
          --model.d_model 32 --model.n_heads 2 --model.n_kv_heads 2 --model.max_seq_len 64
          --model.d_ffn 24 --model.d_ffn_wide 96 --model.ffn_multiple_of 8 --run.compile false)
fi
batch=$((16 * 4 * length))
fit=($dualpath fit --config "$recipe" "${device[@]}" --data.path "$data" --data.max_epochs null
     --run.dir "$work/runs" --run.recipe gpu --run.micro_batch 4 --run.batch_tokens $batch
     --run.max_tokens $((steps * batch)) --run.log_every 2 --run.gates_every 4
     --run.save_every $((steps / 2)) --run.keep 0 --run.tensorboard false
     --optim.warmup_steps 4 --trainer.precision bf16-mixed)
middle=$(printf 'checkpoints/step-%08d' $((steps / 2)))
sources=(--sources "facts=$texts/facts.jsonl" "arithmetic=$texts/arithmetic.jsonl" --max_tokens 8K)

summary=()
# step NAME SECONDS COMMAND...: runs a command within a time limit, its output to OUT/NAME.log.
step() {
  local name=$1 limit=$2; shift 2
  [[ -z $only || $only == *" $name "* ]] || return 0
  local began=$SECONDS code
  echo "== $name"
  timeout --kill-after=30 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  [[ $code = 0 ]] || tail -n 5 "$out/$name.log"
  local run=$work/runs/gpu/${name%%-*} speed=
  case $name in
    single*|fsdp*|profile) speed=$(tokens_per_second "$run") ;;
  esac
  summary+=("| $name | $code | $((SECONDS - began)) | $speed |")
}

# Median of metrics.csv without its first row, which has the time of compiling in it.
tokens_per_second() {
  cp "$1/metrics.csv" "$out/$(basename "$1")-metrics.csv" 2>/dev/null || return 0
  "$python" - "$1/metrics.csv" <<'PYTHON'
import csv, statistics, sys
rows = list(csv.DictReader(open(sys.argv[1])))[1:]
print(f"{statistics.median(float(row['tokens_per_second']) for row in rows):,.0f}" if rows else "")
PYTHON
}

# same LEFT RIGHT: whether a continued run has the losses of the one that it continues.
same() {
  "$python" - "$@" <<'PYTHON'
import csv, sys
left, right = ({r["step"]: float(r["loss"]) for r in csv.DictReader(open(p))} for p in sys.argv[1:])
assert left and left.keys() == right.keys(), (sorted(left), sorted(right))
gap = max(abs(left[s] - right[s]) / left[s] for s in left)
print(f"largest relative difference of a loss: {gap:.1e}")
sys.exit(gap > 1e-3)  # GPUs add up in an order of their own
PYTHON
}
# continued NAME: goes back to the middle of a run, trains its second half again, compares.
continued() {
  local run=$work/runs/gpu/$1
  cp "$run/metrics.csv" "$work/$1-whole.csv" &&
  "${fit[@]}" --run.name "$1" --trainer.strategy "$1" --ckpt_path "$run/$middle" &&
  same "$work/$1-whole.csv" "$run/metrics.csv"
}
export -f continued same

step data 300 "$python" -m data_prep --source sample --out "$work/sample"
step single 540 "${fit[@]}" --run.name single --trainer.strategy single
export python work middle; export words=$(printf '%q ' "${fit[@]}")
step single-continued 540 bash -c 'eval "fit=($words)"; continued single'
step fsdp 540 "${fit[@]}" --run.name fsdp --trainer.strategy fsdp
step fsdp-continued 540 bash -c 'eval "fit=($words)"; continued fsdp'
# One micro-batch a step, or the trace is too large to be opened.
step profile 400 "${fit[@]}" --run.name profile --trainer.strategy single --run.profile true \
  --run.batch_tokens $((4 * length)) --run.max_tokens $((12 * 4 * length)) --run.save_every 12
cp "$work"/runs/gpu/profile/profile/* "$out" 2>/dev/null
step validate 300 $dualpath validate --ckpt_path "$work/runs/gpu/single" \
  --data.val.facts "$texts/facts.jsonl" --data.val_tokens 8K
step validate-fsdp 300 $dualpath validate --ckpt_path "$work/runs/gpu/fsdp" \
  --data.val.facts "$texts/facts.jsonl" --data.val_tokens 8K
step ablate 400 $dualpath ablate --ckpt_path "$work/runs/gpu/single" "${sources[@]}" \
  --out "$work/ablate"
step routing 400 $dualpath routing --ckpt_path "$work/runs/gpu/single" "${sources[@]}" \
  --tagger none --out "$work/routing"
for command in generate sweep; do
  reason="skipped: dualpath has no such command"
  $dualpath "$command" --help >/dev/null 2>&1 && reason="not run: it has no step here yet"
  summary+=("| $command | $reason | | |")
done

{
  echo "| step | exit code | seconds | tokens/s |"
  echo "| --- | ---: | ---: | ---: |"
  printf '%s\n' "${summary[@]}"
} | tee "$out/summary.md"
# Lines of failed steps have a code other than 0 in their second column.
! grep -qE '^\| [a-z-]+ \| [1-9]' "$out/summary.md"
