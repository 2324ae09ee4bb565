#!/usr/bin/env bash
# Installs what is missing, builds, and trains a small Mixture-of-Experts from scratch on the King
# James Bible (Debian's bible-kjv-text) with most of it paged to disk, then exports it as a Hugging
# Face folder. Everything it makes is under build/ and runs/; running it again starts over.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== [%4ds] %s\n' "$SECONDS" "$*"; }

step "install"
bash tools/install-deps.sh

step "build"
cmake --preset release -DPAGODA_TESTS=OFF > /dev/null
cmake --build --preset release --target pagoda
pagoda=build/release/pagoda

step "text and model"
rm -rf runs/quickstart runs/quickstart-model runs/quickstart-text runs/quickstart-export
mkdir -p runs/quickstart-text
# The books Genesis to Jude are for training, Revelation is held out.
bible -f gen1:1-jude1:25 > runs/quickstart-text/train.txt
bible -f rev1:1-rev22:21 > runs/quickstart-text/held-out.txt
"$pagoda" init --config configs/quickstart.json --seed 1 --out runs/quickstart-model

step "train"
"$pagoda" train configs/quickstart.toml

step "export"
"$pagoda" export --checkpoint runs/quickstart --out runs/quickstart-export

step "done"
echo "the trained model is in runs/quickstart-export, its log in runs/quickstart/metrics.jsonl"
