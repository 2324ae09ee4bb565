#include "config/run_config.h"

#include <optional>

#include "base/bytes.h"
#include "base/file.h"
#include "base/number_text.h"
#include "config/zebra_config.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr Affects kResults = Affects::kResults;
constexpr Affects kRunOnly = Affects::kRunOnly;
constexpr Affects kLocal = Affects::kLocal;

// Model and texts are known by what is in them (their fingerprints), so a run's folder may move.
void declare_inputs(RunConfig& c, OptionTable& t) {
  t.section("model", "Model");
  t.add("path", c.model.path, kRunOnly, "Hugging Face folder to start from");
  t.section("data", "Data");
  t.add("path", c.data.path, kRunOnly,
        "training data: .txt, .jsonl, .json, also .gz and .zst; repeat for several files");
  t.add("eval_path", c.data.eval_path, kRunOnly, "held-out text; none: train does not evaluate");
  t.add("sequence_len", c.data.sequence_len, kResults, "length of a row that documents share",
        "tokens");
  t.add("too_long", c.data.too_long, {"truncate", "drop", "error"}, kResults,
        "what to do with a conversation longer than a row; a text is cut into pieces");
  t.add("kind", c.data.kind,
        {"auto", "text", "messages", "conversations", "instruction", "prompt", "question"},
        kResults, "kind of the rows of .jsonl and .json; auto: that of a file's first row");
  t.add("fields", c.data.fields, kResults,
        "names of the rows' fields if they differ, for example prompt=query,completion=reply");
  t.add("chat_template", c.data.chat_template, kResults,
        "auto: the model's; run: it is run even if there is a preset; none: prompts are joined "
        "plainly; or a preset, see docs/data.md");
  t.alias("chat-template");
  t.add("chat_date", c.data.chat_date, kResults,
        "day that a chat template is told, for example 2026-11-23; empty: today");
  t.add("train_on", c.data.train_on, {"assistant", "last", "all"}, kResults,
        "part of a conversation to train: answers, the last answer, or everything");
}

void declare_train(RunConfig& c, OptionTable& t) {
  const bool steps_shape_rate = c.optim.schedule != ScheduleKind::kConstant;
  t.section("train", "Training");
  t.add("steps", c.train.steps, steps_shape_rate ? kResults : kRunOnly, "length of the run",
        "steps");
  t.add("tokens_per_step", c.train.tokens_per_step, kResults, "size of one optimizer step",
        "tokens");
  t.add_or_auto("micro_batch_tokens", c.train.micro_batch_tokens, kResults,
                "size that attention and routing take at a time; auto: the planner chooses",
                "tokens");
  t.add("chunks", c.train.chunks, kResults,
        "parts of a step whose rows of an expert are summed apart", "parts");
  t.add_or_auto("shards", c.train.shards, kResults,
                "parts of a step whose dense gradients are summed apart, so that as many devices "
                "may share attention; auto: 8, 4, 2 or 1, whichever divides the microbatches of a "
                "chunk",
                "parts");
  t.add(
      "expert_shards", c.train.expert_shards, kResults,
      "parts of a step whose gradients of experts are summed apart: one, or train.shards, so that "
      "several devices may compute rows of one expert",
      "parts");
  t.add("seed", c.train.seed, kResults, "seed of the data order");
  t.add("dtype", c.train.dtype, {"fp32", "bf16"}, kResults,
        "type of weights and activations; master weights are fp32");
  t.add("freeze", c.train.freeze, kResults,
        "tensors that are not trained and have no optimizer state: embed, head, attention, norms, "
        "router, experts, shared, mlp, or names as \"model.layers.0.*\"");
  t.add("devices", c.train.devices, kLocal,
        "devices that compute: auto (an NVIDIA GPU if one is usable, else the CPU), cpu, cuda:0; "
        "cuda*2: the first two GPUs, cpu*4: four CPU devices, cpu/8: one slowed 8 times, cpu/8:24: "
        "8 times at experts and 24 at the rest");
  t.add("output_dir", c.train.output_dir, kRunOnly, "folder of the run; new or empty");
  t.add("save_steps", c.train.save_steps, kRunOnly, "interval of checkpoints; 0: no checkpoints",
        "steps");
  t.add("eval_steps", c.train.eval_steps, kRunOnly, "interval of evaluations; 0: no evaluations",
        "steps");
  t.add("eval_batches", c.train.eval_batches, kRunOnly,
        "length of one evaluation; `pagoda eval` takes the whole text unless this is set",
        "microbatches");
  t.add("early_stop", c.train.early_stop, kRunOnly,
        "evaluations in a row without a lower loss that end the run; 0: none do", "evaluations");
  t.add("keep_best", c.train.keep_best, kRunOnly,
        "the model of the evaluation with the lowest loss is exported to OUTPUT_DIR/best");
  t.add("keep_copies", c.train.keep_copies, kRunOnly,
        "how many of the newest checkpoints are exported as models to OUTPUT_DIR/copies/STEP",
        "copies");
  t.add("log_steps", c.train.log_steps, kRunOnly, "interval of printed lines", "steps");
  t.add("tensorboard", c.train.tensorboard, kRunOnly,
        "the numbers of metrics.jsonl are written to OUTPUT_DIR/tensorboard, too");
  t.add("watch_steps", c.train.watch_steps, kRunOnly,
        "span over which experts without tokens, or with too many, are noticed; 0: none are",
        "steps");
  t.add("watch_load", c.train.watch_load, kRunOnly,
        "an expert with more than so many times the mean of its layer is warned of; 0: none is");
  t.add("trace_steps", c.train.trace_steps, kRunOnly,
        "FIRST:LAST, steps to trace in OUTPUT_DIR/trace.json (ui.perfetto.dev); none: no trace");
  t.alias("trace-steps");
  t.add("trace_routing", c.train.trace_routing, kRunOnly,
        "new file that records the tokens of each expert, by step, microbatch and layer, for "
        "planning; none: no record");
  t.alias("trace-routing");
  t.add("threads", c.train.threads, kLocal, "compute threads; 0: one per core");
  t.add("optimizer_threads", c.train.optimizer_threads, kLocal,
        "threads that update weights, beside the compute threads; 0: as many as those, at most 16 "
        "for each NUMA node");
}

void declare_parallel(RunConfig& c, OptionTable& t) {
  t.section("parallel", "Devices, and what each of them does; none of it changes a bit");
  t.add("layout", c.parallel.layout, {"auto", "experts", "zebra"}, kRunOnly,
        "order of the devices' work: experts: all compute a layer's experts together; zebra: "
        "devices that attend and those with the experts work at different train.chunks at a time; "
        "auto: experts, or with a sheet that has the run's devices the faster of both");
  t.add_or_auto("attention_devices", c.parallel.attention_devices, kRunOnly,
                "devices that share all work but the experts'; auto: all, or as many as there are "
                "train.shards; in zebra as planned",
                "devices");
  t.add("offloaded", c.parallel.offloaded, kRunOnly,
        "zebra: experts of a layer that the devices which attend keep; a number for each layer, "
        "or one for all; auto: as planned",
        "experts");
  t.add("lags", c.parallel.lags, kRunOnly,
        "zebra: chunks by which the last layer's attention is ahead of the head, the head of the "
        "attention's backward, and the last experts of their backward; auto: as planned",
        "chunks");
  t.add("shares", c.parallel.shares, {"speed", "uniform"}, kRunOnly,
        "what devices of unequal speed have of microbatches and experts: speed: in proportion to "
        "it; uniform: as much as the others");
  t.add("place", c.parallel.place, {"step", "home"}, kRunOnly,
        "where an expert is computed: step: by its tokens in each step, so that all devices end "
        "together; home: always on the same device, as where all weights stay on devices or "
        "memory.pin is set");
  t.add("deadline_s", c.parallel.deadline_s, kRunOnly,
        "of several processes: one that is silent, or that a transfer waits for, is lost after "
        "this time",
        "seconds");
  t.add("heartbeat_s", c.parallel.heartbeat_s, kRunOnly,
        "interval at which processes tell each other that they live", "seconds");
  t.add("nccl", c.parallel.nccl, kRunOnly,
        "GPUs of different processes send to each other by NCCL, if there is one; else by MPI");
}

void declare_sample(RunConfig& c, OptionTable& t) {
  t.section("sample", "Samples: what the model makes of prompts before, during and after");
  t.add("prompts", c.sample.prompts, kRunOnly, "texts to continue, always by the likeliest token");
  t.add("max_new_tokens", c.sample.max_new_tokens, kRunOnly, "length of a continuation, at most",
        "tokens");
  t.add("steps", c.sample.steps, kRunOnly, "interval of samples; 0: only before and after",
        "steps");
  t.add("chat", c.sample.chat, kRunOnly, "a prompt is a user's turn in data.chat_template");
}

void declare_optim(RunConfig& c, OptionTable& t) {
  t.section("optim", "Optimizer (AdamW)");
  t.add("learning_rate", c.optim.learning_rate, kResults, "learning rate at its peak");
  t.add("weight_decay", c.optim.weight_decay, kResults,
        "decoupled weight decay; not for norms and biases");
  t.add("beta1", c.optim.beta1, kResults, "decay of the first moment");
  t.add("beta2", c.optim.beta2, kResults, "decay of the second moment");
  t.add("eps", c.optim.eps, kResults, "added to the root of the second moment");
  t.add("schedule", c.optim.schedule, {"constant", "linear", "cosine"}, kResults,
        "learning rate after warmup; linear and cosine end at 0");
  t.add("warmup_steps", c.optim.warmup_steps, kResults, "linear rise at the start", "steps");
  t.add("clip", c.optim.clip, {"global", "per_expert", "none"}, kResults,
        "gradient clipping; global is exact");
  t.add("clip_norm", c.optim.clip_norm, kResults, "largest norm that clipping lets through");
  t.add("correction_speed", c.optim.correction_speed, kResults,
        "how far a step moves a router's corrections of the choice, up for experts with fewer "
        "tokens than the mean, down for those with more (DeepSeek-V3: 0.001); 0: they stay");
  t.add_or_auto("balance_loss", c.optim.balance_loss, kResults,
                "coefficient of the balance loss, by which routers share tokens out evenly; auto: "
                "the model's router_aux_loss_coef");
  t.add("z_loss", c.optim.z_loss, kResults,
        "coefficient of the z-loss, which keeps the logits of routers small (ST-MoE: 0.001); "
        "0: there is none");
  t.add("untouched", c.optim.untouched, {"exact", "skip"}, kResults,
        "an expert without tokens: AdamW of a zero gradient, or nothing");
  t.add("state", c.optim.state, {"fp32", "bf16", "8bit"}, kResults,
        "format of the moments; with bf16 weights 12, 8 or 6 bytes a parameter in all");
}

void declare_memory(RunConfig& c, OptionTable& t) {
  t.section("memory",
            "Memory, as \"24GiB\" or as \"40%\" of the machine's or cgroup's (device: of a GPU's)");
  t.add("device", c.memory.device, kLocal,
        "budget of each device, or a list in the order of train.devices; auto: 85% of a GPU's "
        "memory; on the CPU, 30% of RAM; CPU devices share what is in percent or auto");
  t.add("host", c.memory.host, kLocal, "budget of host RAM beside the device's; auto: 40%");
  t.add("disk", c.memory.disk, kLocal,
        "folder for the rest, repeat for several (none: OUTPUT_DIR/store); eval and generate put "
        "scratch files as large as the weights into the first (none: the working directory)");
  t.add("io", c.memory.io, {"auto", "uring", "threads"}, kLocal, "how the disk is driven");
  t.add("pin", c.memory.pin, kRunOnly,
        "percentage of a layer's experts, those with most tokens, that stay on the device from "
        "step to step; auto, off: none, since foreseen uses keep them as well");
  t.add("drive_tbw", c.memory.drive_tbw, kLocal,
        "rated endurance of each drive of memory.disk; train then tells how long it lasts; "
        "0: unknown",
        "TB");
}

void declare_plan(RunConfig& c, OptionTable& t) {
  t.section("plan", "Order of a step, to measure what each part of it is worth");
  t.add("prefetch", c.plan.prefetch, kRunOnly,
        "upload pages ahead of use; false: when the next task needs them");
  t.add("optimizer_at_end", c.plan.optimizer_at_end, kRunOnly,
        "the optimizer runs between steps, not beside them");
  t.add("whole_layers", c.plan.whole_layers, kRunOnly,
        "upload all experts of a layer before any of them computes");
  t.add("microbatch_major", c.plan.microbatch_major, kRunOnly,
        "the forward takes one microbatch after the other and reads weights for each");
  t.add("padded_experts", c.plan.padded_experts, kRunOnly,
        "every expert of a layer computes as many rows as the busiest one, zeros among them");
  t.add_or_auto("group_blocks", c.plan.group_blocks, kRunOnly,
                "row blocks of experts computed together; auto: 1 on a CPU alone, else up to 16",
                "blocks of 256 rows");
}

Status refuse(const std::string& key, const std::string& value, const std::string& why) {
  return Status(Exit::kUsage, key + " = " + value + ": " + why);
}

Status check_range(const char* key, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return refuse(key, std::to_string(value),
                strf("must be from %lld to %lld", (long long)low, (long long)high));
}

Status check_multiple(const char* key, int64_t value, const char* of_key, int64_t of) {
  if (value % of == 0) return Status();
  const int64_t below = value / of * of;
  const std::string fitting =
      (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + of);
  return refuse(key, std::to_string(value),
                strf("must be a multiple of %s = %lld; use ", of_key, (long long)of) + fitting);
}

// "10:12"; none when it is not of that form.
std::optional<StepRange> parse_range(const std::string& text) {
  const size_t colon = text.find(':');
  StepRange range;
  if (colon == std::string::npos || !parse_int64(text.substr(0, colon), range.first) ||
      !parse_int64(text.substr(colon + 1), range.last)) {
    return std::nullopt;
  }
  return range;
}

Status check_trace(const std::string& steps) {
  if (steps.empty()) return Status();
  const auto range = parse_range(steps);
  if (range && range->first >= 1 && range->first <= range->last) return Status();
  return refuse("train.trace_steps", toml_string(steps),
                "must be the first and the last step to trace, for example \"10:12\"");
}

// So that every pattern is a text without escapes.
Status check_freeze(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const auto fits = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             std::string_view("._-*?").find(c) != std::string_view::npos;
    };
    if (!pattern.empty() && std::all_of(pattern.begin(), pattern.end(), fits)) continue;
    return refuse("train.freeze", toml_string(pattern),
                  "must be a word as router, or the name of tensors with * and ?, for example "
                  "\"model.layers.0.*\"");
  }
  return Status();
}

Status check_counts(const RunConfig& c) {
  constexpr int64_t kMaxSteps = int64_t{1} << 40;
  constexpr int64_t kMaxTokens = int64_t{1} << 31;
  constexpr double kMostSeconds = 86400, kMostLoad = 1e6;
  const RunConfig::Train& t = c.train;
  RETURN_IF_ERROR(check_range("train.steps", t.steps, 1, kMaxSteps));
  RETURN_IF_ERROR(check_range("train.micro_batch_tokens", t.micro_batch_tokens, 0, kMaxTokens));
  RETURN_IF_ERROR(check_range("train.tokens_per_step", t.tokens_per_step, 1, kMaxTokens));
  if (t.micro_batch_tokens == 0) {
    RETURN_IF_ERROR(check_multiple("train.tokens_per_step", t.tokens_per_step,
                                   "data.sequence_len", c.data.sequence_len));
  } else {
    RETURN_IF_ERROR(check_multiple("train.micro_batch_tokens", t.micro_batch_tokens,
                                   "data.sequence_len", c.data.sequence_len));
    RETURN_IF_ERROR(check_multiple("train.tokens_per_step", t.tokens_per_step,
                                   "train.micro_batch_tokens", t.micro_batch_tokens));
  }
  RETURN_IF_ERROR(c.check_sums());
  RETURN_IF_ERROR(check_range("train.seed", t.seed, 0, INT64_MAX));
  RETURN_IF_ERROR(check_range("train.save_steps", t.save_steps, 0, kMaxSteps));
  RETURN_IF_ERROR(check_range("train.eval_steps", t.eval_steps, 0, kMaxSteps));
  // Times the rows of a microbatch, below 2^31, that is an int64.
  RETURN_IF_ERROR(check_range("train.eval_batches", t.eval_batches, 1, kMaxTokens));
  RETURN_IF_ERROR(check_range("train.log_steps", t.log_steps, 1, kMaxSteps));
  RETURN_IF_ERROR(check_range("train.watch_steps", t.watch_steps, 0, kMaxSteps));
  if (!(t.watch_load == 0 || (t.watch_load > 1 && t.watch_load <= kMostLoad))) {
    return refuse("train.watch_load", real_text(t.watch_load),
                  "must be 0 or above 1, for example 8");
  }
  RETURN_IF_ERROR(check_trace(t.trace_steps));
  RETURN_IF_ERROR(check_range("train.threads", t.threads, 0, 1024));
  RETURN_IF_ERROR(check_range("train.optimizer_threads", t.optimizer_threads, 0, 1024));
  auto devices = parse_devices(t.devices);
  if (!devices.ok()) {
    return Status(devices.status().code(), "train.devices: " + devices.status().message());
  }
  const int64_t most = devices->empty() ? kMostDevices : c.num_devices();
  RETURN_IF_ERROR(check_range("parallel.attention_devices", c.parallel.attention_devices, 0, most));
  const double beat = c.parallel.heartbeat_s, deadline = c.parallel.deadline_s;
  if (!(beat >= 0.05 && beat <= kMostSeconds)) {
    return refuse("parallel.heartbeat_s", real_text(beat), "must be from 0.05 to 86400");
  }
  if (deadline >= 3 * beat && deadline <= kMostSeconds) return Status();
  return refuse(
      "parallel.deadline_s", real_text(deadline),
      strf("must be from three times parallel.heartbeat_s = %s to 86400", real_text(beat).c_str()));
}

// A device that attends has a shard of its own. The checkpoint fixes how many there are.
Status check_attention(const RunConfig& c) {
  const int64_t wanted = c.parallel.attention_devices;
  if (wanted <= 1 || c.train.micro_batch_tokens == 0 || wanted <= c.sums().shards) return Status();
  const int64_t shards = c.sums().shards;
  return Status(
      Exit::kMismatch,
      strf("parallel.attention_devices = %lld: a step has %lld train.shards, one for each "
           "device at least; let at most %lld attend, or set train.shards, which changes "
           "bits",
           (long long)wanted, (long long)shards, (long long)shards));
}

Status check_data(const RunConfig::Data& d) {
  RETURN_IF_ERROR(check_range("data.sequence_len", d.sequence_len, 2, 1 << 24));
  const auto fields = RowFields::parse(d.fields);
  if (!fields.ok()) {
    return refuse("data.fields", toml_string(d.fields), fields.status().message());
  }
  RETURN_IF_ERROR(check_template_date(d.chat_date));
  return check_template_choice(d.chat_template);
}

constexpr double kLargestCoefficient = 1e6;  // of a loss; config.json's balance loss has it, too

// Copies and early ends need what they follow.
Status check_copies(const RunConfig& c) {
  constexpr int64_t kMostCopies = 1 << 20;
  const RunConfig::Train& t = c.train;
  RETURN_IF_ERROR(check_range("train.early_stop", t.early_stop, 0, kMostCopies));
  RETURN_IF_ERROR(check_range("train.keep_copies", t.keep_copies, 0, kMostCopies));
  const bool evaluates = !c.data.eval_path.empty() && t.eval_steps > 0;
  const char* none = "there are no evaluations; set data.eval_path and train.eval_steps";
  if (t.early_stop > 0 && !evaluates) {
    return refuse("train.early_stop", std::to_string(t.early_stop), none);
  }
  if (t.keep_best && !evaluates) return refuse("train.keep_best", "true", none);
  if (t.keep_copies == 0 || t.save_steps > 0) return Status();
  return refuse("train.keep_copies", std::to_string(t.keep_copies),
                "there are no checkpoints; set train.save_steps");
}

Status check_optim(const RunConfig::Optim& o, int64_t steps) {
  const auto check = [](bool good, const char* key, double value, const char* why) {
    return good ? Status() : refuse(key, real_text(value), why);
  };
  RETURN_IF_ERROR(check(o.learning_rate > 0, "optim.learning_rate", o.learning_rate,
                        "must be above 0, for example 1e-5"));
  RETURN_IF_ERROR(check(o.weight_decay >= 0, "optim.weight_decay", o.weight_decay,
                        "must not be negative; 0 turns decay off"));
  RETURN_IF_ERROR(check(o.beta1 >= 0 && o.beta1 < 1, "optim.beta1", o.beta1,
                        "must be at least 0 and below 1, for example 0.9"));
  RETURN_IF_ERROR(check(o.beta2 >= 0 && o.beta2 < 1, "optim.beta2", o.beta2,
                        "must be at least 0 and below 1, for example 0.95"));
  RETURN_IF_ERROR(check(o.eps > 0, "optim.eps", o.eps, "must be above 0, for example 1e-8"));
  RETURN_IF_ERROR(check(o.clip_norm > 0, "optim.clip_norm", o.clip_norm,
                        "must be above 0; optim.clip = \"none\" turns clipping off"));
  RETURN_IF_ERROR(check(o.correction_speed >= 0 && o.correction_speed <= 1,
                        "optim.correction_speed", o.correction_speed,
                        "must be from 0 to 1, for example 0.001"));
  RETURN_IF_ERROR(check(o.balance_loss <= kLargestCoefficient, "optim.balance_loss", o.balance_loss,
                        "must be auto or from 0 to 1e6, for example 0.01"));
  RETURN_IF_ERROR(check(o.z_loss >= 0 && o.z_loss <= kLargestCoefficient, "optim.z_loss", o.z_loss,
                        "must be from 0 to 1e6, for example 0.001"));
  RETURN_IF_ERROR(check_range("optim.warmup_steps", o.warmup_steps, 0, INT64_MAX));
  if (o.warmup_steps <= steps) return Status();
  return refuse("optim.warmup_steps", std::to_string(o.warmup_steps),
                strf("must not exceed train.steps = %lld", (long long)steps));
}

Status check_sample(const RunConfig::Sample& s) {
  RETURN_IF_ERROR(check_range("sample.max_new_tokens", s.max_new_tokens, 1, 1 << 24));
  RETURN_IF_ERROR(check_range("sample.steps", s.steps, 0, int64_t{1} << 40));
  for (const std::string& prompt : s.prompts) {
    if (prompt.empty()) return refuse("sample.prompts", "\"\"", "there is nothing to continue");
  }
  return Status();
}

Status check_budget(const char* key, const MemorySize& size) {
  if (size.resolve(INT64_MAX, 1) > 0) return Status();
  return refuse(key, toml_string(size.text()), "must be above 0, for example \"2GiB\" or \"30%\"");
}

// memory.pin as a share of experts; nothing when it is not one.
std::optional<double> parse_pin(const std::string& text) {
  if (text == "auto" || text == "off") return 0.0;
  double percent = 0;
  const bool good = text.ends_with('%') &&
                    parse_real(std::string_view(text).substr(0, text.size() - 1), percent) &&
                    percent >= 0 && percent <= 100;
  if (!good) return std::nullopt;
  return percent / 100;
}

// A list of budgets has one for each device.
Status check_device_budgets(const RunConfig& c) {
  const std::vector<MemorySize>& budgets = c.memory.device.listed();
  for (const MemorySize& budget : budgets) {
    RETURN_IF_ERROR(check_budget("memory.device", budget));
  }
  const size_t devices = c.devices().size();
  if (budgets.size() == 1 || budgets.size() == devices) return Status();
  return Status(Exit::kUsage, strf("memory.device lists %zu budgets and train.devices has %zu "
                                   "device%s; give one for each, in their order, or one for all",
                                   budgets.size(), devices, devices == 1 ? "" : "s"));
}

Status check_memory(const RunConfig::Memory& m) {
  RETURN_IF_ERROR(check_budget("memory.host", m.host));
  if (!parse_pin(m.pin)) {
    return refuse("memory.pin", toml_string(m.pin), "must be auto, off or a percentage as \"25%\"");
  }
  if (m.drive_tbw < 0) {
    return refuse("memory.drive_tbw", real_text(m.drive_tbw), "must not be negative");
  }
  for (size_t i = 0; i < m.disk.size(); ++i) {
    if (m.disk[i].empty()) return refuse("memory.disk", "\"\"", "name a folder, or leave it out");
    for (size_t j = 0; j < i; ++j) {
      if (m.disk[i] != m.disk[j]) continue;
      return refuse("memory.disk", toml_string(m.disk[i]), "is named twice; name a folder once");
    }
  }
  return Status();
}

Status missing(const char* key, const char* what) {
  return Status(Exit::kUsage,
                strf("%s is missing: name %s in the run file or with --%s", key, what, key));
}

}  // namespace

void RunConfig::declare(OptionTable& table) {
  declare_inputs(*this, table);
  declare_train(*this, table);
  declare_parallel(*this, table);
  declare_sample(*this, table);
  declare_optim(*this, table);
  declare_memory(*this, table);
  declare_plan(*this, table);
}

namespace {

// All rules but check_attention() and check_gpus().
Status check_values(const RunConfig& c) {
  RETURN_IF_ERROR(check_data(c.data));
  RETURN_IF_ERROR(check_counts(c));
  RETURN_IF_ERROR(check_freeze(c.train.freeze));
  RETURN_IF_ERROR(check_sample(c.sample));
  RETURN_IF_ERROR(check_optim(c.optim, c.train.steps));
  if (c.plan.group_blocks > kMostTogether) {
    return refuse("plan.group_blocks", std::to_string(c.plan.group_blocks),
                  strf("must be auto or from 1 to %lld", (long long)kMostTogether));
  }
  RETURN_IF_ERROR(check_device_budgets(c));
  return check_memory(c.memory);
}

}  // namespace

Status RunConfig::validate() const {
  RETURN_IF_ERROR(validate_for_planning());
  return check_gpus();
}

Status RunConfig::validate_for_planning() const {
  RETURN_IF_ERROR(check_values(*this));
  RETURN_IF_ERROR(check_zebra_run(*this));
  return check_attention(*this);
}

Status RunConfig::validate_data() const { return check_data(data); }

Status RunConfig::validate_for_training() const {
  if (model.path.empty()) return missing("model.path", "a Hugging Face folder");
  if (data.path.empty()) return missing("data.path", "a text");
  for (const std::string& path : data.path) {
    if (path.empty()) return refuse("data.path", "\"\"", "name a file");
  }
  if (train.output_dir.empty()) return missing("train.output_dir", "a new folder");
  RETURN_IF_ERROR(check_copies(*this));
  RETURN_IF_ERROR(check_values(*this));
  return check_gpus();
}

Status RunConfig::check_sums() const {
  constexpr int64_t kMaxShards = 64;
  const Train& t = train;
  RETURN_IF_ERROR(check_range("train.chunks", t.chunks, 1, INT64_MAX));
  RETURN_IF_ERROR(check_range("train.shards", t.shards, 0, kMaxShards));
  RETURN_IF_ERROR(check_range("train.expert_shards", t.expert_shards, 1, kMaxShards));
  if (t.micro_batch_tokens == 0) return Status();  // chosen so that they divide
  if (micro_batches() % t.chunks != 0) {
    return refuse("train.chunks", std::to_string(t.chunks),
                  strf("must divide the step's %lld microbatches", (long long)micro_batches()));
  }
  const int64_t columns = micro_batches() / t.chunks;
  if (t.shards > 0 && columns % t.shards != 0) {
    return refuse("train.shards", std::to_string(t.shards),
                  strf("must divide the %lld microbatches of a chunk; auto takes %lld",
                       (long long)columns, (long long)default_shards(columns)));
  }
  const int64_t shards = sums().shards;
  if (t.expert_shards == 1 || t.expert_shards == shards) return Status();
  return refuse("train.expert_shards", std::to_string(t.expert_shards),
                strf("must be 1, or as many as train.shards, which is %lld", (long long)shards));
}

std::optional<StepRange> RunConfig::trace_range() const { return parse_range(train.trace_steps); }

Result<ExampleOptions> RunConfig::example_options(const std::string& model_path) const {
  ExampleOptions options;
  options.kind = data.kind;
  options.train_on = data.train_on;
  ASSIGN_OR_RETURN(options.fields, RowFields::parse(data.fields));
  ASSIGN_OR_RETURN(options.chat,
                   find_chat_template(model_path, data.chat_template, data.chat_date));
  return options;
}

double RunConfig::pinned_share() const { return *parse_pin(memory.pin); }

}  // namespace pagoda
