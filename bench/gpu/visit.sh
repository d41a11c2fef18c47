#!/usr/bin/env bash
# One visit to a GPU machine. What it needs lies in $GPU_DIR (default: .gpu of the folder it is called
# from), results land in $OUT (default: $GPU_DIR/out).
#   bench/gpu/visit.sh all         steps, first, second and mla, one after the other, each into $OUT/PART (25 minutes)
#   bench/gpu/visit.sh kernels     tree kernel and sampler against the oracles, timings, no sync
#   bench/gpu/visit.sh train       train the pair; put its pair.tar and prompts.json in .gpu/ for the rest
#   bench/gpu/visit.sh first       DDTREE on the engine: proofs with graphs, step times, throughput, kernels
#   bench/gpu/visit.sh second      the bugs put back, pages, overlap off, other budgets, float32, two samples (7 minutes)
#   bench/gpu/visit.sh mla         a target with latent attention: trained there, greedy, masks, graphs (7 minutes)
#   bench/gpu/visit.sh two         two GPUs: greedy answers with tensor parallelism, trees of both ranks (never run yet)
#   bench/gpu/visit.sh steps       step times and profiles of a whole step, DFLASH beside DDTREE (4 minutes)
# Each part finishes in less than 10 minutes on one H200. README.md beside this file says what travels.
set -euo pipefail
self=$(realpath "$0")
export GPU_DIR=${GPU_DIR:-$PWD/.gpu}
export OUT=${OUT:-$GPU_DIR/out}
cd "$(dirname "$self")/../.."
mkdir -p "$OUT"
part=${1:-}
case "$part" in
  all)
    failed=
    for one in steps first second mla; do
      OUT=$OUT/$one bash "$self" "$one" || failed="$failed $one"
    done
    [ -z "$failed" ] || { echo "these visits did not reach their end:$failed. next: $OUT/*/serve.log" >&2; exit 1; }
    ;;
  kernels)
    . bench/gpu/engine.sh
    PYTHONPATH=$ENGINE_PATH timeout 500 python3 bench/gpu/check_kernels.py --out "$OUT" 2>&1 | tee "$OUT/kernels.log"
    ;;
  train)
    timeout 580 python3 bench/gpu/train_pair.py --out "$OUT" 2>&1 | tee "$OUT/train.log"
    ;;
  first | second | steps | mla | two)
    . bench/gpu/engine.sh
    export PYTHONPATH=$ENGINE_PATH:$PLUGINS
    case "$part" in first) limit=535 ;; mla) limit=390 ;; *) limit=330 ;; esac
    limit=${LIMIT:-$limit}
    timeout -k 10 $((limit + 20)) python3 bench/gpu/serve_visit.py "$part" --gpu-dir "$GPU_DIR" --out "$OUT" \
      --limit "$limit" 2>&1 | tee "$OUT/serve.log"
    ;;
  *)
    sed -n '2,12p' "$self" >&2
    exit 2
    ;;
esac
