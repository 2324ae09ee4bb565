#include "config/run_config.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "base/file.h"
#include "base/number_text.h"
#include "config/network_config.h"
#include "config/option_value.h"
#include "config/pipeline_config.h"
#include "config/sharing_config.h"
#include "config/zebra_config.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

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

Status check_ports(const std::string& ports) {
  if (ports.empty()) return Status();
  const auto range = parse_range(ports);
  if (range && range->first >= 1 && range->first <= range->last && range->last <= 65535) {
    return Status();
  }
  return refuse("parallel.ports", toml_string(ports),
                "must be the first and the last port, for example \"7000:7099\"");
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
  constexpr double kMostSeconds = 86400, kMostWorkSeconds = 864000, kMostLoad = 1e6;
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
  RETURN_IF_ERROR(c.check_devices());
  const int64_t most = parse_devices(t.devices).value().empty() ? kMostDevices : c.num_devices();
  RETURN_IF_ERROR(check_range("parallel.attention_devices", c.parallel.attention_devices, 0, most));
  RETURN_IF_ERROR(check_range("parallel.copies", c.parallel.copies, 1, kMostDevices));
  RETURN_IF_ERROR(check_range("parallel.migrate_steps", c.parallel.migrate_steps, 0, kMaxSteps));
  const double beat = c.parallel.heartbeat_s, deadline = c.parallel.deadline_s;
  if (!(beat >= 0.05 && beat <= kMostSeconds)) {
    return refuse("parallel.heartbeat_s", real_text(beat), "must be from 0.05 to 86400");
  }
  if (!(deadline >= 3 * beat && deadline <= kMostSeconds)) {
    return refuse("parallel.deadline_s", real_text(deadline),
                  strf("must be from three times parallel.heartbeat_s = %s to 86400",
                       real_text(beat).c_str()));
  }
  const double work = c.parallel.work_s;
  if (!(work > 0 && work <= kMostWorkSeconds)) {
    return refuse("parallel.work_s", real_text(work), "must be above 0 and at most 864000");
  }
  return check_ports(c.parallel.ports);
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

// All rules but check_attention() and check_gpus().
Status check_values(const RunConfig& c) {
  RETURN_IF_ERROR(check_data(c.data));
  RETURN_IF_ERROR(check_counts(c));
  RETURN_IF_ERROR(check_freeze(c.train.freeze));
  RETURN_IF_ERROR(check_sample(c.sample));
  RETURN_IF_ERROR(check_optim(c.optim, c.train.steps));
  if (c.plan.group_blocks > kMostGroupBlocks) {
    return refuse("plan.group_blocks", std::to_string(c.plan.group_blocks),
                  strf("must be auto or from 1 to %lld", (long long)kMostGroupBlocks));
  }
  const int64_t waves = c.plan.waves_in_flight;
  if (waves != 0 && (waves < kLeastWaves || waves > kMostWaves)) {
    return refuse(
        "plan.waves_in_flight", std::to_string(waves),
        strf("must be auto or from %lld to %lld", (long long)kLeastWaves, (long long)kMostWaves));
  }
  RETURN_IF_ERROR(check_network_rates(c));
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
  RETURN_IF_ERROR(check_pipeline_run(*this));
  RETURN_IF_ERROR(check_expert_copies(*this));
  RETURN_IF_ERROR(check_copied_sums(*this));
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
  if (t.micro_batch_tokens == 0) return check_sharing(*this);  // chosen so that they divide
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
  if (t.expert_shards == 1 || t.expert_shards == shards) return check_sharing(*this);
  return refuse("train.expert_shards", std::to_string(t.expert_shards),
                strf("must be 1, or as many as train.shards, which is %lld", (long long)shards));
}

std::optional<StepRange> RunConfig::trace_range() const { return parse_range(train.trace_steps); }

StepRange RunConfig::port_range() const {
  return parse_range(parallel.ports).value_or(StepRange());
}

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
