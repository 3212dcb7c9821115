#!/usr/bin/env bash
# The output of `./dev demo` after the build: attention of a trained model's layer compared with float64
# results, then a long sequence compared with textbook attention.
# usage: bench/demo.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:?usage: bench/demo.sh BUILD_FOLDER}

echo
echo "== A layer of a trained model (MiniLM-L6, layer 3: examples/data/README.md), forward and backward"
"$build/cli/attn" run --input examples/data/minilm_layer3.safetensors --layout bhsd --backward --check

echo
echo "== A long sequence, forward and backward, next to attention that stores the matrix"
"$build/bench/attn_demo"
