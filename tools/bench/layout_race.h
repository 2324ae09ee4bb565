// Layouts of a run on CPU devices, equal or not, trained by turns and simulated: experts shared by
// all devices, pipelines of stages, copies, and zebra.
//
// What tasks take is measured in the same rounds, by a run of expert parallelism on the same
// devices: the longer a device sleeps, and the more others work meanwhile, the colder its caches
// are. The plan of zebra follows from that, and two simulations of each layout: with the routing
// that its steps had and, as a planner would, with equal experts. A machine's speed changes by the
// second: the first of the two has all costs times one factor, by which the layout's own attention
// took longer. A round in which the cores were not to be had is repeated and counted.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "plan/machine/machine_sheet.h"
#include "plan/step/action.h"
#include "plan/zebra/zebra_search.h"
#include "tools/bench/measured_run.h"

namespace pagoda {

// What all layouts of a race train: `chunks` chunks of `width` microbatches, a row each.
struct TrainedStep {
  RandomModel model;
  int64_t chunks = 4, width = 2, row_tokens = 128;
  int64_t tokens() const { return chunks * width * row_tokens; }
};

struct Layout {
  std::string name;
  std::vector<Throttle> devices;
  int stages = 1, copies = 1;
  PipelineOrder pipeline = PipelineOrder::kBreadthFirst;
  bool zebra = false;
  // Zebra's, and with one chunk DistEP's: so many devices attend of each copy of a stage, the
  // others have the experts.
  int64_t attention_devices = 0;
  int64_t chunks = 1;
  ShareKind shares = ShareKind::kSpeed;
  Lags lags = {};
  std::vector<int64_t> offloaded = {0};
  // RunSetup's; 0: the run's default, which add() makes a number of.
  int64_t shards = 0;
  std::vector<int64_t> stage_layers = {};
  std::shared_ptr<const ActionList> order = {};
  SlowLink::Speed wire = {};  // of each two devices; no rate: as fast as memory
  std::string settings = {};  // of a run file, in a line; of the layout that a search found
};

// A pair of GPUs as HeterMoE's, by how much slower they are at experts and at the rest.
struct DevicePair {
  const char* name;
  Throttle faster, slower_short, slower_long;  // at short rows, at long ones
};
inline constexpr DevicePair kA40AndV100 = {"like A40 and V100", {8, 8}, {10, 16}, {10, 30}};
inline constexpr DevicePair kL40sAndT4 = {"like L40S and T4", {4, 4}, {28, 40}, {28, 54}};

// Everything on each device. EP (HeterMoE): in equal shares.
Layout expert_parallel(std::string name, std::vector<Throttle> devices, ShareKind shares);
// Attention on `faster`, experts on `slower`, one after the other: the order of expert parallelism.
Layout disaggregated(std::string name, const std::vector<Throttle>& faster,
                     const std::vector<Throttle>& slower);

// "cpu/8:8*2,cpu/10:16"
std::string names_of(const std::vector<Throttle>& devices);
// Kept experts and lags.
std::string describe(const Layout& layout);

// The times of a step.
struct LayoutTimes {
  double measured_s = 0, simulated_s = 0, forecast_s = 0;  // simulated with its routing; with equal
                                                           // experts
  std::vector<double> busy = {}, simulated_busy = {};      // [device] shares of the step
  double wire_share = 0;                                   // of an average wire
  int64_t peak_bytes = 0;                                  // most of pages on a device
  double error() const { return simulated_s / measured_s - 1; }
};

class LayoutRace {
 public:
  // Models and pages go to new folders in `directory`, whose storage it is. `steps`: of a timing.
  LayoutRace(std::string directory, Storage* storage, const TrainedStep& step, int steps);

  // Gives a layout of zebra its chunks, lags and, by Asym-EA, kept experts, chosen by the costs of
  // its devices.
  Layout plan_zebra(Layout layout, bool asym_ea);
  // The layout that `plan --cluster` finds for such devices, whose costs of tasks are what they
  // took in the newest round; none: no layout fits. They are planned in one machine, or where a
  // wire has a rate, in as many machines, between which a device sends by a card as fast as a wire:
  // what goes to several others at a time shares it there. The layout keeps rows as all of a race
  // do, whatever the search says of that. REQUIRES: one of these devices was added; with a wire
  // they are alike.
  std::optional<Layout> search(std::string name, const std::vector<Throttle>& devices,
                               const SlowLink::Speed& wire = {});
  // Wires that work for about this part of the layout's step, on average.
  SlowLink::Speed wire_for(const Layout& layout, double part_of_step);
  // The seconds of chunks on the devices of a layout.
  ActionTimes times_of(const Layout& layout);
  RunShape shape_of(const Layout& layout) const;

  void add(Layout layout);
  // Where the batches of a layout come from; even_batch() until then.
  void draw_for(const std::string& name, BatchSource batches);
  // A round is repeated as often at most.
  void run(int rounds, int most_repeats);
  // The median over the rounds.
  LayoutTimes times(const std::string& name) const;
  // How many times as long a step of one takes as one of the other in the same round, the median.
  double ratio(const std::string& name, const std::string& other) const;
  // [step] of the newest round.
  const std::vector<double>& step_seconds(const std::string& name) const;
  const std::vector<double>& simulated_seconds(const std::string& name) const;
  const Layout& layout(const std::string& name) const { return entry(name).layout; }
  int repeats() const { return repeats_; }
  // The factors of all layouts and rounds.
  const std::vector<double>& slowness() const { return slowness_; }

 private:
  struct Entry {
    Layout layout;
    std::unique_ptr<MeasuredRun> run;
    std::vector<LayoutTimes> rounds = {};
    std::vector<double> step_seconds = {}, simulated_seconds = {};
  };
  SessionOptions options(const Layout& layout, const std::string& file) const;
  int64_t shards_of(const Layout& layout) const;
  std::unique_ptr<MeasuredRun> make_run(const Layout& layout);
  const Entry& entry(const std::string& name) const;
  // A run with half of the step's microbatches, or one for each device. On one device it tells of
  // the machine; on all of a layout it tells what tasks take there, with a smaller one that
  // computes a device's experts together, as a chunk's are.
  struct Reference {
    std::vector<Throttle> devices;
    std::unique_ptr<MeasuredRun> run = {}, small = {};
    MeasuredMachine machine = {};       // the newest; of one device
    std::vector<TaskCosts> tasks = {};  // [device] the newest; of several
    // How late a stream goes on that waited for another, which tasks do not explain; of several.
    double wake_s = 0;
  };
  Reference& reference(const std::vector<Throttle>& devices);
  std::unique_ptr<MeasuredRun> make_reference(const std::vector<Throttle>& devices,
                                              int64_t microbatches, bool together);
  void measure(Reference& reference);
  void measure_costs(Reference& reference);
  // Whether others used the cores.
  bool shared() const;
  MachineProfile profile_on(const std::vector<Throttle>& devices, const SlowLink::Speed& link);
  MachineSheet sheet_of(const RunConfig& config, const std::vector<Throttle>& devices);
  LayoutTimes time_entry(Entry& entry);

  std::string directory_;
  Storage* storage_;
  TrainedStep step_;
  int steps_;
  HfFolder folder_;
  std::deque<Reference> references_;
  std::deque<Entry> entries_;
  std::vector<double> slowness_;
  int files_ = 0, repeats_ = 0;
};

// Tokens drawn so that all are as frequent, and experts about as busy.
StepBatch even_batch(const Session& session, std::mt19937& random);

// Tokens of a few dozen, others in every fifth step, of which some are frequent.
BatchSource shifting_batches();

}  // namespace pagoda
