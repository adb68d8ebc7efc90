#!/usr/bin/env bash
# All runs of docs/study/declared.md, in its order: about 24 core-hours, on two cores.
#
#   bash docs/study/declared.sh [OPTIONS]        # again after an interruption: it goes on
#
# Kept runs are taken over, others are trained into runs/study/ (keep.py beside this file keeps them).
# The head of declared.md makes tokenizer and texts in data/declared; part 4 also wants
#
#   dualpath prepare --config docs/study/declared_data.yaml --tokens 13.9M --chunk-tokens 4M \
#       --out data/declared/chunks
#
# OPTIONS are added to each sweep.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python}
added=("$@")
base=(--config docs/study/base.yaml --config docs/study/declared.yaml)
table=(--config docs/study/declared_table.yaml)
k4=(--alphas 50 --loops 4 --controls wide,loop)
dual_k4=(--alphas 50 --loops 4 --controls none)
dual_k1=(--alphas 50 --loops 1 --controls none)
both=("${k4[@]}" --match linear,total --tune "wide=0.049,loop=0.049,dual=0.098") # as part 1 chose

# sweep NAME BUDGET OPTIONS...: begins a sweep, or continues it, from what is kept of it.
sweep() {
  [[ ! -e docs/study/$1 || -e runs/study/$1 ]] ||
    "$python" docs/study/restore.py "$1" "runs/study/$1"
  "$python" -m dualpath_cli sweep "${base[@]}" --out "runs/study/$1" --budget "${@:2}" \
    --jobs 2 --yes "${added[@]}"
}

# Part 1
rates=(--tune off --seeds 2 --set "optim.lr=1.22e-2,2.45e-2,4.9e-2,9.8e-2,1.96e-1")
sweep declared_rates 150K "${k4[@]}" "${rates[@]}"
sweep declared_rates_k1 150K "${dual_k1[@]}" "${rates[@]}"
sweep declared_rates_final 150K "${dual_k4[@]}" "${rates[@]}" --set model.combination=final

# Part 2, width 32
sweep declared_32 150K "${table[@]}" "${both[@]}" --seeds 2-13
sweep declared_32_k1 150K "${table[@]}" "${dual_k1[@]}" --tune dual=0.049 --seeds 2-13

# Part 3: what is scaled is held at 0.0067
for rate_scale in 0.049/0.13673 0.098/0.06837 0.196/0.03418; do
  rate=${rate_scale%/*} scale=${rate_scale#*/}
  sweep "declared_loops_$rate" 150K "${dual_k4[@]}" --tune off --seeds 2 --set "optim.lr=$rate" \
    --set "optim.lr_scale.router=1,$scale" --set "optim.lr_scale.gains=1,$scale"
done

# Part 4: its first cell is PureWide of part 2
for run in runs/study/declared_32/runs/wide/seed_[2-9]; do
  [[ ! -e $run/checkpoints || -e $run/validation_average.csv ]] ||
    "$python" -m dualpath_cli validate --ckpt-path "$run" --average 4
done
noise=("${table[@]}" --alphas none --controls wide --tune wide=0.049 --seeds 2-9 --average 4)
tenth=(--config docs/study/noise_tenth.yaml) chunks=(--config docs/study/noise_chunks.yaml)
sweep declared_noise_tenth 150K "${noise[@]}" "${tenth[@]}"
sweep declared_noise_chunks 150K "${noise[@]}" "${chunks[@]}"
sweep declared_noise_both 150K "${noise[@]}" "${tenth[@]}" "${chunks[@]}"

# To width 48: half, once and twice each arm's rate
width48=(--config docs/study/declared_48.yaml) transfer=(--tune off --seeds 1)
sweep declared_transfer 337.5K "${width48[@]}" --alphas none --loops 4 --controls wide,loop \
  "${transfer[@]}" --set optim.lr=2.45e-2,4.9e-2,9.8e-2
sweep declared_transfer_k4 337.5K "${width48[@]}" "${dual_k4[@]}" "${transfer[@]}" \
  --set optim.lr=4.9e-2,9.8e-2,1.96e-1
sweep declared_transfer_k1 337.5K "${width48[@]}" "${dual_k1[@]}" "${transfer[@]}" \
  --set optim.lr=2.45e-2,4.9e-2,9.8e-2
# Beyond the rates that were better than the middle by more than 0.010
sweep declared_transfer_wide_beyond 337.5K "${width48[@]}" --alphas none --controls wide \
  "${transfer[@]}" --set optim.lr=1.22e-2
sweep declared_transfer_k4_beyond 337.5K "${width48[@]}" "${dual_k4[@]}" "${transfer[@]}" \
  --set optim.lr=2.45e-2
sweep declared_transfer_k1_beyond 337.5K "${width48[@]}" "${dual_k1[@]}" "${transfer[@]}" \
  --set optim.lr=1.22e-2

# Part 2, width 48, at the rates that the transfer chose
both48=("${k4[@]}" --match linear,total --tune "wide=0.0245,loop=0.049,dual=0.049")
sweep declared_48 337.5K "${width48[@]}" "${table[@]}" "${both48[@]}" --seeds 2-9
sweep declared_48_k1 337.5K "${width48[@]}" "${table[@]}" "${dual_k1[@]}" --tune dual=0.0245 \
  --seeds 2-9
