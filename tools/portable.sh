#!/usr/bin/env bash
# Makes build/pagoda-portable.tar.gz: bin/pagoda, the few libraries that Debian has no archives of,
# and a README.txt, to carry to a Linux with glibc 2.36 or later and nothing installed. On a GPU it
# is the whole program; where it computes on the CPU it multiplies without oneDNN, which costs time
# in fp32, as the README.txt says; -DPAGODA_ONEDNN=ON carries that too (38 MiB unpacked). Then
# checks it: moved elsewhere it needs no library from outside but the C library's, is under 64 MiB,
# and trains where there is nothing but these.
#
#   tools/portable.sh [-DNAME=VALUE...]   for CMake, e.g. -DPAGODA_CUDA_ARCHITECTURES="80;90a":
#                                         fewer kernels to build than those of all GPUs
set -euo pipefail
cd "$(dirname "$0")/.."

# What is in the archive is what the program says of itself.
write_readme() {
  local said
  said=$(build/portable/pagoda --version)
  printf '%s\n\n' "$said"
  cat <<'TEXT'
bin/pagoda runs on Linux on x86-64 with glibc 2.36 or later and nothing else installed. It may lie
anywhere, with lib beside bin. `bin/pagoda --help` says what it does.
TEXT
  if ! grep -q 'oneDNN off' <<< "$said"; then
    echo "It has oneDNN: on a CPU it is as fast as one that was built there."
  else
    cat <<'TEXT'
What it lacks is oneDNN. On a GPU nothing is missing. On a CPU it multiplies bf16 by its own kernels
(AVX2, AVX-512 or AMX, by the processor), and fp32 by a loop. Where it was measured (a Zen 5, two
cores) a step in bf16 took as much of the CPU as with oneDNN, and in fp32 1.15 to 1.3 times as much.
Last bits of results may differ from those of a program with oneDNN.
TEXT
  fi
  if grep -qE '^PAGODA_(CUDA:.*=OFF|NVCC:.*NOTFOUND)' build/portable/CMakeCache.txt; then
    echo "It has no kernels for GPUs."
  fi
}

rm -f build/portable/CMakeCache.txt  # what an earlier call asked for
cmake --preset portable "$@" > /dev/null
cmake --build --preset portable --target pagoda
rm -rf build/pagoda-portable build/pagoda-portable.tar.gz
cmake --install build/portable --strip --prefix build/pagoda-portable > /dev/null
cp LICENSE build/pagoda-portable/LICENSE.txt
write_readme > build/pagoda-portable/README.txt
tar -C build -czf build/pagoda-portable.tar.gz pagoda-portable
rm -r build/pagoda-portable

root=$(mktemp -d)  # a file system with nothing in it
trap 'rm -rf "$root"' EXIT
tar -C "$root" -xzf build/pagoda-portable.tar.gz
mv "$root/pagoda-portable" "$root/moved"
pagoda=$root/moved/bin/pagoda

fail() {
  echo "portable: FAIL: $*" >&2
  exit 1
}

bytes=$(du -sb "$root/moved" | cut -f1)
[ "$bytes" -lt $((64 << 20)) ] || fail "$bytes bytes, not under 64 MiB"
needs=$(env -i ldd "$pagoda" | grep -v "$root/moved/")
outside=$(grep -Ev 'linux-vdso|ld-linux|lib(c|m|dl|rt|pthread)\.so' <<< "$needs" || true)
[ -z "$outside" ] || fail "it needs libraries from outside:"$'\n'"$outside"

# The C library, the system's own folders, and what the run reads.
grep -o '/[^ ]*\.so[^ ]*' <<< "$needs" | xargs cp -L --parents -t "$root"
mkdir "$root"/{proc,sys,tmp}
for _ in $(seq 400); do echo "the quick brown fox jumps over the lazy dog"; done > "$root/text.txt"
cat > "$root/config.json" <<'JSON'
{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 272,
 "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
 "head_dim": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_experts": 8,
 "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
 "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
 "max_position_embeddings": 256, "mlp_only_layers": [], "decoder_sparse_step": 1,
 "attention_bias": false}
JSON

# With these as all there is, where the system lets a user have it so; else without environment.
run() {
  env -i unshare --user --map-root-user --mount sh -c \
    'mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"' \
    "$root" /moved/bin/pagoda "$@"
}
where="alone in a file system"
if ! run --version > /dev/null; then
  where="here, since this system lets no user have another root"
  run() { (cd "$root" && env -i "$pagoda" "$@"); }
fi

run --version
run init --config config.json --seed 1 --out model
run train --model.path model --data.path text.txt --data.sequence_len 64 \
  --train.steps 3 --train.tokens_per_step 256 --train.micro_batch_tokens 256 \
  --train.output_dir run --train.save_steps 3 --memory.device 64MiB --memory.host 64MiB
run export --checkpoint run --out tuned
run generate --model.path tuned --prompt "the quick" --max_new_tokens 4 \
  --memory.device 64MiB --memory.host 64MiB
echo "portable: PASS: build/pagoda-portable.tar.gz, $((bytes >> 20)) MiB unpacked; trained $where"
