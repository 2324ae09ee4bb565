#include "train/report.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/machine.h"
#include "kernels/working_memory.h"
#include "plan/routing_trace.h"
#include "train/kept_layers.h"

namespace pagoda {
namespace {

// Bytes of one kind of page: all there are, and what fits in slots.
struct Held {
  int64_t all = 0, device = 0, host = 0;
};

Held held(const PageTable& pages, const MemoryPlan& memory, PageKind kind) {
  Held h;
  for (const PageTable::Class& c : pages.classes) {
    if (c.kind == kind) h.all += c.total_bytes();
  }
  h.device = std::min(h.all, memory.on_devices(pages, kind));
  h.host = std::min(h.all, memory.in_host(pages, kind));
  return h;
}

std::string held_line(const char* what, const Held& h) {
  const bool pages = h.device < h.all && h.device + h.host < h.all;
  return strf("  %-12s %11s in all: room for %s on the device, %s in host memory%s", what,
              format_bytes(h.all).c_str(), format_bytes(h.device).c_str(),
              format_bytes(h.host).c_str(), pages ? ", the rest on disk" : "");
}

std::string in_layer_line(const Held& h) {
  const bool thrashes = h.device < h.all;
  return held_line("in-layer", h) +
         (thrashes
              ? "; they move for one expert after the other: a higher memory.device or a lower "
                "train.tokens_per_step is faster"
              : "");
}

// A stack that a huge page backs, and the small blocks that malloc keeps for the thread.
constexpr int64_t kThreadBytes = 2 * kMiB + 512 * kKiB;
constexpr int64_t kTensorBytes =
    3 * kKiB;  // names and shapes in tables and files, the header's JSON
constexpr int64_t kPageBytes = 1 * kKiB;    // slots, events, versions; a checkpoint's tables
constexpr int64_t kTaskBytes = 1 * kKiB;    // a task, its closures and events while it waits

int64_t index_bytes(const TensorTable& table, const RunShape& shape) {
  return static_cast<int64_t>(table.tensors.size()) * kTensorBytes +
         static_cast<int64_t>(PageTable(shape).pages.size()) * kPageBytes;
}

KernelSizes kernel_sizes(const ModelConfig& config, const StepSize& size) {
  KernelSizes sizes;
  sizes.dtype = size.dtype;
  sizes.input_dim = std::max({config.hidden_size, config.num_heads * config.head_dim,
                              config.moe_intermediate_size, config.intermediate_size,
                              config.shared_intermediate_size});
  const int64_t qkv_dim = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  sizes.row_dim = std::max(config.hidden_size, qkv_dim);
  sizes.head_dim = config.head_dim;
  sizes.heads = config.num_heads;
  sizes.tokens = size.tokens();
  sizes.document_len = size.microbatch_tokens;
  sizes.cached_scores = size.cache.positions * (config.num_heads / config.num_kv_heads);
  return sizes;
}

// A step's input, twice while it is put together in vectors that double; two layers' tasks; of all
// layers the uses of pages that are foreseen, as a list, with their next uses, and rehearsed.
int64_t step_bytes(const ModelConfig& config, const StepSize& size, const PlanOptions& plan) {
  constexpr int64_t kTokenBytes = 17, kTasksPerBlock = 6, kBlockBytes = 1280, kPartBytes = 640;
  // Padded, every expert may have to compute all tokens of the step.
  const int64_t rows = size.tokens() *
                       (plan.padded_experts ? config.num_experts : config.experts_per_token);
  const int64_t blocks =
      div_ceil(rows, kRowBlock) + config.num_experts + 4 * size.microbatches;
  // Of a block's microbatches, the first counts as the block.
  const int64_t parts = config.num_experts * (size.microbatches - 1);
  return size.tokens() * kTokenBytes * 4 +
         2 * (blocks * kTasksPerBlock + 4 * parts) * kTaskBytes +
         config.num_layers * (blocks * kBlockBytes + parts * kPartBytes);
}

// An evaluation rounds its weights from an fp32 copy of one record at a time.
int64_t record_bytes(const TensorTable& table, const StepSize& size) {
  int64_t largest = 0;
  for (const RecordSpec& record : table.records) largest = std::max(largest, record.num_elements);
  return size.training ? 0 : largest * 4;
}

// Logits of one token, and what sampling sorts of them.
int64_t sampling_bytes(const ModelConfig& config, const StepSize& size) {
  constexpr int64_t kCandidateBytes = 3 * 16, kLogitBytes = 4;
  return size.cache.sequences > 0 ? config.vocab_size * (kCandidateBytes + kLogitBytes) : 0;
}

std::string cache_line(const ModelConfig& config, const StepSize& size) {
  return strf("  %-12s %11s for %lld prompt%s of up to %lld tokens, in the workspace%s", "cache",
              format_bytes(config.num_layers * size.cache.layer_elements(config) *
                           dtype_bytes(size.dtype)).c_str(),
              (long long)size.cache.sequences, size.cache.sequences == 1 ? "" : "s",
              (long long)size.cache.positions,
              size.training ? "; steps use it too" : "");
}

int64_t workspace_bytes(const ModelConfig& config, const SessionOptions& options) {
  const TensorTable table = TensorTable::make(config);
  int64_t bytes = 0;
  for (int d = 0; d < options.devices; ++d) {
    bytes += Executor::workspace_bytes(config, table, options.size, d);
  }
  return bytes;
}

// Tokens of a step that memory.device has room for, in microbatches like these, beside
// `page_bytes` and for each microbatch `microbatch_bytes`.
int64_t most_tokens(const ModelConfig& config, const SessionOptions& options, int64_t page_bytes,
                    int64_t microbatch_bytes) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const TensorTable table = TensorTable::make(config);
  const auto bytes = [&](int64_t microbatches) {
    StepSize size = options.size;
    size.microbatches = microbatches;
    return Executor::workspace_bytes(config, table, size, 0) + page_bytes +
           microbatches * microbatch_bytes;
  };
  int64_t fit = 0, too_many = kMost / options.size.microbatch_tokens + 1;
  while (too_many - fit > 1) {
    const int64_t middle = fit + (too_many - fit) / 2;
    (bytes(middle) <= options.device_bytes ? fit : too_many) = middle;
  }
  return fit * options.size.microbatch_tokens;
}

// What a task needs of pages does not depend on the number of microbatches; that all in-layer
// buffers stay does.
std::string workspace_line(const ModelConfig& config, const SessionOptions& options,
                           const PageTable& pages, const MemoryPlan& memory) {
  const SessionOptions none = keeping_none(options);
  const int64_t workspace =
      Executor::workspace_bytes(config, TensorTable::make(config), none.size, 0);
  const int64_t needed = memory.min_device_bytes + memory.group_bytes - workspace;
  const int64_t in_layer =
      held(pages, memory, PageKind::kInLayer).all / options.size.microbatches;
  return strf("  %-12s %11s on the device for %lld tokens a step; memory.device has room for %lld, "
              "for %lld with all their in-layer buffers",
              "workspace", format_bytes(workspace_bytes(config, none)).c_str(),
              (long long)options.size.tokens(),
              (long long)most_tokens(config, none, needed, 0),
              (long long)most_tokens(config, none, needed, in_layer));
}

std::string kept_line(const ModelConfig& config, const SessionOptions& options,
                      const MemoryPlan& memory) {
  const SessionOptions none = keeping_none(options);
  const int64_t bytes = workspace_bytes(config, options) - workspace_bytes(config, none);
  const int64_t all = memory.whole_device_bytes + most_kept_bytes(config, options);
  return strf("  %-12s %11s on the device, which %lld of %lld layers do not compute again%s",
              "kept", format_bytes(bytes).c_str(), (long long)options.size.kept_layers,
              (long long)config.num_layers,
              options.size.kept_layers == config.num_layers || !memory.state_on_device
                  ? ""
                  : strf("; all from memory.device = %s on",
                         format_bytes_up(all).c_str()).c_str());
}

}  // namespace

void warn_of_unused_gpu(const RunConfig& config) {
  const std::string why_not = config.unused_gpu();
  if (!why_not.empty()) log_warn("the CPU computes: " + why_not);
}

int session_threads(const SessionOptions& options) {
  const int workers = options.threads - 1;  // of a pool, beside the stream that calls it
  const int of_device = workers + Executor::kStreamsPerDevice + Pager::kStreamsPerDevice;
  return options.devices * of_device + options.optimizer_threads + PageFile::kStreams;
}

Status check_machine_memory(const ModelConfig& config, const SessionOptions& options,
                            const MemoryPlan& memory) {
  const int64_t on_devices = std::accumulate(memory.device_slot_bytes.begin(),
                                             memory.device_slot_bytes.end(),
                                             workspace_bytes(config, options));
  if (options.gpu && on_devices > options.gpu->memory_bytes) {
    return Status(Exit::kDeviceMemory, strf("memory.device takes %s, more than all of %s; lower it",
                                            format_bytes_up(on_devices).c_str(),
                                            options.gpu->text().c_str()));
  }
  const int64_t budgets = (options.gpu ? 0 : on_devices) + memory.host_slot_bytes;
  const int64_t overhead = fixed_overhead_bytes(config, options);
  const int64_t usable = machine_memory().usable_bytes();
  if (budgets + overhead <= usable) return Status();
  return Status(Exit::kHostMemory,
                strf("%smemory.host take %s and the program up to %s more, but "
                     "this machine or its cgroup has %s; lower the budgets, train.threads or "
                     "train.micro_batch_tokens",
                     options.gpu ? "" : "memory.device and ", format_bytes(budgets).c_str(),
                     format_bytes_up(overhead).c_str(), format_bytes(usable).c_str()));
}

int64_t fixed_overhead_bytes(const ModelConfig& config, const SessionOptions& options) {
  const TensorTable table = TensorTable::make(config);
  const RunShape shape = make_run_shape(config, table, options);
  const int threads = 1 + kMostStorageThreads + session_threads(options);
  return mapped_file_bytes() + threads * kThreadBytes + index_bytes(table, shape) +
         (options.gpu ? 0 : options.devices *
              kernel_working_bytes(kernel_sizes(config, options.size), options.threads)) +
         step_bytes(config, options.size, options.plan) + record_bytes(table, options.size) +
         (options.trace ? options.trace->most_bytes() : 0) +
         // As it grows there are the text so far and one twice as long.
         (options.trace_routing ? 3 * most_routing_bytes(shape) : 0) +
         sampling_bytes(config, options.size);
}

std::vector<std::string> plan_report(const ModelConfig& config, const SessionOptions& options,
                                     const MemoryPlan& memory, const RunOutlook& outlook) {
  const TensorTable table = TensorTable::make(config);
  const RunShape shape = make_run_shape(config, table, options);
  const PageTable pages(shape);
  const SteadyTraffic traffic = predict_traffic(shape, pages, options, memory);
  const int64_t workspace = workspace_bytes(config, options);
  const int64_t slots = std::accumulate(memory.device_slot_bytes.begin(),
                                        memory.device_slot_bytes.end(), int64_t{0});
  std::vector<std::string> lines;
  lines.push_back(strf("model: %.1f M parameters, %.1f M active per token, %lld layers, "
                       "%lld experts, top %lld",
                       static_cast<double>(table.total_parameters()) / 1e6,
                       static_cast<double>(table.active_parameters(config)) / 1e6,
                       (long long)config.num_layers, (long long)config.num_experts,
                       (long long)config.experts_per_token));
  if (options.gpu) lines.push_back("computes on " + options.gpu->text());
  lines.push_back(offload_line(options, memory, traffic.step));
  lines.push_back(strf(
      "device: %s of %s (%s workspace, %s slots); smallest memory.device that would do: %s",
      format_bytes(workspace + slots).c_str(),
      format_bytes(options.device_bytes * options.devices).c_str(), format_bytes(workspace).c_str(),
      format_bytes(slots).c_str(), format_bytes_up(memory.min_device_bytes).c_str()));
  if (options.size.group_blocks > 1) {
    lines.push_back(strf("experts: up to %lld blocks of %lld rows are computed together",
                         (long long)options.size.group_blocks, (long long)kRowBlock));
  }
  lines.push_back(strf("host:   %s of %s; smallest memory.host that would do: %s",
                       format_bytes(memory.host_slot_bytes).c_str(),
                       format_bytes(options.host_bytes).c_str(),
                       format_bytes_up(memory.min_host_bytes).c_str()));
  lines.push_back(disk_line(pages, options, outlook));
  lines.push_back(held_line("weights", held(pages, memory, PageKind::kWeights)));
  if (options.size.training) {
    lines.push_back(held_line("state", held(pages, memory, PageKind::kState)));
    lines.push_back(held_line("gradients", held(pages, memory, PageKind::kGradient)));
  }
  lines.push_back(held_line("activations", held(pages, memory, PageKind::kActivation)));
  lines.push_back(in_layer_line(held(pages, memory, PageKind::kInLayer)));
  if (options.size.training) lines.push_back(workspace_line(config, options, pages, memory));
  if (options.size.kept_layers > 0 || (options.size.training && memory.state_on_device)) {
    lines.push_back(kept_line(config, options, memory));
  }
  if (options.size.cache.sequences > 0) lines.push_back(cache_line(config, options.size));
  const std::string moved = step_line(options, traffic.step);
  if (!moved.empty()) lines.push_back(moved);
  for (std::string& line : drive_lines(pages, options, outlook, traffic)) {
    lines.push_back(std::move(line));
  }
  lines.push_back(strf("memory beyond the budgets: at most %s%s",
                       format_bytes_up(fixed_overhead_bytes(config, options)).c_str(),
                       options.gpu ? ", and what the NVIDIA driver takes" : ""));
  return lines;
}

}  // namespace pagoda
