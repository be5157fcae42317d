#!/usr/bin/env bash
# Measures the gateway over plans that run.sh has built, in under 5 minutes; results in WORK/results/bench.{md,json}.
#
#   tests/gpu/bench.sh [OPTION ...]     options of `python -m bench.gpu`, such as --setups 4,1x2 --seconds 2
#
# Needs: WORK, PYTHON and TRITON as run.sh; in WORK/repository bert-fp16 and bert-fp16-pooled (others by TOKEN_MODEL and
# POOLED_MODEL); wrk, on PATH or in the folder WRK that bench_wrk.sh makes; for the comparison, INFINITY_WHEELS, the
# folder that infinity_wheels.sh fills, or INFINITY, a command of its own. Without Triton's TensorRT backend, its Python
# backend runs the plans: slower, but the gateway and the bare clients stand before the same.
set -Eeuo pipefail
here="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-/tmp/gpu-run}" python="${PYTHON:-python3}"
token="${TOKEN_MODEL:-bert-fp16}" pooled="${POOLED_MODEL:-bert-fp16-pooled}" bert="${BERT:-$work/bert-base}"
served="$work/bench-served" infinity="${INFINITY:-$work/infinity/infinity_emb}"
[ -n "${WRK:-}" ] && export PATH="$WRK:$PATH"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
trap 'echo "bench.sh: line $LINENO failed after $SECONDS s" >&2' ERR
mkdir -p "$work/results" "$work/logs"

install_infinity() { # the wheels beside this Python's own torch and numpy, which stay as they are
  mkdir -p "$work/infinity"
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --upgrade --target "$work/infinity/site" \
    "$INFINITY_WHEELS"/*.whl
  # shellcheck disable=SC2016  # the script's own arguments
  printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" -c "from infinity_emb.cli import cli; cli()" "$@"\n' \
    "$work/infinity/site" "$(command -v "$python")" > "$infinity"
  chmod +x "$infinity"
}

command -v wrk > /dev/null || { echo "bench.sh: no wrk here" >&2; exit 1; }
[ -z "${INFINITY_WHEELS:-}" ] || install_infinity
rm -rf "$served" "$work"/logs/bench-*
mkdir -p "$served"
if grep -q tensorrt_plan "$work/repository/$token/config.pbtxt" && [ ! -d /opt/tritonserver/backends/tensorrt ]; then
  PYTHONPATH="$root" "$python" "$here/python_backend_repository.py" "$work/repository" "$served" "$token" "$pooled"
else
  cp -r "$work/repository/$token" "$work/repository/$pooled" "$served/"
fi
cd "$root"
"$python" -m bench.gpu --repository "$served" --token "$token" --pooled "$pooled" --bert "$bert" \
  ${TRITON:+--triton "$TRITON"} --infinity "$infinity" --speed "$work/results/bert.json" --out "$work/results" \
  --logs "$work/logs" "$@"
