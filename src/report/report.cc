#include "report/report.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "config/usable_gpu.h"
#include "train/process_memory.h"
#include "train/saved_layers.h"

namespace pagoda {
namespace {

// Bytes of one kind of page: all pages, and those that fit in slots.
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

std::string layer_buffers_line(const Held& h) {
  const bool thrashes = h.device < h.all;
  return held_line("in-layer", h) +
         (thrashes
              ? "; they move for one expert after the other: a higher memory.device or a lower "
                "train.tokens_per_step is faster"
              : "");
}

std::string cache_line(const ModelConfig& config, const WorkspaceSize& size) {
  const int64_t elements = size.cache.elements(model_shape(config));
  return strf("  %-12s %11s for %lld prompt%s of up to %lld tokens, in the workspace%s", "cache",
              format_bytes(elements * dtype_bytes(size.dtype)).c_str(),
              (long long)size.cache.sequences, size.cache.sequences == 1 ? "" : "s",
              (long long)size.cache.positions,
              size.training ? "; steps use it too" : "");
}

// The most tokens of a step, in microbatches like these, that memory.device has room for beside
// `page_bytes` and `microbatch_bytes` for each microbatch.
int64_t most_tokens(const ModelConfig& config, const SessionOptions& options, int64_t page_bytes,
                    int64_t microbatch_bytes) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const ModelShape model = model_shape(config);
  // Several devices attend to equal parts of it.
  const SumShape& sums = options.size.sums;
  const int64_t unit = options.size.shard_device.empty() ? 1 : sums.chunks * sums.shards;
  const int64_t unit_tokens = unit * options.size.microbatch_tokens;
  const auto bytes = [&](int64_t units) {
    WorkspaceSize size = options.size;
    size.microbatches = units * unit;
    if (unit == 1) size.sums = SumShape();
    return workspace_bytes(model, size, 0) + page_bytes + units * unit * microbatch_bytes;
  };
  int64_t fit = 0, too_many = kMost / unit_tokens + 1;
  while (too_many - fit > 1) {
    const int64_t middle = fit + (too_many - fit) / 2;
    (bytes(middle) <= options.device_bytes.of(0) ? fit : too_many) = middle;
  }
  return fit * unit_tokens;
}

// A task's pages do not depend on the number of microbatches; whether all in-layer buffers stay
// does.
std::string workspace_line(const ModelConfig& config, const SessionOptions& options,
                           const PageTable& pages, const MemoryPlan& memory) {
  const SessionOptions none = keeping_none(options);
  const int64_t workspace = workspace_bytes(model_shape(config), none.size, 0);
  const int64_t needed = memory.min_on_device[0] - workspace;
  const int64_t layer_buffers =
      held(pages, memory, PageKind::kLayerBuffer).all / options.size.microbatches;
  return strf(
      "  %-12s %11s on the device for %lld tokens a step; memory.device has room for %lld, "
      "for %lld with all their in-layer buffers",
      "workspace", format_bytes(workspace_bytes(config, none)).c_str(),
      (long long)options.size.tokens(), (long long)most_tokens(config, none, needed, 0),
      (long long)most_tokens(config, none, needed, layer_buffers));
}

std::string sums_line(const SessionOptions& options, const PageTable& pages,
                      const MemoryPlan& memory) {
  const SumShape& sums = options.size.sums;
  return strf("  %-12s %11s on the devices, for dense gradients in %lld shard%s of the step%s",
              "sums", format_bytes(memory.on_devices(pages, PageKind::kGradientSum)).c_str(),
              (long long)sums.shards, sums.shards == 1 ? "" : "s",
              sums.shards == 1 ? "" : "; fewer train.shards take less");
}

std::string expert_sums_line(const SessionOptions& options, int64_t bytes) {
  const SumShape& sums = options.size.sums;
  return strf("  %-12s %11s on the devices, for experts' gradients in %lld chunk%s of %lld part%s",
              "", format_bytes(bytes).c_str(), (long long)sums.chunks, sums.chunks == 1 ? "" : "s",
              (long long)sums.expert_shards, sums.expert_shards == 1 ? "" : "s");
}

std::string guests_line(const MemoryPlan& memory, int64_t bytes) {
  return strf("  %-12s %11s on the devices, for weights of other processes' experts%s", "guests",
              format_bytes(bytes).c_str(),
              memory.guest_layers == 0
                  ? ", which come when they are due"
                  : strf(" in %lld layers", (long long)memory.guest_layers).c_str());
}

std::string kept_line(const ModelConfig& config, const SessionOptions& options,
                      const MemoryPlan& memory) {
  const SessionOptions none = keeping_none(options);
  const int64_t bytes = workspace_bytes(config, options) - workspace_bytes(config, none);
  const int64_t all = memory.whole_device_bytes + most_kept_bytes(config, options);
  return strf("  %-12s %11s on the device, which %lld of %lld layers do not compute again%s",
              "kept", format_bytes(bytes).c_str(), (long long)options.size.saved_layers,
              (long long)config.num_layers,
              options.size.saved_layers == config.num_layers || !memory.state_on_device
                  ? ""
                  : strf("; all from memory.device = %s on", format_bytes_up(all).c_str()).c_str());
}

std::string table_line(const char* table, int rank) {
  return strf("%s at home on rank %d, which has room for its optimizer state", table, rank);
}

// What is not kept and not moved, since it does not train.
std::string frozen_line(const SessionOptions& options, const RunShape& shape) {
  int64_t state = 0, gradients = 0;
  for (const RecordShape& record : shape.records) {
    state += StateLayout(options.adam.state, options.size.dtype, record.num_elements).bytes -
             record.state_bytes;
    gradients += record.frozen_elements * shape.dtype_bytes;
  }
  return strf("frozen: %.1f M parameters; optimizer state is %s smaller for it, gradients %s",
              static_cast<double>(options.frozen.elements) / 1e6, format_bytes(state).c_str(),
              format_bytes(gradients).c_str());
}

std::string texts_of(const std::vector<Gpu>& gpus) {
  std::string text;
  for (const Gpu& gpu : gpus) text += (text.empty() ? "" : ", ") + gpu.text();
  return text;
}

}  // namespace

void warn_of_gpus(const RunConfig& config) {
  const std::string why_not = config.unused_gpu();
  if (!why_not.empty()) log_warn("the CPU computes: " + why_not);
  const std::vector<Gpu> gpus = config.gpus();
  if (are_alike(gpus)) return;
  log_warn("train.devices names unlike GPUs, " + texts_of(gpus) +
           ": their kernels may round differently, so bits depend on which of them computes what; "
           "with others, or with other budgets, the same run file may have other bits");
}

std::string groups_text(int64_t blocks, int64_t in_flight) {
  std::string text = strf("groups of up to %lld block%s of %lld rows", (long long)blocks,
                          blocks == 1 ? "" : "s", (long long)kRowBlock);
  if (in_flight == 1) return text;
  return text + strf(", %lld of them in flight on each device", (long long)in_flight);
}

std::vector<std::string> plan_report(const ModelConfig& config, const SessionOptions& options,
                                     const MemoryPlan& memory, const RunOutlook& outlook) {
  const TensorTable table = TensorTable::make(config);
  const RunShape shape = make_run_shape(model_shape(config), options);
  const PageTable pages(shape);
  const SteadyTraffic traffic = predict_traffic(shape, pages, memory);
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
  if (options.frozen.elements > 0) lines.push_back(frozen_line(options, shape));
  if (!options.gpus.empty()) lines.push_back("computes on " + texts_of(options.gpus));
  lines.push_back(offload_line(options, memory, traffic.step));
  lines.push_back(
      strf("device: %s of %s (%s workspace, %s slots); smallest memory.device that would do: %s",
           format_bytes(workspace + slots).c_str(),
           format_bytes(options.device_bytes.sum(options.own_devices().count)).c_str(),
           format_bytes(workspace).c_str(), format_bytes(slots).c_str(),
           format_bytes_up(memory.min_device_bytes).c_str()));
  if (config.num_experts > 0) {
    lines.push_back("experts: " + groups_text(shape.group_blocks, waves_in_flight(shape)));
  }
  lines.push_back(strf("host:   %s of %s; smallest memory.host that would do: %s",
                       format_bytes(memory.host_slot_bytes).c_str(),
                       format_bytes(options.host_bytes).c_str(),
                       format_bytes_up(memory.min_host_bytes).c_str()));
  const TableRanks& tables = options.table_ranks;
  if (tables.embedding >= 0) lines.push_back(table_line("embedding:", tables.embedding));
  if (tables.head >= 0) lines.push_back(table_line("head:  ", tables.head));
  lines.push_back(disk_line(shape, pages, options, outlook));
  lines.push_back(held_line("weights", held(pages, memory, PageKind::kWeights)));
  if (options.size.training) {
    lines.push_back(held_line("state", held(pages, memory, PageKind::kState)));
    lines.push_back(held_line("gradients", held(pages, memory, PageKind::kGradient)));
  }
  lines.push_back(held_line("activations", held(pages, memory, PageKind::kActivation)));
  lines.push_back(layer_buffers_line(held(pages, memory, PageKind::kLayerBuffer)));
  if (options.size.training) {
    lines.push_back(workspace_line(config, options, pages, memory));
    lines.push_back(sums_line(options, pages, memory));
    const int64_t of_experts = memory.on_devices(pages, PageKind::kExpertSum);
    if (of_experts > 0) lines.push_back(expert_sums_line(options, of_experts));
    const int64_t of_guests = memory.on_devices(pages, PageKind::kGuestWeights);
    if (of_guests > 0) lines.push_back(guests_line(memory, of_guests));
  }
  if (options.size.saved_layers > 0 || (options.size.training && memory.state_on_device)) {
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
                       options.gpus.empty() ? "" : ", and what the NVIDIA driver takes"));
  return lines;
}

}  // namespace pagoda
