#include "train/run_setup.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/number_text.h"
#include "config/network_config.h"
#include "kernels/library_choice.h"
#include "plan/step/zebra_actions.h"

namespace pagoda {
namespace {

constexpr int kMostThreads = 1 << 16;
// Microbatches of a pass over a text, unless more devices attend: experts are read once for all.
constexpr int64_t kTextMicrobatches = 8;

}  // namespace

Status check_pages(const RunShape& shape) {
  // To count the pages of more microbatches takes memory itself.
  if (shape.microbatches <= kMostPages && PageTable::count(shape) <= kMostPages) return Status();
  return Status(
      Exit::kHostMemory,
      strf("%lld microbatches of a step take more than the %lld pages there may be; raise "
           "train.micro_batch_tokens or lower train.tokens_per_step",
           (long long)shape.microbatches, (long long)kMostPages));
}

RunSetup run_setup(const RunConfig& config) {
  RunSetup setup;
  setup.size.microbatches = config.micro_batches();
  setup.size.sums = config.sums();
  setup.size.microbatch_tokens = config.train.micro_batch_tokens;
  setup.size.dtype = config.train.dtype;
  setup.adam.beta1 = config.optim.beta1;
  setup.adam.beta2 = config.optim.beta2;
  setup.adam.eps = config.optim.eps;
  setup.adam.weight_decay = config.optim.weight_decay;
  setup.adam.clip_by_record = config.optim.clip == ClipKind::kPerExpert;
  setup.adam.clip_norm = config.optim.clip_norm;
  setup.adam.correction_speed = config.optim.correction_speed;
  if (config.optim.balance_loss >= 0) setup.losses.balance = config.optim.balance_loss;
  setup.losses.z = config.optim.z_loss;
  setup.size.z_loss = setup.losses.z > 0;
  setup.adam.state = config.optim.state;
  setup.adam.seed = static_cast<uint64_t>(config.train.seed);
  setup.devices.clear();
  for (const ListedDevice& device : config.devices()) {
    setup.devices.push_back({config.threads_of(device), device.throttle, device.text()});
  }
  setup.exchange = config.exchange();
  setup.network_rates = config.network_rates();
  setup.shares = config.parallel.shares;
  setup.stages = config.stages();
  setup.pipeline_order = config.parallel.order;
  setup.stage_layers = config.stage_layers();
  setup.copies = config.copies();
  setup.deal_attention(config.attention_devices(std::ssize(setup.devices)));
  setup.zebra = config.zebra();
  setup.size.pages_expert_sums = setup.size.sums.pages_expert_sums(setup.zebra || setup.stages > 1);
  setup.lags = config.lags();
  setup.kept_rows = config.kept_rows();
  setup.offloaded = config.offloaded();
  setup.eager_adam = config.optim.clip != ClipKind::kGlobal;
  setup.plan = config.plan;
  setup.pinned_share = config.pinned_share();
  setup.seats_by_step = config.parallel.place == PlaceKind::kStep;
  setup.sharing = config.parallel.sharing;
  return setup;
}

Status join_ranks(const RunConfig& config, RankGroup& ranks, RunSetup& setup) {
  if (ranks.alone()) return Status();
  RETURN_IF_ERROR(check_network_ranks(setup.network_rates, ranks.size()));
  std::string own = setup.size.on_gpu ? "1 " : "0 ";
  for (const DeviceSetup& device : setup.devices) {
    own += strf("%d ", device.threads) + device.name + "\n";
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), own));
  setup.devices.clear();
  setup.rank = ranks.rank();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    NumberReader in(all[static_cast<size_t>(rank)]);
    int on_gpu = 0;
    bool good = in.read(on_gpu, 0, 1);
    if (good && (on_gpu == 1) != setup.size.on_gpu) {
      return Status(Exit::kUsage,
                    "some ranks compute on GPUs and others do not; let train.devices "
                    "name devices of one kind on all of them");
    }
    std::istringstream lines{std::string(in.rest())};
    for (std::string line; good && std::getline(lines, line);) {
      NumberReader of_device(line);
      int threads = 0;
      good = of_device.read(threads, 1, kMostThreads);
      const std::string name(of_device.rest());
      const auto listed = parse_devices({name});
      good = good && listed.ok() && listed.value().size() == 1;
      if (!good) continue;
      setup.devices.push_back({threads, listed.value()[0].throttle, name, rank});
      setup.devices.back().gpu = on_gpu == 1;
    }
    if (!good) {
      return Status(Exit::kIoError, strf("rank %d sent what is no list of devices; see that all "
                                         "ranks run the same program",
                                         rank));
    }
  }
  if (std::ssize(setup.devices) > kMostDevices) {
    return Status(Exit::kUsage, strf("the ranks have %zu devices in all, and a run has at most %d; "
                                     "start fewer ranks, or name fewer train.devices",
                                     setup.devices.size(), kMostDevices));
  }
  setup.deal_attention(config.attention_devices(std::ssize(setup.devices)));
  return Status();
}

DeviceRange RunSetup::own_devices() const {
  DeviceRange own;
  for (const DeviceSetup& device : devices) {
    own.first += device.rank < rank;
    own.count += device.rank == rank;
  }
  return own;
}

Status check_layers(const ModelShape& model, const RunSetup& setup) {
  const int64_t numbers = std::ssize(setup.offloaded);
  if (numbers != 1 && numbers != model.num_layers()) {
    return Status(Exit::kUsage,
                  strf("parallel.offloaded has %lld numbers, and the model %lld layers; give one "
                       "number, or one for each layer",
                       (long long)numbers, (long long)model.num_layers()));
  }
  const int64_t most = std::min<int64_t>(model.num_layers(), setup.num_devices());
  if (setup.stages > most) {
    return Status(
        Exit::kUsage,
        strf("parallel.stages = %d: each needs a layer and a device, and there are %lld "
             "layers and %d devices; set %lld at most",
             setup.stages, (long long)model.num_layers(), setup.num_devices(), (long long)most));
  }
  const int64_t listed =
      std::accumulate(setup.stage_layers.begin(), setup.stage_layers.end(), int64_t{0});
  if (setup.stages > 1 && !setup.stage_layers.empty() && listed != model.num_layers()) {
    return Status(Exit::kUsage, strf("parallel.stage_layers are %lld in all, and the model has "
                                     "%lld layers; let their sum be that",
                                     (long long)listed, (long long)model.num_layers()));
  }
  if (int64_t{setup.stages} * setup.copies > setup.num_devices()) {
    return Status(Exit::kUsage,
                  strf("parallel.copies = %d: each needs a device in each of %d stages, and there "
                       "are %d devices; set fewer copies",
                       setup.copies, setup.stages, setup.num_devices()));
  }
  if (setup.adam.correction_speed > 0.0 && !model.router_correction) {
    return Status(Exit::kUsage,
                  "optim.correction_speed is above 0, and the model's routers have no "
                  "correction that it would move; leave it out");
  }
  const Lags& lags = setup.lags;
  const bool waits = setup.zebra && lags_wait_for_each_other(lags, model.is_moe.back() != 0,
                                                             setup.size.sums.chunks);
  if (!waits) return Status();
  return Status(Exit::kUsage,
                strf("parallel.lags = %d %d %d: the last layer's experts would wait for attention "
                     "that waits for them; the third can be at most the sum of the first two",
                     lags.head, lags.attention, lags.expert));
}

Status set_frozen(const RunConfig& config, const ModelConfig& model, RunSetup& setup) {
  if (config.train.freeze.empty()) return Status();
  ASSIGN_OR_RETURN(setup.frozen, freeze_tensors(TensorTable::make(model), config.train.freeze));
  return Status();
}

Status check_losses(const ModelConfig& model, const RouterLosses& losses) {
  if (losses.z == 0 || !model.family->sigmoid_router) return Status();
  return Status(Exit::kUsage,
                strf("optim.z_loss is above 0, and routers of %s score experts by sigmoids, which "
                     "have no sum of exponentials to keep small; leave it out",
                     model.family->model_type));
}

Status check_ranks(const ModelShape& model, const RunSetup& setup) {
  const int ranks = setup.devices.back().rank + 1;
  const int64_t records = std::ssize(model_records(model));
  if (ranks <= records) return Status();
  return Status(Exit::kUsage,
                strf("there are %d ranks, and the model has %lld records (layers, experts, "
                     "embedding and head) to share among them; start %lld ranks at most",
                     ranks, (long long)records, (long long)records));
}

DeviceRange RunSetup::devices_of_copy(int stage, int copy) const {
  const DeviceRange of_stage = devices_of_stage(stage, stages, num_devices());
  DeviceRange own = devices_of_stage(copy, copies, of_stage.count);
  own.first += of_stage.first;
  return own;
}

namespace {

// What a copy's devices that may attend do together.
double attention_speed(std::vector<double> speeds, int64_t most, ShareKind shares) {
  std::sort(speeds.rbegin(), speeds.rend());
  speeds.resize(std::min(speeds.size(), static_cast<size_t>(most)));
  if (shares == ShareKind::kUniform) return static_cast<double>(speeds.size());
  return std::accumulate(speeds.begin(), speeds.end(), 0.0);
}

}  // namespace

// Copies have shards in proportion to what those of their devices do that may attend.
void RunSetup::deal_attention(int64_t most) {
  size.shard_device.clear();
  if (devices.size() == 1) return;
  for (int stage = 0; stage < stages; ++stage) {
    std::vector<std::vector<double>> speeds;  // [copy][device]
    std::vector<std::vector<int>> ranks;
    std::vector<double> of_copy;
    for (int copy = 0; copy < copies; ++copy) {
      const DeviceRange own = devices_of_copy(stage, copy);
      if (own.count == 0) return size.shard_device.clear();  // refused by check_layers()
      std::vector<double>& of_devices = speeds.emplace_back();
      std::vector<int>& their_ranks = ranks.emplace_back();
      for (int d = own.first; d < own.end(); ++d) {
        of_devices.push_back(devices[static_cast<size_t>(d)].token_speed(token_rows));
        their_ranks.push_back(devices[static_cast<size_t>(d)].rank);
      }
      of_copy.push_back(pagoda::attention_speed(of_devices, most, shares));
    }
    const std::vector<int> dealt = deal(size.sums.shards, of_copy);
    for (int copy = 0; copy < copies; ++copy) {
      const auto c = static_cast<size_t>(copy);
      const int64_t own = std::count(dealt.begin(), dealt.end(), copy);
      for (const int d : deal_shards(own, speeds[c], most, shares, ranks[c])) {
        size.shard_device.push_back(devices_of_copy(stage, copy).first + d);
      }
    }
  }
}

void RunSetup::deal_text(int64_t microbatches, int64_t most) {
  size.microbatches = 1;
  if (most > 1) {
    // Equal devices have equally many, and the last pass as many as the others, almost.
    const int64_t room = most * std::max<int64_t>(1, kTextMicrobatches / most);
    size.microbatches = div_ceil(microbatches, div_ceil(microbatches, room));
  }
  size.sums = {1, size.microbatches, copies > 1 ? size.microbatches : 1};
  deal_attention(most);
}

void RunSetup::deal_sequences(int64_t sequences, int64_t most) {
  std::vector<double> speeds;
  std::vector<int> ranks;
  for (const DeviceSetup& device : devices) {
    speeds.push_back(device.attention_speed());
    ranks.push_back(device.rank);
  }
  std::vector<int> attending;
  std::vector<int64_t> count;
  sequence_microbatch.clear();
  for (const int d : deal_shards(sequences, speeds, most, ShareKind::kSpeed, ranks)) {
    if (attending.empty() || attending.back() != d) {
      attending.push_back(d);
      count.push_back(0);
    }
    ++count.back();
    sequence_microbatch.push_back(static_cast<int>(std::ssize(attending)) - 1);
  }
  size.cache.sequences = *std::max_element(count.begin(), count.end());
  size.microbatches = std::ssize(attending);
  size.sums = {1, size.microbatches, copies > 1 ? size.microbatches : 1};
  size.shard_device = devices.size() > 1 ? attending : std::vector<int>();
}

namespace {

// [place] the device of each part of a layer's experts: the first has the first parts, and so on;
// where there are more parts than devices these are dealt again.
std::vector<int> part_homes(const ModelShape& model, const RunSetup& setup) {
  std::vector<int> homes;
  for (int64_t i = 0; i < model.num_experts * model.parts.count(); ++i) {
    homes.push_back(static_cast<int>(i % model.parts.count() % setup.num_devices()));
  }
  return homes;
}

// [expert] the device of each of a layer's experts in a copy.
std::vector<int> expert_seats(const ModelShape& model, const RunSetup& setup, const RunShape& shape,
                              int64_t layer, int copy) {
  const int64_t experts = model.num_experts;
  if (model.parts.count() > 1) return part_homes(model, setup);
  // Those of the copy: that have experts, and that have what is left to them.
  std::vector<int> devices[2];
  const DeviceRange own = setup.devices_of_copy(shape.stage_of(layer), copy);
  for (int d = own.first; d < own.end(); ++d) {
    devices[setup.zebra && shape.attends(d)].push_back(d);
  }
  // All of a copy's devices may attend in a pass over a text, and none of them without a shard.
  if (devices[0].empty()) std::swap(devices[0], devices[1]);
  const int64_t left = devices[1].empty() ? 0 : std::min(setup.offloaded_of(layer), experts);
  std::vector<int> dealt[2];
  for (int kept = 0; kept < 2; ++kept) {
    std::vector<double> speeds;
    for (const int d : devices[kept]) {
      const DeviceSetup& device = setup.devices[static_cast<size_t>(d)];
      speeds.push_back(setup.shares == ShareKind::kUniform ? 1 : device.expert_speed());
    }
    if (speeds.empty()) continue;
    for (const int i : deal(kept == 1 ? left : experts - left, speeds)) {
      dealt[kept].push_back(devices[kept][static_cast<size_t>(i)]);
    }
  }
  // What is left comes last: sums over a token's experts have their order, and none waits for it.
  dealt[0].insert(dealt[0].end(), dealt[1].begin(), dealt[1].end());
  return std::move(dealt[0]);
}

// [device] its copy
std::vector<int> copy_of_devices(const RunSetup& setup, const Stages& stages) {
  std::vector<int> copies;
  for (int d = 0; d < setup.num_devices(); ++d) {
    int copy = 0;
    while (!setup.devices_of_copy(stages.of_device(d), copy).contains(d)) ++copy;
    copies.push_back(copy);
  }
  return copies;
}

// Layers go round those of their stage that attend.
int dense_home(const RunShape& shape, const ModelRecord& record) {
  const int64_t layer = record.kind == RecordKind::kHead ? shape.num_layers : record.layer;
  const std::vector<int> attending = shape.attending_devices(shape.stage_of(layer));
  const auto at = static_cast<size_t>(record.layer < 0 ? 0 : shape.stages.ordinal(layer));
  return attending[at % attending.size()];
}

// What travels where experts may be guests. Bytes do not tell what devices that do not attend would
// compute meanwhile.
Sharing sharing_of(const RunShape& shape, const RunSetup& setup) {
  const bool all_attend = std::ssize(shape.attending_devices()) == setup.num_devices();
  const bool by_bytes = setup.sharing == Sharing::kAuto && all_attend;
  const bool may_travel = shape.sums.expert_shards > 1 && shape.expert_parts == 1;
  return may_travel && (by_bytes || setup.sharing == Sharing::kData) ? setup.sharing
                                                                     : Sharing::kRows;
}

// Rows of an action of experts at most, if each row block had all of its rows.
int64_t most_rows(const RunShape& shape) {
  const int64_t rows = shape.round_rows();
  return rows + shape.num_experts * shape.sums.expert_shards * shape.row_block;
}

// Adds records, with their homes, and where copies of experts are.
void add_records(const ModelShape& model, const RunSetup& setup, RunShape& shape) {
  ExpertCopies copies{setup.copies, copy_of_devices(setup, shape.stages)};
  copies.seats.resize(static_cast<size_t>(setup.copies));
  std::vector<std::vector<int>> seats(copies.seats.size());  // [copy][expert] of the layer
  for (const ModelRecord& record : model_records(model)) {
    if (record.kind == RecordKind::kLayer) {
      shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
      for (int copy = 0; copy < setup.copies; ++copy) {
        seats[static_cast<size_t>(copy)] = expert_seats(model, setup, shape, record.layer, copy);
      }
    }
    // Each copy has the homes of as many neighbours.
    const auto e = static_cast<size_t>(std::max<int64_t>(record.expert, 0));
    for (size_t copy = 0; copy < seats.size(); ++copy) {
      copies.seats[copy].push_back(record.expert < 0 ? -1 : seats[copy][e]);
    }
    const size_t copy_of_home =
        e * seats.size() / static_cast<size_t>(std::max<int64_t>(1, shape.num_experts));
    const int device = record.expert < 0 ? dense_home(shape, record) : seats[copy_of_home][e];
    const std::vector<int64_t>& trailing = setup.frozen.trailing;
    const int64_t frozen = trailing.empty() ? 0 : trailing[shape.records.size()];
    const StateLayout state(setup.adam.state, setup.size.dtype, record.num_elements - frozen);
    const bool with_shared =
        record.kind == RecordKind::kLayer && model.is_moe[static_cast<size_t>(record.layer)] != 0;
    const int64_t shared = with_shared ? layer_parameters(model, record.layer).feed_forward : 0;
    shape.records.push_back(
        {record.num_elements, record.layer, record.expert, device, state.bytes, shared, frozen});
  }
  if (setup.copies > 1) shape.copies = std::move(copies);
}

// [stage] the layers that its devices take in a unit of time, each of as many parameters for a
// token as the mean; empty: alike. In zebra both kinds of devices work at once.
std::vector<double> stage_speeds(const ModelShape& model, const RunSetup& setup,
                                 const RunShape& shape) {
  if (setup.stages == 1) return {};
  if (!setup.stage_layers.empty()) return {setup.stage_layers.begin(), setup.stage_layers.end()};
  if (setup.shares == ShareKind::kUniform) return {};
  double dense = 0, experts = 0;
  for (int64_t l = 0; l < model.num_layers(); ++l) {
    const LayerParameters parameters = layer_parameters(model, l);
    dense += static_cast<double>(parameters.replicated());
    experts += static_cast<double>(model.experts_per_token * parameters.expert);
  }
  std::vector<double> speeds;
  for (int stage = 0; stage < setup.stages; ++stage) {
    const DeviceRange own = devices_of_stage(stage, setup.stages, setup.num_devices());
    double attention = 0, attending_experts = 0, other_experts = 0;
    for (int d = own.first; d < own.end(); ++d) {
      const DeviceSetup& device = setup.devices[static_cast<size_t>(d)];
      const bool attends = shape.attends(d);
      if (attends) attention += device.listed_attention_speed();
      (attends ? attending_experts : other_experts) += device.expert_speed();
    }
    // All may attend in a pass over a text.
    const bool apart = setup.zebra && other_experts > 0;
    const double dense_time = dense / attention;
    const double experts_time =
        experts / (apart ? other_experts : attending_experts + other_experts);
    speeds.push_back(1 / (apart ? std::max(dense_time, experts_time) : dense_time + experts_time));
  }
  return speeds;
}

}  // namespace

RunShape make_run_shape(const ModelShape& model, const RunSetup& setup) {
  const WorkspaceSize& size = setup.size;
  RunShape shape;
  shape.num_layers = model.num_layers();
  shape.is_moe = model.is_moe;
  shape.expert_parts = model.parts.count();
  shape.num_experts = model.num_experts * shape.expert_parts;
  shape.experts_per_token = model.experts_per_token * shape.expert_parts;
  shape.hidden_size = model.hidden_size;
  shape.tied_embeddings = model.tied_embeddings;
  shape.training = size.training;
  shape.dtype_bytes = dtype_bytes(size.dtype);
  shape.sums = size.sums;
  shape.shard_device = size.shard_device;
  shape.stages = divide_into_stages(setup.stages, setup.pipeline_order, shape.num_layers,
                                    setup.num_devices(), stage_speeds(model, setup, shape));
  std::vector<double> speeds;
  for (const DeviceSetup& device : setup.devices) {
    speeds.push_back(setup.shares == ShareKind::kUniform ? 1 : device.seat_speed());
  }
  add_records(model, setup, shape);
  for (size_t r = 0; r < setup.homes.size() && setup.copies == 1; ++r) {
    if (setup.homes[r] >= 0) shape.records[r].device = setup.homes[r];
  }
  shape.microbatches = size.microbatches;
  shape.zebra = setup.zebra;
  shape.lags = setup.lags;
  shape.order = setup.order;
  shape.microbatch_tokens = size.microbatch_tokens;
  shape.row_block = kRowBlock;
  shape.group_blocks = size.group_blocks;
  shape.waves_in_flight = setup.zebra ? kLeastWaves : setup.waves_in_flight;
  shape.kept_rows = std::min(setup.kept_rows, most_rows(shape));
  shape.devices = setup.num_devices();
  shape.rank = setup.rank;
  for (const DeviceSetup& device : setup.devices) {
    if (setup.devices.back().rank > 0) shape.device_rank.push_back(device.rank);
  }
  if (size.training) place_tables(setup.table_ranks, shape);
  // A layer that is uploaded whole, or by microbatch, or pinned, or in a pipeline, or in copies,
  // has its experts at home. So have parts of experts: each device has some of every expert.
  const bool moves = setup.plan.same_blocks() && !setup.plan.whole_layers;
  const bool together = !setup.zebra && setup.stages == 1 && setup.copies == 1;
  const bool away =
      together && moves && setup.pinned_share == 0 && size.training && setup.num_devices() > 1;
  if (away && setup.seats_by_step && shape.expert_parts == 1) shape.seat_speeds = speeds;
  if (away) shape.sharing = sharing_of(shape, setup);
  if (shape.has_far_guests()) shape.guest_layers = setup.guest_layers;
  shape.exchange = setup.exchange;
  if (!shape.device_rank.empty()) shape.network_rates = setup.network_rates;
  shape.shares_cards = !size.on_gpu;
  shape.options = setup.plan;
  // A library multiplies rows that lie behind one another, with other bits than our kernels.
  // Padding has no place.
  const bool by_library = size.on_gpu && library_experts_are_preferred();
  shape.in_place = setup.plan.in_place && !by_library && !setup.plan.padded_experts;
  shape.experts_in_order = !size.on_gpu;
  shape.eager_adam = setup.eager_adam;
  shape.pinned_share = setup.pinned_share;
  return shape;
}

}  // namespace pagoda
