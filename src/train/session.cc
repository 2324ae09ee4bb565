#include "train/session.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "hardware/machine.h"
#include "kernels/gpu_ops.h"
#include "parallel/local_link.h"
#include "parallel/rank_link.h"
#include "train/process_memory.h"
#include "train/saved_layers.h"
#include "train/trace_names.h"

namespace pagoda {

std::vector<PageSpec> page_specs(const RunShape& shape, const PageTable& pages) {
  const std::vector<uint16_t> used = slot_classes_here(shape, pages);
  std::vector<PageSpec> specs;
  for (int64_t i = 0; i < pages.num_stored(); ++i) {
    const PageTable::Page& page = pages.pages[static_cast<size_t>(i)];
    const bool here = used[static_cast<size_t>(i)] != kNoSlotClass;
    const bool of_expert =
        i < 2 * std::ssize(shape.records) && shape.records[static_cast<size_t>(i / 2)].expert >= 0;
    const bool durable = of_expert ? is_durable(shape, static_cast<PageId>(i)) : page.durable;
    const bool copied = here && durable && !page.durable;  // of an expert that is at home elsewhere
    specs.push_back({page.bytes, page.record, durable, here, i >= pages.num_common(), copied});
  }
  return specs;
}

SessionOptions with_groups(SessionOptions options, const MemoryPlan& memory) {
  options.size.group_blocks = memory.group_blocks;
  options.waves_in_flight = memory.waves_in_flight;
  options.guest_layers = memory.guest_layers;
  return options;
}

std::vector<PageSpec> page_specs(const ModelConfig& config, const SessionOptions& options,
                                 const MemoryPlan& memory) {
  const RunShape shape = make_run_shape(model_shape(config), with_groups(options, memory));
  return page_specs(seated(shape, memory), PageTable(shape));
}

namespace {

Status check_kernels(const ModelConfig& config, const SessionOptions& options) {
  if (options.gpus.empty() || gpu_ops_take_head(config.head_dim)) return Status();
  return Status(Exit::kUnavailable,
                strf("the model's head_dim is %lld, which attention on GPUs has no kernel for; "
                     "train.devices = \"cpu\" computes it",
                     (long long)config.head_dim));
}

Result<MemoryPlan> plan_with_groups(const ModelShape& model, const SessionOptions& grouped,
                                    const RoomOfRanks& room = {}) {
  RunShape shape = make_run_shape(model, grouped);
  shape.in_place = shape.in_place && room.in_place;
  RETURN_IF_ERROR(check_pages(shape));
  MemoryBudget budget = make_budget(model, grouped, grouped.device_bytes, grouped.host_bytes);
  budget.lower = grouped.lower;
  return plan_memory(shape, PageTable(shape), room.of(std::move(budget)), kPageHeaderBytes);
}

// The smallest memory.device that would do, without what groups and guests take beyond the least.
int64_t least_device_bytes(const MemoryPlan& memory, const RunShape& shape) {
  const std::vector<int64_t> guests = guest_layer_bytes(shape);
  int64_t most = 0;
  for (size_t d = 0; d < guests.size(); ++d) {
    most = std::max(most, memory.min_on_device[d] - memory.group_bytes[d] - guests[d]);
  }
  return most;
}

}  // namespace

Result<MemoryPlan> Session::plan(const ModelConfig& config, const SessionOptions& options) {
  RankGroup alone;
  RankGroup& ranks = options.ranks != nullptr ? *options.ranks : alone;
  CHECK(options.rank == ranks.rank());
  RETURN_IF_ERROR(ranks.agree(check_kernels(config, options)));
  const ModelShape model = model_shape(config);
  RETURN_IF_ERROR(check_layers(model, options));  // alike on all ranks, as the next
  RETURN_IF_ERROR(check_losses(config, options.losses));
  RETURN_IF_ERROR(check_ranks(model, options));
  const RunShape asked = make_run_shape(model, options);
  RETURN_IF_ERROR(ranks.agree(check_pages(asked)));
  const GroupChoice group = choose_group(asked, model, options, options.device_bytes);
  SessionOptions grouped = options;
  ASSIGN_OR_RETURN(grouped.size.group_blocks, ranks.least(group.blocks));
  ASSIGN_OR_RETURN(grouped.waves_in_flight, ranks.least(group.waves));
  grouped.guest_layers = 0;
  const int64_t own_guests =
      choose_guest_layers(make_run_shape(model, grouped), model, grouped, options.device_bytes);
  ASSIGN_OR_RETURN(grouped.guest_layers, ranks.least(own_guests));
  Result<MemoryPlan> planned = plan_with_groups(model, grouped);
  RETURN_IF_ERROR(ranks.agree(planned.status()));
  RoomOfRanks room;
  ASSIGN_OR_RETURN(room.states, ranks.least(planned->state_on_device));
  ASSIGN_OR_RETURN(room.guests_too, ranks.least(planned->weights_travel));
  ASSIGN_OR_RETURN(room.in_place, ranks.least(planned->in_place));
  if (!room.holds(*planned)) planned = plan_with_groups(model, grouped, room);
  RETURN_IF_ERROR(ranks.agree(planned.status()));
  MemoryPlan memory = planned.take();
  memory.group_blocks = grouped.size.group_blocks;
  memory.waves_in_flight = grouped.waves_in_flight;
  memory.guest_layers = grouped.guest_layers;
  const RunShape shape = make_run_shape(model, grouped);
  memory.group_bytes = group_bytes(shape, model, grouped);
  memory.min_device_bytes = least_device_bytes(memory, shape);
  return memory;
}

Session::Session(const ModelConfig& config, const SessionOptions& options, MemoryPlan memory,
                 Storage* storage)
    : config_(config),
      table_(TensorTable::make(config)),
      options_(with_groups(options, memory)),
      storage_(storage),
      shape_(make_run_shape(model_shape(config_), options_)),
      pages_(shape_),
      copies_(shape_),
      memory_(std::move(memory)) {
  shape_ = seated(std::move(shape_), memory_);
  options_.size.saved_layers = saved_layers(config_, options_, memory_);
}

PageTrace Session::page_trace() const {
  return {options_.trace, [this](PageId page) { return page_name(shape_, pages_, page); }};
}

PageFile::Options Session::file_options() const {
  return {options_.directories, options_.file_name, options_.page_slots, page_trace()};
}

Session::~Session() {
  if (executor_) executor_->synchronize();
  executor_.reset();
  link_.reset();
  ranks().close_link();
}

std::vector<LinkEnd> Session::ends_of_ranks() const {
  std::vector<LinkEnd> ends;
  const DeviceRange own = options_.own_devices();
  for (int d = 0; d < options_.num_devices(); ++d) {
    const bool on_gpu = !options_.gpus.empty() && d >= own.first && d < own.end();
    const int rank = options_.devices[static_cast<size_t>(d)].rank;
    ends.push_back({rank, on_gpu ? devices_[static_cast<size_t>(d - own.first)].get() : nullptr,
                    shape_.shares_cards ? 0 : d - shape_.devices_of(rank).first});
  }
  const int ranks = options_.devices.back().rank + 1;
  for (int rank = 0; rank < ranks; ++rank) ends.push_back({rank, nullptr});
  return ends;
}

Result<std::unique_ptr<Session>> Session::create(const ModelConfig& config,
                                                 const SessionOptions& options, Storage* storage) {
  ASSIGN_OR_RETURN(MemoryPlan memory, plan(config, options));
  std::unique_ptr<Session> session(new Session(config, options, std::move(memory), storage));
  auto file = PageFile::create(storage, session->file_options(),
                               page_specs(session->shape_, session->pages_));
  const Status ready = session->take(std::move(file));
  RETURN_IF_ERROR(session->ranks().agree(ready));
  return session;
}

Result<std::unique_ptr<Session>> Session::open(const ModelConfig& config,
                                               const SessionOptions& options, Storage* storage,
                                               const std::string& store_id,
                                               const std::vector<PageVersion>& versions) {
  ASSIGN_OR_RETURN(MemoryPlan memory, plan(config, options));
  std::unique_ptr<Session> session(new Session(config, options, std::move(memory), storage));
  auto file = PageFile::open(storage, session->file_options(),
                             page_specs(session->shape_, session->pages_), store_id, versions);
  const Status ready = session->take(std::move(file));
  RETURN_IF_ERROR(session->ranks().agree(ready));
  session->durable_are_on_disk();
  return session;
}

Status Session::take(Result<std::unique_ptr<PageFile>> file) {
  RETURN_IF_ERROR(file.status());
  file_ = file.take();
  return allocate();
}

void Session::durable_are_on_disk() {
  for (PageId page = 0; page < pages_.pages.size(); ++page) {
    if (pages_.pages[page].durable) pager_->set_on_disk(page);
  }
}

Result<std::unique_ptr<Device>> Session::open_device(int index, int64_t arena_bytes) const {
  const int threads = options_.own_setups()[static_cast<size_t>(index)].threads;
  DeviceOptions options{arena_bytes, threads, options_.trace};
  if (!options_.turns.empty()) options.turn = options_.turns[static_cast<size_t>(index)];
  if (options_.gpus.empty()) return open_host_device(options);
  return open_gpu(options_.gpus[static_cast<size_t>(index)].index, options);
}

Status Session::allocate() try {
  Pager::Options options;
  options.classes = memory_.classes;
  for (const PageTable::Class& c : pages_.classes) options.page_bytes.push_back(c.page_bytes);
  options.page_class = slot_classes_here(shape_, pages_);
  options.trace = page_trace();
  Executor::Setup setup;
  const DeviceRange own = options_.own_devices();
  for (int d = 0; d < own.count; ++d) {
    const int64_t fixed = workspace_bytes(model_shape(config_), options_.size, own.first + d);
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device,
                     open_device(d, fixed + memory_.device_slot_bytes[d]));
    options.devices.push_back(device.get());
    options.arena_offset.push_back(fixed);
    setup.devices.push_back(device.get());
    setup.throttles.push_back(options_.own_setups()[static_cast<size_t>(d)].throttle);
    devices_.push_back(std::move(device));
  }
  ASSIGN_OR_RETURN(pager_, Pager::create(std::move(options), file_.get(), storage_));
  for (const auto& device : devices_) {
    if (!options_.gpus.empty()) gpu_ops_.push_back(make_gpu_ops(*device));
    setup.ops.push_back(options_.gpus.empty() ? &cpu_ops() : gpu_ops_.back().get());
  }
  setup.config = config_;
  setup.table = table_;
  setup.size = options_.size;
  setup.adam = options_.adam;
  setup.frozen = options_.frozen;
  setup.shape = &shape_;
  setup.pages = &pages_;
  setup.pager = pager_.get();
  if (options_.devices.size() > 1) {
    ASSIGN_OR_RETURN(link_, LocalLink::create(setup.devices));
    if (!ranks().alone()) {
      RETURN_IF_ERROR(ranks().open_link(ends_of_ranks(), options_.trace));
      link_ = std::make_unique<RankLink>(std::move(link_), ranks().link(), own.first, own.count);
    }
  }
  setup.link = link_.get();
  setup.optimizer_threads = options_.optimizer_threads;
  setup.prefetch = options_.plan.prefetch;
  setup.trace = options_.trace;
  executor_ = std::make_unique<Executor>(std::move(setup));
  return Status();
} catch (const std::system_error& error) {
  return threads_refused(error);
}

void Session::exchange_homes(std::span<const HomeSwap> swaps) {
  for (const HomeSwap& swap : swaps) {
    std::swap(shape_.records[static_cast<size_t>(swap.a)].device,
              shape_.records[static_cast<size_t>(swap.b)].device);
  }
  // The pages are those of the plan, wherever experts are computed since.
  RunShape planned = make_run_shape(model_shape(config_), options_);
  planned.records = shape_.records;
  pages_ = PageTable(planned);
}

void Session::set_speeds(const std::vector<DeviceSetup>& measured) {
  options_.devices = measured;
  pager_->foresee({});
  pager_->foresee_later({});
  for (size_t d = 0; d < shape_.seat_speeds.size(); ++d) {
    shape_.seat_speeds[d] = measured[d].seat_speed();
  }
}

Status Session::transfers() const {
  RETURN_IF_ERROR(pager_->status());
  return link_ ? link_->status() : Status();
}

void Session::slow_link(const SlowLink::Speed& speed) {
  CHECK(link_ != nullptr);
  link_ = std::make_unique<SlowLink>(std::move(link_), speed);
  executor_->set_link(link_.get());
}

void Session::remove_files() {
  executor_.reset();
  link_.reset();
  pager_.reset();
  file_.reset();
  const Status removed = PageFile::remove(storage_, file_options());
  if (!removed.ok()) log_warn(removed.message());
}

}  // namespace pagoda
