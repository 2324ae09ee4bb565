#!/usr/bin/env bash
# Records tests/golden/routing_shakespeare.txt: trains a tiny model from random weights and keeps
# four steps of its routing.
#
#   tools/make_routing_golden.sh build/release/pagoda TINY_SHAKESPEARE.txt
set -euo pipefail
pagoda=$(realpath "$1")
text=$(realpath "$2")
golden=$(realpath "$(dirname "$0")/../tests/golden")/routing_shakespeare.txt
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > config.json << 'END'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
 "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 64,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.001,
 "initializer_range": 0.02, "max_position_embeddings": 512, "mlp_only_layers": [],
 "decoder_sparse_step": 1, "attention_bias": false}
END
"$pagoda" init --config config.json --seed 1 --out model
"$pagoda" train --model.path model --data.path "$text" --data.sequence_len 256 \
  --train.tokens_per_step 2048 --train.micro_batch_tokens 256 --train.steps 300 \
  --train.save_steps 0 --train.eval_steps 0 --train.seed 1 --train.output_dir run \
  --optim.learning_rate 2e-3 --optim.schedule constant --optim.warmup_steps 20 \
  --memory.device 512MiB --memory.host 256MiB --trace-routing run.routing
awk 'NR == 1 || $1 <= 2 || $1 >= 299' run.routing > "$golden"
