// How close a step of a model that does not fit comes to what this machine allows. Not installed.
//
//   step_bound [DIR] [--rounds N] [--quick] [--only ROW]
//       pages go to a new folder in DIR, removed at the end; --quick: the first budgets only
//
// The bound of a step is the sum over its phases (the forward with the updates that were put off to
// it; the backward) of the slowest independent resource. Both are measured in the same run, taking
// turns with the steps:
//   processor  seconds on all cores over the number of cores, of the same phases of the same steps
//              with room for everything (no page moves), and what copies and checksums of the pages
//              that move take by themselves;
//   drive      the time of the phase's transfers when nothing else is done: the same moves through
//              a pager of its own on devices that do nothing.
// The optimizer alone: the updates that one step leaves, applied at once, against its own bound.
//
// With room for everything: what deciding, waiting for and leasing pages takes when none moves, all
// of it on the thread that issues, which devices wait for only where it is late: the step's plan is
// made and its pages are leased on a device that does nothing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/race/timing.h"
#include "hardware/machine.h"
#include "tests/testing/plan/dry_run.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {
namespace {

// An expert is uploaded when it is chosen for the first time. A run with room for everything has
// settled when this many steps in a row moved nothing, or after the most steps below.
constexpr int kStillSteps = 3;
constexpr int kMostFirstSteps = 40;
constexpr int64_t kMicrobatchTokens = 512;
// 302 million parameters in 256 experts.
constexpr RandomModel kModel{.layers = 16, .hidden_size = 768, .heads = 12, .kv_heads = 4,
                             .head_dim = 64, .experts = 16, .experts_per_token = 2,
                             .expert_size = 512, .vocab_size = 8192};

double seconds_between(int64_t begin_us, int64_t end_us) {
  return 1e-6 * static_cast<double>(end_us - begin_us);
}

// The time for which cores had work and the host of this virtual machine did not run them, over all
// cores since the start; 0 where the system does not count it.
double stolen_s() {
  unsigned long long ticks[8] = {};
  std::FILE* stat = std::fopen("/proc/stat", "r");
  if (stat == nullptr) return 0;
  const int found = std::fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0],
                                &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6],
                                &ticks[7]);
  std::fclose(stat);
  return found == 8 ? static_cast<double>(ticks[7]) / static_cast<double>(sysconf(_SC_CLK_TCK)) : 0;
}

// ---- a device that does nothing ----

// Keeps the order of events and drops the work between them.
class IdleStream final : public Stream {
 public:
  explicit IdleStream(std::string name) : name_(std::move(name)) {}
  Event record() override {
    last_ = when_all(after_);
    after_ = {last_};
    return last_;
  }
  void wait(const Event& event) override {
    if (!event.happened()) after_.push_back(event);
  }
  void enqueue(std::function<void()>) override {}
  void copy(void*, const void*, int64_t) override {}
  ThreadPool& pool() override { return pool_; }
  const std::string& name() const override { return name_; }
  StreamTime time() const override { return {}; }
  bool traced() const override { return false; }
  void begin_span(TraceLabel) override {}
  void end_span() override {}

 private:
  std::string name_;
  std::vector<Event> after_;
  Event last_;
  ThreadPool pool_{1};
};

class IdleDevice final : public Device {
 public:
  explicit IdleDevice(int64_t arena_bytes) : memory_(need(HostMemory::allocate(arena_bytes))) {}
  std::byte* arena() override { return memory_.data(); }  // never touched
  int64_t arena_bytes() const override { return memory_.bytes(); }
  std::unique_ptr<Stream> make_stream(const std::string& name, WorkKind) override {
    return std::make_unique<IdleStream>(name);
  }
  std::string describe() const override { return "idle"; }

 private:
  HostMemory memory_;
};

// ---- the plan of a session's steps with everything but transfers left out ----

struct PhaseMoves {
  double seconds = 0;
  int64_t copied_bytes = 0, read_bytes = 0, written_bytes = 0;
  int64_t checked_bytes() const { return read_bytes + written_bytes; }
};

class IdleReplay {
 public:
  IdleReplay(const Session& session, Storage* storage, const std::string& directory)
      : session_(session),
        storage_(storage),
        file_options_{{directory}, "replayed", 1},
        planned_(session.shape(), session.pages(), session.memory().classes,
                 session.memory().state_on_device,
                 Ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0))) {
    file_ = need(
        PageFile::create(storage, file_options_, page_specs(session.shape(), session.pages())));
    Pager::Options options;
    options.classes = session.memory().classes;
    for (const PageTable::Class& c : session.pages().classes) {
      options.page_bytes.push_back(c.page_bytes);
    }
    for (const PageTable::Page& page : session.pages().pages) {
      options.page_class.push_back(page.slot_class);
    }
    for (int64_t bytes : session.memory().device_slot_bytes) {
      devices_.push_back(std::make_unique<IdleDevice>(bytes));
      compute_.push_back(std::make_unique<IdleStream>("compute"));
      options.devices.push_back(devices_.back().get());
      options.arena_offset.push_back(0);
    }
    pager_ = need(Pager::create(std::move(options), file_.get(), storage));
    write_all();
  }
  ~IdleReplay() {
    pager_.reset();
    file_.reset();
    need(PageFile::remove(storage_, file_options_));
  }

  // One step: what its forward and its backward move, and how long that takes.
  std::pair<PhaseMoves, PhaseMoves> step(const Routing& routing) {
    PhaseMoves forward;
    begin_phase();
    planned_.train(routing, [&](const StepPiece& piece) {
      foresee(piece, *pager_);
      run(piece.tasks);
      if (piece.wait != StepPiece::Wait::kForwardDone) return;
      forward = end_phase();
      begin_phase();
    });
    return {forward, end_phase()};
  }
  PhaseMoves drain() {
    begin_phase();
    planned_.drain([&](const StepPiece& piece) {
      foresee(piece, *pager_);
      run(piece.tasks);
    });
    return end_phase();
  }
  const Pager& pager() const { return *pager_; }

 private:
  void write_all() {
    for (PageId page = 0; page < session_.pages().pages.size(); ++page) {
      if (!session_.pages().pages[page].durable) continue;
      const PageUse use = {page, Place::host(), Access::kCreate};
      pager_->acquire({&use, 1}, host_, ++generation_);
    }
    need(pager_->flush());
  }
  void run(const TaskList& tasks) {
    for (const Task& task : tasks) {
      Stream& stream = task.on_host ? host_ : *compute_[task.device];
      pager_->acquire(task.used(), stream, ++generation_);
      for (const PageUse& use : task.used()) {
        if (use.last) pager_->discard(use.page);
      }
    }
  }
  void begin_phase() {
    before_ = pager_->counters();
    begin_us_ = monotonic_us();
  }
  PhaseMoves end_phase() {
    pager_->drain();
    need(pager_->status());
    const Pager::Counters& now = pager_->counters();
    return {seconds_between(begin_us_, monotonic_us()),
            now.upload_bytes + now.download_bytes - before_.upload_bytes - before_.download_bytes,
            now.fetch_bytes - before_.fetch_bytes,
            now.write_back_bytes - before_.write_back_bytes};
  }

  const Session& session_;
  Storage* storage_;
  PageFile::Options file_options_;
  DryRun planned_;
  std::unique_ptr<PageFile> file_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Stream>> compute_;
  IdleStream host_{"optimizer"};
  std::unique_ptr<Pager> pager_;
  uint64_t generation_ = 0;
  Pager::Counters before_;
  int64_t begin_us_ = 0;
};

// ---- one configuration ----

struct Configuration {
  int64_t microbatches;
  bool eager;
  double device;  // part of weights and state that fits on the device
  double host;    // the same in host memory
};

// The bounds of a phase in one round.
struct PhaseBound {
  double processor_s = 0, drive_s = 0;
  double seconds() const { return std::max(processor_s, drive_s); }
};

struct Row {
  std::vector<double> step_s, resident_s, bound_s, optimizer_s, optimizer_bound_s;
  std::vector<PhaseBound> forward, backward;
  std::vector<PhaseTime> resident_forward, resident_backward, paged_forward, paged_backward;
  std::vector<double> stolen_s;  // of paged steps: cores the host of this virtual machine took away
  int64_t read_bytes = 0, written_bytes = 0, copied_bytes = 0;  // of a step
};

int64_t moved_bytes(RandomTokenRun& run) {
  const Pager::Counters& c = run.session().pager().counters();
  return c.upload_bytes + c.download_bytes + c.fetch_bytes + c.write_back_bytes;
}

// Calls step() until `resident` has settled.
template <typename Step>
void drain(RandomTokenRun& resident, Step&& step) {
  for (int i = 0, still = 0; i < kMostFirstSteps && still < kStillSteps; ++i) {
    const int64_t before = moved_bytes(resident);
    step();
    still = moved_bytes(resident) == before ? still + 1 : 0;
  }
}

double median(const std::vector<double>& values) {
  return values.empty() ? 0 : quantile(values, 0.5);
}

class StepBound {
 public:
  StepBound(std::string directory, int rounds)
      : directory_(std::move(directory)),
        rounds_(rounds),
        threads_(usable_cores()),
        folder_(make_random_model(directory_, kModel)),
        storage_(need(open_storage(IoKind::kAuto, directory_))),
        replay_storage_(need(open_storage(IoKind::kAuto, directory_))) {
    std::printf("storage: %s; %d cores\n", storage_->describe().c_str(), threads_);
  }
  Row run(const Configuration& configuration);
  void run_resident(const Configuration& configuration);

 private:
  SessionOptions options(const Configuration& configuration, bool resident) const;
  PhaseBound bound(double cpu_s, const PhaseMoves& moves) const {
    const double cpu = cpu_s + bytes_.copy_s * static_cast<double>(moves.copied_bytes) +
                       bytes_.check_s * static_cast<double>(moves.checked_bytes());
    return {cpu / threads_, moves.checked_bytes() > 0 ? moves.seconds : 0};
  }

  std::string directory_;
  int rounds_, threads_;
  HfFolder folder_;
  std::unique_ptr<Storage> storage_, replay_storage_;
  ByteCost bytes_;
};

SessionOptions StepBound::options(const Configuration& configuration, bool resident) const {
  SessionOptions options =
      roomy_options(directory_ + "/store", resident ? "resident" : "paged",
                    configuration.microbatches, kMicrobatchTokens, configuration.eager);
  if (resident) return options;
  const TensorTable table = TensorTable::make(folder_.config());
  int64_t bytes = 0;
  for (const RecordSpec& r : table.records) {
    bytes += r.num_elements * dtype_bytes(options.size.dtype) +
             StateLayout(options.adam.state, options.size.dtype, r.num_elements).bytes;
  }
  const auto part = [bytes](double of) {
    return static_cast<int64_t>(of * static_cast<double>(bytes));
  };
  const int64_t workspace = workspace_bytes(model_shape(folder_.config()), options.size, 0);
  options.device_bytes = workspace + part(configuration.device);
  options.host_bytes = part(configuration.host);
  return options;
}

int64_t largest_page_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : pages.classes) {
    if (c.expert) bytes = std::max(bytes, c.page_bytes);
  }
  return bytes;
}

Row StepBound::run(const Configuration& c) {
  RandomTokenRun resident(folder_, storage_.get(), options(c, true));
  CHECK(resident.session().memory().state_on_device);
  RandomTokenRun paged(folder_, storage_.get(), options(c, false));
  IdleReplay idle(paged.session(), replay_storage_.get(), directory_ + "/replay");
  bytes_ = measure_bytes(largest_page_bytes(paged.session().pages()));
  std::mt19937 random(3);
  Row row;
  const auto round = [&](bool measured) {
    const StepBatch batch = random_batch(paged.session(), random);
    const StepResult here = resident.step(batch);
    Pager& pager = paged.session().pager();
    pager.drain();
    const int64_t begin = monotonic_us();
    const double stolen_before = stolen_s();
    const StepResult there = paged.step(batch);
    pager.drain();
    const double step_s = seconds_between(begin, monotonic_us());
    const double stolen = stolen_s() - stolen_before;
    CHECK(here.loss == there.loss, "paging changed the result");
    const auto [forward, backward] = idle.step(here.routing);
    if (!measured) return;
    row.resident_forward.push_back(here.forward);
    row.resident_backward.push_back(here.backward);
    row.stolen_s.push_back(stolen);
    row.paged_forward.push_back(there.forward);
    row.paged_backward.push_back(there.backward);
    row.forward.push_back(bound(here.forward.cpu_s, forward));
    row.backward.push_back(bound(here.backward.cpu_s, backward));
    row.step_s.push_back(step_s);
    row.resident_s.push_back(here.forward.wall_s + here.backward.wall_s);
    row.bound_s.push_back(row.forward.back().seconds() + row.backward.back().seconds());
    row.read_bytes = forward.read_bytes + backward.read_bytes;
    row.written_bytes = forward.written_bytes + backward.written_bytes;
    row.copied_bytes = forward.copied_bytes + backward.copied_bytes;
  };
  const auto optimizer_round = [&] {
    round(false);
    const TimingClock cpu;
    resident.drain();
    const double cpu_s = cpu.finish(1).cpu_seconds;
    Pager& pager = paged.session().pager();
    const int64_t begin = monotonic_us();
    paged.drain();
    pager.drain();
    row.optimizer_s.push_back(seconds_between(begin, monotonic_us()));
    row.optimizer_bound_s.push_back(bound(cpu_s, idle.drain()).seconds());
  };
  drain(resident, [&] { round(false); });
  for (int i = 0; i < rounds_; ++i) round(true);
  for (int i = 0; i < (c.eager ? 0 : rounds_); ++i) optimizer_round();
  return row;
}

void StepBound::run_resident(const Configuration& c) {
  RandomTokenRun resident(folder_, storage_.get(), options(c, true));
  IdleReplay idle(resident.session(), replay_storage_.get(), directory_ + "/replay");
  std::mt19937 random(3);
  std::vector<double> step_s, pager_s;
  const auto step = [&](bool measured) {
    const StepResult result = resident.step(random_batch(resident.session(), random));
    const auto [forward, backward] = idle.step(result.routing);
    if (!measured) return;
    step_s.push_back(result.forward.wall_s + result.backward.wall_s);
    pager_s.push_back(forward.seconds + backward.seconds);
  };
  drain(resident, [&] { step(false); });
  const int64_t before = moved_bytes(resident);
  for (int i = 0; i < rounds_; ++i) step(true);
  const int64_t moved = moved_bytes(resident) - before;
  std::printf("%6lld  %-10s with room for everything: %.3f s a step, %lld bytes moved; plan and "
              "pager by themselves %.4f s, %.2f %%\n",
              static_cast<long long>(c.microbatches * kMicrobatchTokens),
              c.eager ? "per_expert" : "global", median(step_s),
              static_cast<long long>(moved), median(pager_s),
              100 * median(pager_s) / median(step_s));
  std::fflush(stdout);
}

void print(const Configuration& c, const Row& row) {
  const auto part = [](const std::vector<PhaseBound>& phases, bool processor) {
    std::vector<double> values;
    for (const PhaseBound& p : phases) values.push_back(processor ? p.processor_s : p.drive_s);
    return median(values);
  };
  const double step_s = median(row.step_s), bound_s = median(row.bound_s);
  std::printf("%6lld  %-10s %4.0f %4.0f   %7.3f %7.3f  %5.3f   %6.3f %6.3f   %6.3f %6.3f   %7.3f   "
              "%6.0f %6.0f %6.0f",
              static_cast<long long>(c.microbatches * kMicrobatchTokens),
              c.eager ? "per_expert" : "global", 100 * c.device, 100 * c.host, step_s, bound_s,
              step_s / bound_s, part(row.forward, true), part(row.forward, false),
              part(row.backward, true), part(row.backward, false), median(row.resident_s),
              1e-6 * static_cast<double>(row.read_bytes),
              1e-6 * static_cast<double>(row.written_bytes),
              1e-6 * static_cast<double>(row.copied_bytes));
  if (!row.optimizer_s.empty()) {
    std::printf("   %6.3f %6.3f %6.3f", median(row.optimizer_s), median(row.optimizer_bound_s),
                median(row.optimizer_s) / median(row.optimizer_bound_s));
  }
  std::printf("\n");
  const auto times = [](const std::vector<PhaseTime>& phases) {
    std::vector<double> wall_s, cpu_s;
    for (const PhaseTime& p : phases) {
      wall_s.push_back(p.wall_s);
      cpu_s.push_back(p.cpu_s);
    }
    return strf("%.3f s, %.3f on processors", median(wall_s), median(cpu_s));
  };
  std::printf("        no page: forward %s; backward %s\n", times(row.resident_forward).c_str(),
              times(row.resident_backward).c_str());
  std::printf("        paged:   forward %s; backward %s; stolen %.3f s\n",
              times(row.paged_forward).c_str(), times(row.paged_backward).c_str(),
              median(row.stolen_s));
  std::fflush(stdout);
}

int measure(const std::string& parent, int rounds, bool quick, int only) {
  const std::string directory = parent + "/step_bound";
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  {
    StepBound bound(directory, rounds);
    if (only < 0) {
      for (int64_t microbatches : {1, 8}) bound.run_resident({microbatches, false, 0, 0});
    }
    std::printf("%6s  %-10s %4s %4s   %7s %7s  %5s   %6s %6s   %6s %6s   %7s   %6s %6s %6s   %s\n",
                "tokens", "clip", "dev%", "host", "step s", "bound", "ratio", "f.cpu", "f.disk",
                "b.cpu", "b.disk", "no page", "MB in", "out", "copied",
                "optimizer s, bound, ratio");
    const std::vector<std::pair<double, double>> budgets = {
        {0.25, 0.50}, {0.10, 0.40}, {0.15, 0.70}, {0.30, 0.80}};
    int number = 0;
    for (const auto& [device, host] : budgets) {
      for (int64_t microbatches : {1, 2, 8}) {
        for (bool eager : {false, true}) {
          const Configuration c = {microbatches, eager, device, host};
          if (only < 0 || number == only) print(c, bound.run(c));
          ++number;
        }
      }
      if (quick) break;
    }
  }
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  std::string parent = std::filesystem::temp_directory_path();
  int rounds = 5;
  bool quick = false;
  int only = -1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--quick") == 0) {
      quick = true;
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr, "step_bound: usage: [--rounds N] [--only N] [--quick] [DIR]\n");
      return 2;
    }
  }
  return pagoda::measure(parent, rounds, quick, only);
}
