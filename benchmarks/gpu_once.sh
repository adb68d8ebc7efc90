#!/usr/bin/env bash
# The most valuable numbers of one CUDA GPU in one call of nine minutes, the most valuable first.
#
#   bash benchmarks/gpu_once.sh OUT                     # --help names the cells and options
#   bash benchmarks/gpu_once.sh OUT --rehearse --slower 4       # tiny, on a CPU
#
# Needs Python 3.11 to 3.14 with PyTorch, Lightning, transformers; this project need not be installed.
# Where nothing can be downloaded, bring what is missing as wheels in .whl, which git ignores. On a
# machine with a network, in this checkout, for the Python version of the other one (here 3.12):
#
#   pip download --no-deps --constraint constraints.txt --dest .whl --only-binary=:all: \
#       --python-version 3.12 --implementation cp \
#       --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
#       --platform manylinux2014_x86_64 \
#       litdata boto3 botocore jmespath s3transfer obstore \
#       jsonargparse docstring-parser typeshed-client
#
# --no-deps keeps a second PyTorch out, and the constraints are the versions that were tested.
# The results, OUT/gpu.json, become the page's tables in the checkout that was measured, by
#
#   cp OUT/gpu.json docs/benchmarks && python -m benchmarks.results
#
# Results of some cells (--only) are copied under a name of their own, docs/benchmarks/gpu-NAME.json,
# or they would take the place of all others; the page has the tables of every gpu*.json.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
WORK=${WORK:-$(mktemp -d)} python=${PYTHON:-python3}
if compgen -G "$root/.whl/*.whl" >/dev/null; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$WORK/site" "$root"/.whl/*.whl
fi
export WORK PYTHONPATH="$root:$WORK/site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
export PYTHONWARNINGS=ignore::UserWarning:multiprocessing.resource_tracker  # killed processes
unset PYTHONDONTWRITEBYTECODE  # or each process compiles all that it imports
# Several processes compile at once: few threads for each, and one cache for all.
export TORCHINDUCTOR_CACHE_DIR=$WORK/inductor TORCHINDUCTOR_COMPILE_THREADS=4 OMP_NUM_THREADS=2
exec "$python" -m benchmarks.gpu.once "$@"
