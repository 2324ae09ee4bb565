// RunConfig holds all settings of a run. Member names equal the keys of the run file and the flags:
// train.steps is [train] steps in the file and --train.steps on the command line. Each option is
// declared once, in declare(); help, parsing, resolved.toml and the hash walk that declaration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/memory_size.h"
#include "base/options.h"
#include "base/status.h"
#include "config/device_list.h"
#include "data/dataset.h"
#include "data/example.h"
#include "device/gpus.h"
#include "offload/storage.h"
#include "optim/schedule.h"
#include "optim/state_format.h"
#include "plan/machine/device_budget.h"
#include "plan/step/assignment.h"
#include "plan/step/lags.h"
#include "plan/step/run_shape.h"

namespace pagoda {

enum class ClipKind : uint8_t { kGlobal, kPerExpert, kNone };
// The update of an expert without tokens: what AdamW does for a zero gradient (lazily), or nothing.
enum class UntouchedKind : uint8_t { kExact, kSkip };

// Where an expert is computed: on the device of its home, or of a seat that it gets in each step.
enum class PlaceKind : uint8_t { kStep, kHome };
enum class LayoutKind : uint8_t { kAuto, kExperts, kZebra, kPipeline };
enum class ExchangeSetting : uint8_t { kAuto, kFlat, kHalo, kRounds };

// Steps of a run, counted from 1; both belong to it.
struct StepRange {
  int64_t first = 0, last = 0;
};

struct RunConfig {
  struct Model {
    std::string path;
  } model;

  struct Data {
    std::vector<std::string> path;
    std::string eval_path;
    int64_t sequence_len = 1024;
    TooLong too_long = TooLong::kTruncate;
    RowKind kind = RowKind::kAuto;
    std::string fields;
    std::string chat_template = "auto";
    std::string chat_date;
    TrainOn train_on = TrainOn::kAssistant;
  } data;

  struct Train {
    int64_t steps = 1000;
    int64_t tokens_per_step = 16384;
    int64_t micro_batch_tokens = 4096;  // 0: auto
    int64_t chunks = 1;
    int64_t shards = 0;  // 0: auto
    int64_t expert_shards = 1;
    int64_t seed = 0;
    DType dtype = DType::kBF16;
    std::vector<std::string> freeze;
    std::vector<std::string> devices = {"auto"};
    std::string output_dir;
    int64_t save_steps = 500;
    int64_t eval_steps = 100;
    int64_t eval_batches = 8;
    int64_t early_stop = 0;
    bool keep_best = false;
    int64_t keep_copies = 0;
    int64_t log_steps = 10;
    bool tensorboard = false;
    int64_t watch_steps = 100;
    double watch_load = 8.0;
    std::string trace_steps;
    std::string trace_routing;
    int64_t threads = 0;
    int64_t optimizer_threads = 0;
  } train;

  struct Parallel {
    LayoutKind layout = LayoutKind::kAuto;
    int64_t attention_devices = 0;
    std::vector<std::string> offloaded = {"auto"};
    std::vector<std::string> lags = {"auto"};
    std::string kept_rows = "auto";
    int64_t stages = 0;  // 0: auto
    std::vector<std::string> stage_layers = {"auto"};
    int64_t copies = 1;
    PipelineOrder order = PipelineOrder::kBreadthFirst;
    ExchangeSetting exchange = ExchangeSetting::kAuto;
    std::vector<std::string> network_gb_s = {};
    ShareKind shares = ShareKind::kSpeed;
    PlaceKind place = PlaceKind::kStep;
    Sharing sharing = Sharing::kAuto;
    std::vector<std::string> hidden_shares = {};
    int64_t migrate_steps = 0;
    double deadline_s = 60;
    double work_s = 14400;
    double heartbeat_s = 5;
    std::string ports;
    bool nccl = true;
  } parallel;

  struct Sample {
    std::vector<std::string> prompts;
    int64_t max_new_tokens = 64;
    int64_t steps = 0;
    bool chat = false;
  } sample;

  struct Optim {
    double learning_rate = 1e-5;
    double weight_decay = 0.01;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    ScheduleKind schedule = ScheduleKind::kCosine;
    int64_t warmup_steps = 0;
    ClipKind clip = ClipKind::kGlobal;
    double clip_norm = 1.0;
    double correction_speed = 0.0;
    double balance_loss = -1;  // negative: auto
    double z_loss = 0.0;
    UntouchedKind untouched = UntouchedKind::kExact;
    StateFormat state = StateFormat::kFp32;
  } optim;

  struct Memory {
    MemorySizes device;  // auto: 85 % of a GPU's memory; of usable memory, 30 % over all devices
    MemorySize host;    // auto: 40 % of usable memory
    std::vector<std::string> disk;
    IoKind io = IoKind::kAuto;
    std::string pin = "auto";
    double drive_tbw = 0;  // 10^12 bytes; 0: unknown
  } memory;

  PlanOptions plan;

  // No option: devices of all processes of the run; 0: devices() are all.
  int64_t total_devices = 0;
  // No option, planned alone (preview/equal_copies.h): so many runs like this one add up their
  // gradients, and each is home to so large a part of every record's elements.
  int64_t equal_copies = 1;

  // Adds every option to `table`, which then refers to this object.
  void declare(OptionTable& table);

  // Checks the rules of single values and between values that hold for every use. kUsage naming
  // key, value and remedy.
  Status validate() const;
  // kUsage: what train.devices names is no list of devices (parse_devices()).
  Status check_devices() const;
  // Checks that GPUs which train.devices names are there, and usable.
  Status check_gpus() const;
  // Checks that chunks, shards and expert_shards divide what they must. REQUIRES: tokens are above
  // 0.
  Status check_sums() const;
  // Checks the rules of [data] alone.
  Status validate_data() const;
  // Checks that the keys which training needs are set, and validate() but for what depends on the
  // number of shards: a resumed run takes its checkpoint's first (preview/micro_batch_choice.h).
  Status validate_for_training() const;
  // validate() but for check_gpus(): the machine that is planned for may be another.
  Status validate_for_planning() const;

  // XXH3-64 over the options that affect results. Two runs with equal hashes, data and model
  // compute the same bits. The number of steps counts only where the schedule depends on it, so
  // that a constant-rate run may be resumed for longer. A build with other options has other
  // hashes.
  uint64_t config_hash() const;
  // The options the hash covers, one "key = value" a line, to name what differs from a checkpoint.
  std::string hashed_text() const;
  // sums() of `toml`, a text that to_toml() made; shards are 0 if it has none. A resumed run may
  // have other shards: sums change between steps, and the bits from there on are another run's.
  static SumShape saved_sums(const std::string& toml);
  // data.chat_date of a text that to_toml() made; "": it has none.
  static std::string saved_chat_date(const std::string& toml);
  // train.freeze of a text that to_toml() made.
  static std::vector<std::string> saved_freeze(const std::string& toml);
  static std::vector<int64_t> saved_hidden_shares(const std::string& toml);
  // The first option that affects results and differs from the same one in `toml`, a text that
  // to_toml() made: "optim.beta1 is 0.9, was 0.8"; "" when there is none. An option that the text
  // does not have, since its build had not, was at its default. One that this build does not have
  // differs.
  std::string difference_from(const std::string& toml) const;

  // A run file with every option in it; parses back to an equal configuration.
  std::string to_toml() const;

  // The same as one JSON object, "section.key": value.
  std::string to_json() const;

  // Derived values, so that each default rule has one place.
  std::vector<std::string> disk_directories() const;  // memory.disk, or OUTPUT_DIR/store
  std::string scratch_parent() const;  // for runs without output: memory.disk's first, or "."
  int compute_threads() const;                        // train.threads, or the usable cores
  // The threads that compute on one of devices(): a slowed CPU device has one, and the others
  // divide compute_threads().
  int threads_of(const ListedDevice& device) const;
  // train.optimizer_threads, or as many as compute_threads(), at most 16 for each NUMA node.
  // Updates and compute share the cores; with fewer threads than cores, an update that compute
  // waits for would take longer. But updates wait for memory, and 16 cores use up the rate of a
  // node's.
  int optimizer_threads() const;
  // [device] the GPUs that the run computes on; empty: the CPU. It looks for GPUs at each call;
  // those that train.devices names and check_gpus() refuses have no memory.
  std::vector<Gpu> gpus() const;
  std::optional<Gpu> gpu() const;  // the first of them
  std::string unused_gpu() const;  // why auto computes on the CPU though a GPU is there; or ""
  // memory.device on this machine: CPU devices have equal parts of its memory.
  DeviceBudget device_budget() const;
  // memory.device of devices with so much memory each; auto is a share of that.
  DeviceBudget device_budget(std::span<const int64_t> memory_bytes, double auto_share) const;
  int64_t device_bytes() const { return device_budget().of(0); }  // of the first device
  int64_t host_bytes() const;                         // memory.host on this machine
  double pinned_share() const;                        // memory.pin of each layer's experts; 0: off
  // train.trace_steps; none: nothing is traced. REQUIRES: validate().
  std::optional<StepRange> trace_range() const;
  StepRange port_range() const;  // zeros: any
  // How rows become examples for the model in this folder. Returns the errors of
  // find_chat_template.
  Result<ExampleOptions> example_options(const std::string& model_path) const;
  // REQUIRES: train.micro_batch_tokens is a number by now (preview/micro_batch_choice.h).
  // train.chunks, train.shards and train.expert_shards; the same is required.
  SumShape sums() const;
  // train.devices; one where it is auto. REQUIRES: validate().
  std::vector<ListedDevice> devices() const;
  int64_t num_devices() const { return std::max(total_devices, std::ssize(devices())); }
  // parallel.attention_devices of so many devices; the same as for sums() is required.
  int64_t attention_devices(int64_t devices) const;
  bool zebra() const { return parallel.layout == LayoutKind::kZebra; }
  // parallel.stages of a pipeline or of zebra, else 1.
  int stages() const;
  int copies() const { return static_cast<int>(parallel.copies); }
  // parallel.exchange; auto, which only a plan of a cluster replaces, is flat.
  ExchangeOrder exchange() const {
    switch (parallel.exchange) {
      case ExchangeSetting::kHalo:
        return ExchangeOrder::kHalo;
      case ExchangeSetting::kRounds:
        return ExchangeOrder::kRounds;
      default:
        return ExchangeOrder::kFlat;
    }
  }
  // [rank] parallel.network_gb_s; empty: all alike. REQUIRES: validate().
  std::vector<double> network_rates() const;
  // Whether the planner is to choose them for a run (preview/zebra_choice.h); whoever does not ask
  // it gets 1 1 1, 0 and 0.
  bool auto_lags() const;
  bool auto_offloaded() const;
  bool auto_kept_rows() const { return parallel.kept_rows == "auto"; }
  // parallel.offloaded: one number for all layers, or one for each. REQUIRES of all: validate().
  std::vector<int64_t> offloaded() const;
  Lags lags() const;
  int64_t kept_rows() const;  // parallel.kept_rows; likewise
  // [stage] parallel.stage_layers; empty: by the speed of its devices. Likewise.
  std::vector<int64_t> stage_layers() const;
  bool auto_stage_layers() const;
  // The shares of experts' parts (model/hidden_parts.h); none: experts are whole.
  std::vector<int64_t> hidden_shares() const;
  int64_t micro_batches() const { return train.tokens_per_step / train.micro_batch_tokens; }
};

}  // namespace pagoda
