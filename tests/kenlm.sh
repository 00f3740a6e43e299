#!/usr/bin/env bash
# KenLM's own training, lmplz, which ours is compared with, into .venv/bin; and its Python package, for the scores.
# Neither Debian nor PyPI has the program, but PyPI has its source, which needs cmake, a C++ compiler, zlib, Eigen and
# Boost (Debian: cmake g++ zlib1g-dev libeigen3-dev libboost-{program-options,system,thread,test}-dev).
set -euo pipefail
cd "$(dirname "$0")/.."

[ -x .venv/bin/lmplz ] && exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
.venv/bin/python -m pip download --quiet --no-deps --no-binary kenlm --dest "$folder" kenlm==0.3.0
tar -xzf "$folder"/kenlm-*.tar.gz -C "$folder"
cmake -S "$folder"/kenlm-0.3.0 -B "$folder/build" -DCMAKE_BUILD_TYPE=Release
cmake --build "$folder/build" --target lmplz --parallel "$(nproc)"
.venv/bin/python -m pip install --quiet --no-deps kenlm==0.3.0
cp "$(find "$folder/build" -name lmplz -type f -perm -u+x)" .venv/bin/lmplz
