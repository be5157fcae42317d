#!/usr/bin/env bash
# Builds, verifies, times and serves on a machine with a GPU: 10 minutes on an H200 whose host took 110 s for one plan.
#
#   tests/gpu/run.sh [STAGE ...]     default: bert others speed "edges serve"; stages in one argument run together
#
# Needs: Python 3.11 or newer as PYTHON with the package's dependencies, torch and transformers; TENSORRT_PYTHON, a
# Python with tensorrt and numpy; DEMO_MODEL, the folder of all-MiniLM-L6-v2. trtexec is taken from PATH; where there is
# none, trtexec_by_wheel.py stands in for it. TRITON starts a Triton on the repository named behind it (default: the
# script of the tree that wheels/assemble.sh makes); without Triton's TensorRT backend, its Python backend runs the
# plans. Everything is kept in WORK (default /tmp/gpu-run); results in WORK/results.
set -Eeuo pipefail
here="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="${WORK:-/tmp/gpu-run}" python="${PYTHON:-python3}" tensorrt_python="${TENSORRT_PYTHON:-/tmp/tree/python}"
minilm="${DEMO_MODEL:-$root/models/all-MiniLM-L6-v2}" bert="$work/bert-base" texts="${TEXTS:-1000}"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
mkdir -p "$work/results" "$work/logs" "$work/repository"
trap 'echo "run.sh: line $LINENO failed after $SECONDS s" >&2' ERR

say() { printf '\n[%3d s] %s\n' "$SECONDS" "$*"; }

find_trtexec() {
  trtexec="$(command -v trtexec || true)"
  [ -z "$trtexec" ] && [ -x /usr/src/tensorrt/bin/trtexec ] && trtexec=/usr/src/tensorrt/bin/trtexec
  if [ -z "$trtexec" ]; then
    trtexec="$work/trtexec"
    printf '#!/bin/sh\nexec "%s" "%s/trtexec_by_wheel.py" "$@"\n' "$tensorrt_python" "$here" > "$trtexec"
    chmod +x "$trtexec"
    echo "no trtexec here: trtexec_by_wheel.py stands in for it"
  fi
  # Waits for whoever has the GPU; not for its version, which engine_build asks for with a limit of time.
  patient="$work/patient_trtexec"
  printf '#!/bin/sh\n[ "$1" = --help ] && exec "%s" "$@"\nexec flock "%s" "%s" "$@"\n' \
    "$trtexec" "$work/gpu.lock" "$trtexec" > "$patient"
  chmod +x "$patient"
}

build() { # build MODEL NAME [OPTIONS]: one model directory, all steps, with $trtexec
  local model="$1" name="$2" begin=$SECONDS
  shift 2
  "$python" -m engine_build all --model "$model" --target tensorrt --name "$name" --repo "$work/repository" \
    --build-folder "$work/build" --trtexec "$trtexec" --tensorrt-python "$tensorrt_python" --texts "$texts" "$@" \
    > "$work/logs/$name.log" 2>&1 || { tail -n 40 "$work/logs/$name.log"; return 1; }
  echo "$name: $((SECONDS - begin)) s; $(grep -h 'least cosine [01]' "$work/logs/$name.log" | tail -n 1)"
}

share_reference() { # share_reference FROM TO: a second build of a model need not run the reference again
  mkdir -p "$work/build/$2"
  cp "$work/build/$1"/reference.* "$work/build/$1/vectors.step.json" "$work/build/$2/"
}

lane() { # lane MODEL FIRST "NAME OPTIONS" ...: builds one after the other
  local model="$1" first="$2" entry name
  shift 2
  for entry in "$@"; do
    name="${entry%% *}"
    share_reference "$first" "$name"
    # shellcheck disable=SC2086  # the options are words
    build "$model" "$name" ${entry#* }
  done
}

stage_bert() { # the clean FP16 graph and the stock export: their kernels are chosen one after the other, on a quiet GPU
  local clean stock status=0
  [ -f "$bert/config.json" ] || "$python" "$here/bert_base.py" "$bert"
  exec 9> "$work/gpu.lock"
  flock 9
  (trtexec="$patient"; build "$bert" bert-fp16 --precision fp16) 9>&- & clean=$!
  (set -e; build_stock) & stock=$! # while the reference of the other is still made on the CPU
  wait "$stock" || status=1
  flock --unlock 9
  wait "$clean" || status=1
  return "$status"
}

build_stock() { # with the flags that the clean FP16 graph is built with
  local folder="$work/build/stock" line begin=$SECONDS
  mkdir -p "$folder"
  line="$("$python" -m engine_build all --model "$bert" --target tensorrt --precision fp16 --trtexec "$trtexec" --dry-run)"
  [ -f "$folder/model.onnx" ] || "$python" "$here/stock_export.py" "$bert" "$folder/model.onnx" > "$work/logs/export.log" 2>&1
  # shellcheck disable=SC2086  # the arguments are words
  (cd "$folder" && ${line#*&& } > trtexec.log 2>&1 && mv unfinished.plan model.plan) || { tail "$folder/trtexec.log"; return 1; }
  echo "stock export: $((SECONDS - begin)) s, $(stat -c %s "$folder/model.plan") bytes"
}

stage_smoke() { build "$minilm" minilm-fp16 --precision fp16; }

stage_others() { # at the same time: they are for correctness, and no times are taken of them
  local lanes=() one
  lane "$bert" bert-fp16 "bert-fp16-pooled --precision fp16 --pooling engine" & lanes+=($!)
  lane "$bert" bert-fp16 "bert-fp32 --precision fp32" & lanes+=($!)
  lane "$bert" bert-fp16 "bert-fp32-pooled --precision fp32 --pooling engine" & lanes+=($!)
  (
    stage_smoke
    lane "$minilm" minilm-fp16 "minilm-fp16-pooled --precision fp16 --pooling engine" \
      "minilm-mixed-half --precision mixed --output-type fp16" & pooled=$!
    lane "$minilm" minilm-fp16 "minilm-fp32 --precision fp32" \
      "minilm-fp32-pooled --precision fp32 --pooling engine"
    wait "$pooled"
  ) & lanes+=($!)
  for one in "${lanes[@]}"; do wait "$one"; done
}

stage_speed() {
  "$python" "$here/speed.py" --python "$tensorrt_python" --model "$bert" --out "$work/results/bert.json" \
    "FP16=$work/build/bert-fp16/model.plan" "FP16, pooled=$work/build/bert-fp16-pooled/model.plan" \
    "FP32=$work/build/bert-fp32/model.plan" "stock export, FP16=$work/build/stock/model.plan"
  "$python" "$here/speed.py" --python "$tensorrt_python" --model "$minilm" --out "$work/results/minilm.json" \
    --lengths 32,128,256 "FP16=$work/build/minilm-fp16/model.plan" \
    "FP16, pooled=$work/build/minilm-fp16-pooled/model.plan"
  "$python" - "$work/results/bert.json" << 'PY'
import json, sys
times = json.load(open(sys.argv[1]))
ratio = times["stock export, FP16"]["64x128"] / times["FP16"]["64x128"]
print(f"at [64,128] the clean graph is {ratio:.2f} times as fast as the stock export; 1.5 is aimed at")
sys.exit(ratio < 1.5)
PY
}

stage_edges() { "$python" "$here/edges.py" --python "$tensorrt_python" "$work/build/minilm-fp16/model.plan"; }

stage_serve() { # gateway -> Triton -> plans
  local models=() name repository="$work/served" triton gateway status=0
  for name in minilm-fp16 minilm-fp16-pooled bert-fp16 bert-fp16-pooled; do
    [ -d "$work/repository/$name" ] && models+=("$name")
  done
  rm -rf "$repository"
  mkdir -p "$repository"
  if [ -d /opt/tritonserver/backends/tensorrt ]; then
    for name in "${models[@]}"; do cp -r "$work/repository/$name" "$repository/"; done
  else
    echo "Triton's TensorRT backend is not here: its Python backend runs the plans"
    "$python" "$here/python_backend_repository.py" "$work/repository" "$repository" "${models[@]}"
  fi
  ${TRITON:-/tmp/tree/triton.sh} "$repository" > "$work/logs/triton.log" 2>&1 & triton=$!
  for _ in $(seq 240); do
    curl -sf 127.0.0.1:8000/v2/health/ready && break
    kill -0 "$triton" 2> /dev/null || { grep -E '^E|rror' "$work/logs/triton.log" | tail -n 15; return 1; }
    sleep 0.5
  done
  say "Triton is ready"
  GATEWAY_TRITON_URL=127.0.0.1:8001 GATEWAY_MODEL_REPOSITORY="$repository" GATEWAY_PORT=8080 \
    "$python" -m gateway > "$work/logs/gateway.log" 2>&1 & gateway=$!
  for _ in $(seq 120); do
    curl -sf 127.0.0.1:8080/health/ready > /dev/null && break
    kill -0 "$gateway" 2> /dev/null || break
    sleep 0.5
  done
  "$python" "$here/whole_path.py" http://127.0.0.1:8080 "$work/build" "${models[@]}" || status=1
  [ "$status" = 0 ] || tail -n 5 "$work/logs/gateway.log"
  name="${models[-1]}"
  "$python" -m engine_build verify --model "$([ "${name%%-*}" = bert ] && echo "$bert" || echo "$minilm")" --name "$name" \
    --triton 127.0.0.1:8001 --build-folder "$work/build" --texts "$texts" 2>&1 | grep -E 'least cosine [01]|ERROR' || status=1
  kill "$gateway" "$triton"
  wait "$gateway" "$triton" 2> /dev/null || true
  return "$status"
}

# First, since a machine with a GPU is dear: whatever a stage will import is there.
"$python" -c 'import onnx, onnxruntime, safetensors, torch, transformers, tritonclient.grpc, gateway.serving, gateway.http.app'
"$tensorrt_python" -c 'import numpy, tensorrt'
find_trtexec
[ $# -gt 0 ] || set -- bert others speed "edges serve"
failed=""
for stages in "$@"; do
  say "$stages"
  started=()
  for stage in $stages; do
    # A subshell of its own: within `||`, a function would go on after an error.
    (set -e; "stage_$stage") & started+=("$!:$stage")
  done
  for one in "${started[@]}"; do wait "${one%%:*}" || failed="$failed ${one#*:}"; done
done
say "checks of what was published"
for directory in "$work"/repository/*/; do
  "$python" -m engine_build check "$directory" --tensorrt-python "$tensorrt_python" 2>&1 | sed "s|$work/||" &
  cp "$directory/manifest.json" "$work/results/$(basename "$directory").json"
done
wait
say "done${failed:+, not good:$failed}"
[ -z "$failed" ]
