#!/usr/bin/env bash
# The commands of dualpath on one CUDA GPU: training, sharded and not, continued, profiled; studies.
#
#   bash benchmarks/gpu_fit.sh OUT [--data FOLDER] [--recipe NAME] [--steps N] [--only 'STEP...']
#   bash benchmarks/gpu_fit.sh OUT --rehearse        # tiny, on a CPU, some minutes
#
# Each step has a time limit and a log, OUT/STEP.log; one that fails does not stop the others. The
# table, OUT/summary.md, grows by a row a step. Runs are made in WORK (default: a new folder under
# TMPDIR), for checkpoints take gigabytes; their metrics and traces are copied to OUT. Where a call
# may not last for all of it, --only takes some steps, and WORK the folder of the earlier calls:
#
#   WORK=/tmp/work bash benchmarks/gpu_fit.sh OUT --only 'data single single-continued profile'
#
# Where nothing can be downloaded but PyTorch and Lightning are there, bring the other packages as
# wheels, 25 MB. On a machine with a network, for the Python version of the other one (here 3.12):
#
#   pip download --no-deps --dest .whl --only-binary=:all: \
#       --python-version 3.12 --implementation cp \
#       --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
#       --platform manylinux2014_x86_64 \
#       litdata boto3 botocore jmespath s3transfer obstore \
#       jsonargparse docstring-parser typeshed-client \
#       pydantic pydantic-core annotated-types typing-inspection datasketch
#
# (`pip list` there says what else of pyproject.toml is missing; --no-deps keeps a second PyTorch
# out, and needs pydantic-core in the version that pydantic names.) Then, there:
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
length=4096 device=(--config cluster_1)
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
sources=(--sources "facts=$texts/facts.jsonl" "arithmetic=$texts/arithmetic.jsonl" --max-tokens 8K)

summary=$out/summary.md failed=0
[[ -e $summary ]] ||
  printf '%s\n' "| step | exit code | seconds | tokens/s |" "| --- | ---: | ---: | ---: |" >"$summary"

# step NAME SECONDS COMMAND...: runs a command within a time limit, its output to OUT/NAME.log.
step() {
  local name=$1 limit=$2; shift 2
  [[ -z $only || $only == *" $name "* ]] || return 0
  local began=$SECONDS code speed= metrics=$work/runs/gpu/${name%-continued}/metrics.csv
  echo "== $name"
  timeout --kill-after=30 "$limit" "$@" >"$out/$name.log" 2>&1
  code=$?
  if [[ $code != 0 ]]; then
    failed=1
    tail -n 5 "$out/$name.log"
  elif [[ -e $metrics ]]; then
    cp "$metrics" "$out/$name-metrics.csv"
    speed=$("$python" -c "$median_speed" "$metrics")
  fi
  echo "| $name | $code | $((SECONDS - began)) | $speed |" >>"$summary"
}

# Median of metrics.csv without its first row, which has the time of compiling in it.
median_speed='
import csv, statistics, sys
speeds = [float(row["tokens_per_second"]) for row in csv.DictReader(open(sys.argv[1]))][1:]
print(f"{statistics.median(speeds):,.0f}")
'
# Whether a run that was continued has the losses of the one that went through; GPUs add up in
# varying order.
compare='
import csv, sys
one, other = ({r["step"]: float(r["loss"]) for r in csv.DictReader(open(p))} for p in sys.argv[1:])
assert one.keys() == other.keys(), (sorted(one), sorted(other))
gap = max(abs(one[step] - other[step]) / one[step] for step in one)
print(f"largest relative difference of a loss: {gap:.1e}")
sys.exit(not gap <= 1e-3)
'

step data 300 "$python" -m data_prep --source sample --out "$work/sample"
for strategy in single fsdp; do
  words=(--run.name "$strategy" --trainer.strategy "$strategy")
  step $strategy 540 "${fit[@]}" "${words[@]}"
  step $strategy-continued 540 "${fit[@]}" "${words[@]}" \
    --ckpt-path "$work/runs/gpu/$strategy/$middle"
  step $strategy-compared 60 "$python" -c "$compare" "$out/$strategy-metrics.csv" \
    "$out/$strategy-continued-metrics.csv"
done
# One micro-batch a step, or the trace is too large to be opened.
step profile 400 "${fit[@]}" --run.name profile --trainer.strategy single --run.profile true \
  --run.batch_tokens $((4 * length)) --run.max_tokens $((12 * 4 * length)) --run.save_every 12
cp "$work"/runs/gpu/profile/profile/* "$out" 2>/dev/null
for strategy in single fsdp; do
  step validate-$strategy 300 $dualpath validate --ckpt-path "$work/runs/gpu/$strategy" \
    --data.val.facts "$texts/facts.jsonl" --data.val_tokens 8K
done
step ablate 400 $dualpath ablate --ckpt-path "$work/runs/gpu/single" "${sources[@]}" \
  --out "$work/ablate"
step routing 400 $dualpath routing --ckpt-path "$work/runs/gpu/single" "${sources[@]}" \
  --tagger none --out "$work/routing"
step generate 300 $dualpath generate --ckpt-path "$work/runs/gpu/single" --prompt "Tom has" \
  --greedy --max-new-tokens 20 --compile
# Small runs one after another, then four at once on the same device: what sharing it buys.
cat >"$work/shared.yaml" <<EOF
trainer: {accelerator: $([[ $rehearse ]] && echo cpu || echo auto), precision: bf16-mixed}
run: {compile: $([[ $rehearse ]] && echo false || echo true), max_tokens: $([[ $rehearse ]] && echo 20480 || echo 2048000), tensorboard: false}
data: {path: "$data", max_epochs: null, val: {facts: "$texts/facts.jsonl",
       arithmetic: "$texts/arithmetic.jsonl", prose: "$texts/prose.jsonl"}}
model: {vocab_size: $([[ $rehearse ]] && echo 2048 || echo 50304)}
optim: {warmup_steps: 4}
EOF
for jobs in 1 4; do
  step sweep-$jobs 540 $dualpath sweep --config quickstart --config "$work/shared.yaml" \
    --budget 2M --alphas 50 --loops 2,4 --seeds 1 --tune off --tflops 1 --jobs $jobs --yes \
    --out "$work/sweep-$jobs"
done

cat "$summary"
exit $failed
