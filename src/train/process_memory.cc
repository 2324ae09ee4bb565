#include "train/process_memory.h"

#include <algorithm>
#include <numeric>

#include "base/number_text.h"
#include "hardware/machine.h"
#include "kernels/working_memory.h"
#include "parallel/local_link.h"
#include "plan/step/routing_trace.h"

namespace pagoda {
namespace {

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

KernelSizes kernel_sizes(const ModelConfig& config, const WorkspaceSize& size) {
  KernelSizes sizes;
  sizes.dtype = size.dtype;
  sizes.input_dim = std::max({config.hidden_size, config.num_heads * config.head_dim,
                              config.moe_intermediate_size, config.intermediate_size,
                              config.shared_intermediate_size, config.kv_rank,
                              config.query_rank});
  const int64_t qkv_dim = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  // Gradients of biases are summed as those of norms are.
  const int64_t biased = config.family->limited_experts ? 2 * config.moe_intermediate_size : 0;
  sizes.row_dim = std::max({config.hidden_size, qkv_dim, config.conv_width * config.hidden_size,
                            biased, config.kv_rank, config.query_rank});
  sizes.head_dim = config.head_dim;
  sizes.heads = config.num_heads;
  sizes.windows = config.sliding_window > 0;
  sizes.tokens = size.tokens();
  sizes.document_len = size.microbatch_tokens;
  sizes.cached_scores = size.cache.positions * (config.num_heads / config.num_kv_heads);
  return sizes;
}

// A step's input, twice while it is put together in vectors that double; the tasks of two layers;
// and for all layers the foreseen uses of pages, as a list, with their next uses, and in the
// rehearsal.
int64_t step_bytes(const ModelConfig& config, const WorkspaceSize& size, const PlanOptions& plan,
                   int devices) {
  constexpr int64_t kTokenBytes = 17, kTasksPerBlock = 6, kBlockBytes = 1280, kPartBytes = 640;
  // With padding every expert may have to compute all tokens of the step.
  const int64_t experts = config.num_experts * config.parts.count();
  const int64_t rows =
      size.tokens() *
      (plan.padded_experts ? experts : config.experts_per_token * config.parts.count());
  const int64_t blocks = div_ceil(rows, kRowBlock) + experts + 4 * size.microbatches;
  // The first microbatch's part of a block counts as the block.
  const int64_t parts = experts * (size.microbatches - 1);
  // Rows that another device attends to are put together, sent, received and placed, and back.
  const int64_t tasks = kTasksPerBlock * devices;
  return size.tokens() * kTokenBytes * 4 + 2 * (blocks * tasks + 4 * parts) * kTaskBytes +
         config.num_layers * (blocks * kBlockBytes * devices + parts * kPartBytes);
}

// An evaluation rounds its weights from an fp32 copy of one record at a time.
int64_t record_bytes(const TensorTable& table, const WorkspaceSize& size) {
  int64_t largest = 0;
  for (const RecordSpec& record : table.records) largest = std::max(largest, record.num_elements);
  return size.training ? 0 : largest * 4;
}

// The logits of one token, and the list that sampling sorts.
int64_t sampling_bytes(const ModelConfig& config, const WorkspaceSize& size) {
  constexpr int64_t kCandidateBytes = 3 * 16, kLogitBytes = 4;
  return size.cache.sequences > 0 ? config.vocab_size * (kCandidateBytes + kLogitBytes) : 0;
}

// What the CPU's kernels take for themselves on all devices.
int64_t working_bytes(const ModelConfig& config, const SessionOptions& options) {
  if (!options.gpus.empty()) return 0;
  int64_t bytes = 0;
  for (const DeviceSetup& device : options.own_setups()) {
    bytes += kernel_working_bytes(kernel_sizes(config, options.size), device.threads);
  }
  return bytes;
}

// What goes from GPU to GPU through the host, where they are no peers.
int64_t staging_bytes(const SessionOptions& options) {
  const int devices = options.own_devices().count;
  return options.gpus.empty() || devices == 1 ? 0 : devices * LocalLink::kStagingBytes;
}

Status check_gpu_memory(const ModelConfig& config, const SessionOptions& options,
                        const MemoryPlan& memory) {
  for (size_t d = 0; d < options.gpus.size(); ++d) {
    const Gpu& gpu = options.gpus[d];
    const int64_t bytes = memory.device_slot_bytes[d] +
                          workspace_bytes(model_shape(config), options.size,
                                          options.own_devices().first + static_cast<int>(d));
    if (bytes <= gpu.memory_bytes) continue;
    return Status(Exit::kDeviceMemory, strf("memory.device takes %s, more than all of %s; lower it",
                                            format_bytes_up(bytes).c_str(), gpu.text().c_str()));
  }
  return Status();
}

// Within the budgets, where they are the host's.
int64_t budgeted_bytes(const ModelConfig& config, const SessionOptions& options,
                       const MemoryPlan& memory) {
  if (!options.gpus.empty()) return memory.host_slot_bytes;
  return std::accumulate(memory.device_slot_bytes.begin(), memory.device_slot_bytes.end(),
                         workspace_bytes(config, options) + memory.host_slot_bytes);
}

}  // namespace

int64_t workspace_bytes(const ModelConfig& config, const SessionOptions& options) {
  const ModelShape model = model_shape(config);
  int64_t bytes = 0;
  const DeviceRange own = options.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    bytes += workspace_bytes(model, options.size, d);
  }
  return bytes;
}

namespace {

GroupWorkspace group_workspace(const ModelShape& model, const RunSetup& setup) {
  return [&model, size = setup.size](int64_t blocks, int device) mutable {
    size.group_blocks = blocks;
    return workspace_bytes(model, size, device);
  };
}

}  // namespace

GroupChoice choose_group(const RunShape& shape, const ModelShape& model, const RunSetup& setup,
                         const DeviceBudget& budget) {
  const bool any = setup.size.on_gpu || setup.num_devices() > 1;
  const int64_t most = setup.zebra ? kMostGroupBlocks : kMostTogether;
  return choose_group(shape, any, budget, most, group_workspace(model, setup));
}

std::vector<int64_t> group_bytes(const RunShape& shape, const ModelShape& model,
                                 const RunSetup& setup) {
  return group_bytes(shape, group_workspace(model, setup));
}

int64_t choose_guest_layers(const RunShape& shape, const ModelShape& model, const RunSetup& setup,
                            const DeviceBudget& budget) {
  return choose_guest_layers(
      shape, budget, [&](int device) { return workspace_bytes(model, setup.size, device); });
}

MemoryBudget make_budget(const ModelShape& model, const RunSetup& setup,
                         const DeviceBudget& device_bytes, int64_t host_bytes) {
  MemoryBudget budget;
  budget.device_bytes = device_bytes;
  budget.host_bytes = host_bytes;
  // A GPU is told by what to clip when it is given the update.
  budget.device_updates = !setup.size.on_gpu || !setup.eager_adam;
  const DeviceRange own = setup.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    budget.fixed_bytes.push_back(workspace_bytes(model, setup.size, d));
    budget.device_names.push_back(setup.devices[static_cast<size_t>(d)].name);
  }
  return budget;
}

Status choose_table_ranks(const ModelConfig& config, SessionOptions& options) {
  if (options.ranks == nullptr || options.ranks->alone() || !options.size.training) return Status();
  const ModelShape model = model_shape(config);
  RETURN_IF_ERROR(check_layers(model, options));  // alike on all ranks, as the next
  RETURN_IF_ERROR(check_pages(make_run_shape(model, options)));
  std::string own = strf("%lld ", (long long)options.host_bytes);
  for (int d = 0; d < options.own_devices().count; ++d) {
    own += strf("%lld ", (long long)options.device_bytes.of(d));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, options.ranks->agree(Status(), own));
  std::vector<MemoryBudget> budgets;
  RunSetup of_rank = options;
  for (of_rank.rank = 0; of_rank.rank < options.ranks->size(); ++of_rank.rank) {
    NumberReader in(all[static_cast<size_t>(of_rank.rank)]);
    int64_t host = 0;
    std::vector<int64_t> devices(static_cast<size_t>(of_rank.own_devices().count), 0);
    bool good = in.read(host, int64_t{0}, INT64_MAX);
    for (int64_t& bytes : devices) good = good && in.read(bytes, int64_t{0}, INT64_MAX);
    if (!good) {
      return Status(Exit::kIoError, strf("rank %d sent what is no budget of memory; see that all "
                                         "ranks run the same program",
                                         of_rank.rank));
    }
    budgets.push_back(make_budget(model, of_rank, DeviceBudget(std::move(devices)), host));
  }
  options.table_ranks =
      choose_table_ranks(make_run_shape(model, options), budgets, kPageHeaderBytes);
  return Status();
}

int session_threads(const SessionOptions& options) {
  const int devices = options.own_devices().count;
  const bool several = options.devices.back().rank > 0;
  // There may be some.
  const bool guests = several && options.sharing != Sharing::kRows;
  const bool sums = options.size.training && options.size.pages_expert_sums &&
                    (options.sharing != Sharing::kRows || options.copies > 1);
  const bool apart = options.zebra && options.size.sums.chunks > 1;
  const bool in_turn = several && options.exchange == ExchangeOrder::kRounds;
  int threads = options.optimizer_threads + PageFile::kStreams;
  if (several) threads += Executor::kStreamsOfRanks;
  for (const DeviceSetup& device : options.own_setups()) {
    // The workers of a pool are beside the stream that calls it.
    threads += device.threads - 1 +
               Executor::streams_per_device(options.num_devices(), options.stages, guests, sums,
                                            apart, options.in_lanes(), in_turn) +
               Pager::kStreamsPerDevice;
  }
  // Where GPUs are no peers, each pair has a stream for what goes through the host.
  if (!options.gpus.empty()) threads += devices * (devices - 1);
  return threads;
}

int64_t host_memory_bytes(const ModelConfig& config, const SessionOptions& options,
                          const MemoryPlan& memory) {
  return budgeted_bytes(config, options, memory) + fixed_overhead_bytes(config, options);
}

Status check_machine_memory(const ModelConfig& config, const SessionOptions& options,
                            const MemoryPlan& memory, int64_t beside_bytes) {
  RETURN_IF_ERROR(check_gpu_memory(config, options, memory));
  const int64_t budgets = budgeted_bytes(config, options, memory);
  const int64_t overhead = fixed_overhead_bytes(config, options) + beside_bytes;
  const int64_t usable = machine_memory().usable_bytes();
  if (budgets + overhead <= usable) return Status();
  return Status(
      Exit::kHostMemory,
      strf("%smemory.host take %s and the program up to %s more, but "
           "this machine or its cgroup has %s; lower the budgets, train.threads or "
           "train.micro_batch_tokens",
           options.gpus.empty() ? "memory.device and " : "", format_bytes(budgets).c_str(),
           format_bytes_up(overhead).c_str(), format_bytes(usable).c_str()));
}

int64_t fixed_overhead_bytes(const ModelConfig& config, const SessionOptions& options) {
  const TensorTable table = TensorTable::make(config);
  const RunShape shape = make_run_shape(model_shape(config), options);
  const int threads = 1 + kMostStorageThreads + session_threads(options);
  return mapped_file_bytes() + threads * kThreadBytes + index_bytes(table, shape) +
         working_bytes(config, options) + staging_bytes(options) +
         step_bytes(config, options.size, options.plan, options.num_devices()) +
         record_bytes(table, options.size) + (options.trace ? options.trace->most_bytes() : 0) +
         // While the text grows, the old one and a new one twice as long are both in memory.
         (options.trace_routing ? 3 * most_routing_bytes(shape) : 0) +
         sampling_bytes(config, options.size);
}

}  // namespace pagoda
