// A session holds everything that a step needs, built from the budgets in one place: devices,
// storage, page file, pager, executor and the plan's numbers. Training, evaluation and export use
// it in different ways. With several ranks it is one rank's: its devices, its host memory and the
// pages of the records that are at home there.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device_turn.h"
#include "device/gpus.h"
#include "model/tensors.h"
#include "offload/pager.h"
#include "parallel/rank_group.h"
#include "parallel/slow_link.h"
#include "plan/exchange/home_moves.h"
#include "plan/memory/memory_plan.h"
#include "train/executor.h"
#include "train/run_setup.h"

namespace pagoda {

// What a run asks of its model, and where it runs.
struct SessionOptions : RunSetup {
  std::vector<Gpu> gpus = {};  // [device] what computes; empty: the CPU
  int optimizer_threads = 1;
  DeviceBudget device_bytes = {};
  int64_t host_bytes = 0;
  std::vector<std::string> directories = {};  // of the page file
  std::string file_name = "pages";       // in each of them
  int page_slots = 2;
  bool keep = true;         // false: no layer is kept, as if there were no room (saved_layers.h)
  const char* lower = MemoryBudget().lower;
  Trace* trace = nullptr;  // not owned
  RankGroup* ranks = nullptr;  // with several ranks, those of the run; not owned
  bool trace_routing = false;  // each step's routing is written as text
  // [device of the rank] its turns with another session, which has the same; empty: it has none.
  std::vector<std::shared_ptr<DeviceTurn>> turns = {};
};

// With the groups, waves and layers of guests that all ranks chose (Session::plan).
SessionOptions with_groups(SessionOptions options, const MemoryPlan& memory);

// A run's pages as the page file of RunShape::rank sees them. Experts may move, so that their pages
// count as durable in all of them.
std::vector<PageSpec> page_specs(const RunShape& shape, const PageTable& pages);

// The pages of the session that these give.
std::vector<PageSpec> page_specs(const ModelConfig& config, const SessionOptions& options,
                                 const MemoryPlan& memory);

class Session {
 public:
  // The memory plan for the budgets; allocates nothing. With several ranks all of them call it
  // together: groups have as many row blocks as the least of them has room for, weights stay with
  // guests for as many layers, and updates are made on devices, guests are there too, and rows are
  // read in place where all have room for that. An error of one is an error of all.
  static Result<MemoryPlan> plan(const ModelConfig& config, const SessionOptions& options);

  // A new page file without content. `storage` is not owned. With several ranks all of them call
  // this or open() together, and an error of one is an error of all.
  static Result<std::unique_ptr<Session>> create(const ModelConfig& config,
                                                 const SessionOptions& options, Storage* storage);
  // An existing page file with the content of a checkpoint, which has the durable pages that are at
  // home here.
  static Result<std::unique_ptr<Session>> open(const ModelConfig& config,
                                               const SessionOptions& options, Storage* storage,
                                               const std::string& store_id,
                                               const std::vector<PageVersion>& versions);
  ~Session();

  // Closes the session and removes its page file; for content that nobody needs again.
  void remove_files();

  const ModelConfig& config() const { return config_; }
  const TensorTable& table() const { return table_; }
  const SessionOptions& options() const { return options_; }
  const RunShape& shape() const { return shape_; }
  const PageTable& pages() const { return pages_; }
  const MemoryPlan& memory() const { return memory_; }
  WeightCopies& copies() { return copies_; }
  Pager& pager() { return *pager_; }
  const Pager& pager() const { return *pager_; }
  Executor& executor() { return *executor_; }
  const Executor& executor() const { return *executor_; }
  PageFile& file() { return *file_; }
  // Says that each durable page has been written to file() by the caller.
  void durable_are_on_disk();
  // Says that the caller has moved pages as these swaps of experts' homes, one after the other,
  // have it (train/page_move.h). Plans that were made before do not hold any more.
  void exchange_homes(std::span<const HomeSwap> swaps);
  // Gives experts their seats by the speeds that these devices of all ranks were measured to have,
  // where seats are given by step. Plans that were made before do not hold any more. All ranks say
  // the same.
  void set_speeds(const std::vector<DeviceSetup>& measured);
  const Link* link() const { return link_.get(); }  // nullptr with one device
  // Whether all bytes have come so far, from disk and from other ranks.
  Status transfers() const;
  RankGroup& ranks() { return options_.ranks != nullptr ? *options_.ranks : alone_; }
  // Makes transfers between the devices take time from here on, as over a network. REQUIRES:
  // several devices, and no step so far.
  void slow_link(const SlowLink::Speed& speed);

 private:
  Session(const ModelConfig& config, const SessionOptions& options, MemoryPlan memory,
          Storage* storage);
  PageFile::Options file_options() const;
  PageTrace page_trace() const;
  Status take(Result<std::unique_ptr<PageFile>> file);
  std::vector<LinkEnd> ends_of_ranks() const;
  Status allocate();  // devices, pager and executor, once the page file stands
  Result<std::unique_ptr<Device>> open_device(int index, int64_t arena_bytes) const;

  RankGroup alone_;
  ModelConfig config_;
  TensorTable table_;
  SessionOptions options_;
  Storage* storage_;
  RunShape shape_;
  PageTable pages_;
  WeightCopies copies_;
  MemoryPlan memory_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Ops>> gpu_ops_;  // [device]; empty: the CPU's
  std::unique_ptr<PageFile> file_;
  std::unique_ptr<Pager> pager_;
  std::unique_ptr<Link> link_;  // between the devices; nullptr with one
  std::unique_ptr<Executor> executor_;
};

}  // namespace pagoda
