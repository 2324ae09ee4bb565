#!/usr/bin/env bash
# Shows a run of several processes on this machine: four of them, each with a device, train a small
# model in a pipeline of two stages whose experts are divided over two devices each. One process is
# killed, the others end by themselves, three go on from the checkpoint in three stages, and what
# they export is what one process alone exports, byte for byte. Takes about half a minute.
#
#   tools/cluster_tour.sh [PAGODA [FOLDER]]    the program, build/release/pagoda if it is not named
#
# Everything it makes is in FOLDER, runs/tour if none is named. It starts over each time.
set -euo pipefail
cd "$(dirname "$0")/.."
pagoda=${1:-build/release/pagoda}
tour=${2:-runs/tour}

step() { printf '\n== %s\n' "$*"; }
fail() { echo "cluster_tour: $*" >&2; exit 1; }
say_and_run() { printf '$ %s\n' "$*"; "$@"; }

[ -x "$pagoda" ] || fail "there is no $pagoda; build it, or name the program"
if ! command -v mpirun > /dev/null; then
  echo "cluster_tour: there is no mpirun; install Debian's openmpi-bin" >&2
  exit 69
fi
# Any user, and more processes than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none

# The process of a rank, as its environment says.
process_of_rank() {
  local environment
  for environment in /proc/[0-9]*/environ; do
    if grep -qzx "PAGODA_TOUR=$$" "$environment" 2> /dev/null &&
       grep -qzx "OMPI_COMM_WORLD_RANK=$1" "$environment" 2> /dev/null; then
      basename "$(dirname "$environment")"
      return
    fi
  done
}

step "a model of four layers with eight experts each, and the manual to train it on"
if [ -e "$tour" ] && [ ! -e "$tour/made-by-cluster-tour" ]; then
  fail "$tour exists and is not of a tour; remove it, or name another folder"
fi
rm -rf "$tour"
mkdir -p "$tour"
touch "$tour/made-by-cluster-tour"
cat docs/*.md > "$tour/text.txt"
cat > "$tour/config.json" <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320,
 "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 32, "intermediate_size": 128, "moe_intermediate_size": 256, "num_experts": 8,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
 "max_position_embeddings": 1024, "mlp_only_layers": [], "decoder_sparse_step": 1,
 "attention_bias": false, "eos_token_id": 256}
JSON
"$pagoda" init --config "$tour/config.json" --seed 1 --out "$tour/model"
cat > "$tour/run.toml" <<RUN
[model]
path = "$tour/model"
[data]
path = "$tour/text.txt"
sequence_len = 128
[train]
output_dir = "$tour/run"
steps = 20
tokens_per_step = 2048
micro_batch_tokens = 256
chunks = 4
save_steps = 5
log_steps = 5
devices = ["cpu/4"]
[parallel]
layout = "pipeline"
stages = 2
deadline_s = 5.0
heartbeat_s = 0.5
[memory]
device = "64MiB"
host = "128MiB"
disk = ["$tour/pages{rank}"]
RUN
cat "$tour/run.toml"

step "one process with one device, to compare with"
say_and_run "$pagoda" train "$tour/run.toml" --parallel.layout experts --parallel.stages 1 \
  --train.devices cpu --train.output_dir "$tour/alone"

step "four processes in two stages; rank 2 is killed behind step 10"
PAGODA_TOUR=$$ mpirun -n 4 "$pagoda" train "$tour/run.toml" &
launcher=$!
until ls "$tour"/run/checkpoints/*/MANIFEST 2> /dev/null | grep -Eq 'step-0*[1-9][0-9]/'; do
  kill -0 "$launcher" 2> /dev/null || fail "the run ended before it saved"
  sleep 0.1
done
victim=$(process_of_rank 2)
echo "kill -9 $victim, which is rank 2"
kill -9 "$victim"
# Open MPI 4.1.4's mpirun may outlive processes that were lost for ever: then it is killed, too.
alone=0
while kill -0 "$launcher" 2> /dev/null && [ "$alone" -lt 10 ]; do
  sleep 1
  if [ -n "$(process_of_rank 0)$(process_of_rank 1)$(process_of_rank 3)" ]; then alone=0; fi
  alone=$((alone + 1))
done
kill -9 "$launcher" 2> /dev/null || true
ended=0
wait "$launcher" || ended=$?
[ "$ended" != 0 ] || fail "a run whose process was killed ended well"
echo "mpirun ends with $ended"

step "three processes go on, in three stages"
say_and_run mpirun -n 3 "$pagoda" train "$tour/run.toml" --resume --parallel.stages 3

step "what they trained is what one process trained"
say_and_run "$pagoda" export --checkpoint "$tour/run" --out "$tour/export"
"$pagoda" export --checkpoint "$tour/alone" --out "$tour/export-alone"
cmp "$tour/export/model.safetensors" "$tour/export-alone/model.safetensors" ||
  fail "the exports differ"
sha256sum "$tour/export/model.safetensors" "$tour/export-alone/model.safetensors"
