// How many pages residency moves, beside plain LRU, pinning, and Belady's clairvoyant choice over
// the whole run. Replays plans (plan/step_plan.h) over routing that is drawn or recorded; nothing
// is computed or transferred. Not installed.
//
//   residency_study                         drawn routing
//   residency_study replay FILE             recorded routing
//   residency_study record MODEL TEXT STEPS FILE
//                                           trains the model on the text and writes its routing
//
// A recorded line is a JSON list over layers of lists over experts: tokens of one step; an empty
// list for a dense layer.
//
// Tier "device": uploads of expert weights a step; host memory holds everything, a budget is the
// share of expert weights that fits the device. Tier "host": MB read a step of expert weights and
// state as if an expert had 10^6 parameters (2 and 12 MB); a budget is the share of every class of
// expert pages that fits the host, and the device has a tenth of the weights.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "base/random.h"
#include "model/json.h"
#include "plan/pinning.h"
#include "plan/step_plan.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

using Layers = std::vector<std::vector<int64_t>>;  // [layer][expert] tokens of one step
using Routing = std::vector<Layers>;               // [step]

enum class Regime { kDeferred, kEager, kForward };
constexpr const char* kRegimeNames[] = {"train, clip=global", "train, eager Adam", "forward only"};

// Drawn routing: 8 layers of 64 experts, 128 choices a layer and step.
constexpr int64_t kLayers = 8, kExperts = 64, kChoices = 128;
constexpr int kSteps = 24;
constexpr uint64_t kSeed = 1;

// The expert whose share of the total weight holds a random point.
size_t choose(const std::vector<double>& weights, uint64_t a, uint64_t b) {
  double total = 0;
  for (double w : weights) total += w;
  double at = random_unit(kSeed, RandomPurpose::kTest, a, b) * total;
  size_t e = 0;
  while (e + 1 < weights.size() && (at -= weights[e]) > 0) ++e;
  return e;
}

// Expert e of a layer has weight 1 / rank^exponent; ranks differ from layer to layer. A choice is
// that of the step before with probability `sticky`.
Routing draw_routing(double exponent, double sticky) {
  Routing routing;
  std::vector<std::vector<size_t>> chosen(kLayers, std::vector<size_t>(kChoices, 0));
  for (uint64_t step = 0; step < kSteps; ++step) {
    Layers layers(kLayers, std::vector<int64_t>(kExperts, 0));
    for (uint64_t l = 0; l < kLayers; ++l) {
      std::vector<double> weights;
      for (uint64_t e = 0; e < kExperts; ++e) {
        const auto rank = static_cast<double>(1 + random_permutation(kSeed, l, kExperts, e));
        weights.push_back(std::pow(rank, -exponent));
      }
      for (uint64_t c = 0; c < kChoices; ++c) {
        const uint64_t counter = (step * kLayers + l) * kChoices + c;
        const bool again =
            step > 0 && random_unit(kSeed, RandomPurpose::kTest, 1, counter) <= sticky;
        if (!again) chosen[l][c] = choose(weights, 2, counter);
        ++layers[l][chosen[l][c]];
      }
    }
    routing.push_back(std::move(layers));
  }
  return routing;
}

RunShape shape_of(const Layers& layers) {
  RunShape shape;
  shape.num_layers = static_cast<int64_t>(layers.size());
  shape.hidden_size = 64;
  shape.experts_per_token = 1;
  shape.microbatches = 1;
  shape.microbatch_tokens = 1;
  shape.row_block = int64_t{1} << 20;
  shape.records.push_back({3000});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.is_moe.push_back(!layers[l].empty());
    shape.num_experts = std::max(shape.num_experts, static_cast<int64_t>(layers[l].size()));
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({2000, l});
    for (size_t e = 0; e < layers[l].size(); ++e) {
      shape.records.push_back({1000, l, static_cast<int64_t>(e)});
    }
  }
  shape.records.push_back({3000});
  return shape;
}

// Tasks that are issued together, what is certain after them, and the end of a step.
struct Batch {
  TaskList tasks, later;
  const Layers* ended = nullptr;
};

// The run's batches in order, as src/train issues them: optimizer work a layer ahead of use.
class Issue {
 public:
  Issue(const RunShape& shape, const PageTable& pages, Regime regime)
      : shape_(shape),
        plan_(shape, pages,
              {.training = regime != Regime::kForward, .eager_adam = regime == Regime::kEager}),
        regime_(regime),
        has_gradient_(shape.records.size(), 0),
        owes_(shape.records.size(), 0) {}

  void step(const Layers& tokens, std::vector<Batch>& batches) {
    forward(tokens, batches);
    if (regime_ != Regime::kForward) backward(tokens, batches);
    batches.back().ended = &tokens;
  }

 private:
  int64_t end_of_layer(int64_t l) const {
    return l + 1 < shape_.num_layers ? shape_.layer_record[l + 1] : shape_.head();
  }
  void pay(int64_t r, TaskList& tasks) {
    if (owes_[r]) plan_.adam(r, has_gradient_[r], tasks);
    owes_[r] = has_gradient_[r] = 0;
  }
  void pay_waiting(int64_t first, int64_t last, TaskList& tasks) {
    for (int64_t r = first; r < last; ++r) {
      if (has_gradient_[r]) pay(r, tasks);
    }
  }

  void forward(const Layers& tokens, std::vector<Batch>& batches) {
    Batch batch;
    pay_waiting(0, end_of_layer(0), batch.tasks);
    plan_.embed(batch.tasks);
    for (int64_t l = 0; l < shape_.num_layers; ++l) {
      const int64_t next = end_of_layer(l);
      const int64_t after = l + 1 < shape_.num_layers ? end_of_layer(l + 1) : next + 1;
      pay_waiting(next, after, batch.tasks);
      plan_.forward_layer(l, batch.tasks);
      const auto owes = owes_, has_gradient = has_gradient_;
      pay_waiting(after, static_cast<int64_t>(shape_.records.size()), batch.later);
      owes_ = owes;
      has_gradient_ = has_gradient;
      batches.push_back(std::exchange(batch, {}));
      if (!shape_.is_moe[l]) continue;
      for (size_t e = 0; e < tokens[l].size(); ++e) {
        if (tokens[l][e] > 0) pay(shape_.expert(l, static_cast<int64_t>(e)), batch.tasks);
      }
      plan_.forward_experts(l, tokens[l], batch.tasks);
    }
    plan_.head(batch.tasks);
    batches.push_back(std::move(batch));
  }

  void backward(const Layers& tokens, std::vector<Batch>& batches) {
    Batch batch;
    for (int64_t l = shape_.num_layers - 1; l >= 0; --l) {
      plan_.backward_layer(l, tokens[l], batch.tasks);
    }
    plan_.embed_backward(batch.tasks);
    for (size_t r = 0; r < shape_.records.size(); ++r) owes_[r] = 1;
    for (const Batch* b : {static_cast<const Batch*>(&batches.back()), &std::as_const(batch)}) {
      for (const Task& task : b->tasks) {
        if (task.kind == TaskKind::kGradient) has_gradient_[task.record] = 1;
      }
    }
    if (regime_ == Regime::kEager) {
      for (size_t r = 0; r < shape_.records.size(); ++r) {
        if (has_gradient_[r]) owes_[r] = has_gradient_[r] = 0;
      }
    }
    batches.push_back(std::move(batch));
  }

  RunShape shape_;
  StepPlan plan_;
  Regime regime_;
  std::vector<uint8_t> has_gradient_, owes_;
};

struct Policy {
  const char* name;
  bool foresees = false, expects = false, clairvoyant = false;
  int device_depth = 1, host_depth = 1;
  double pinned_share = 0;
};
// The last but one is what training does, depths of SlotClass included.
constexpr Policy kPolicies[] = {
    {.name = "lru"},
    {.name = "lru, pin 25%", .pinned_share = 0.25},
    {.name = "foresees", .foresees = true},
    {.name = "expects", .expects = true},
    {.name = "both", .foresees = true, .expects = true},
    {.name = "ours, pin 25%", .foresees = true, .expects = true, .device_depth = 2,
     .host_depth = 3, .pinned_share = 0.25},
    {.name = "ours", .foresees = true, .expects = true, .device_depth = 2, .host_depth = 3},
    {.name = "belady", .foresees = true, .clairvoyant = true},
};

struct Misses {
  double uploads = 0, mb_read = 0;  // a step, of expert pages
};

class Replay {
 public:
  Replay(const RunShape& shape, const PageTable& pages, std::vector<SlotClass> classes)
      : shape_(shape), pages_(pages), classes_(std::move(classes)) {}

  Misses run(const std::vector<Batch>& batches, size_t steps, const Policy& policy) {
    std::vector<uint16_t> page_class;
    for (const PageTable::Page& page : pages_.pages) page_class.push_back(page.slot_class);
    for (SlotClass& c : classes_) {
      c.device_depth = policy.device_depth;
      c.host_depth = policy.host_depth;
    }
    Residency residency(1, classes_, page_class);
    for (PageId p = 0; p < pages_.pages.size(); ++p) {
      if (pages_.pages[p].durable) residency.set_on_disk(p);
    }
    misses_ = {};
    std::vector<PageUse> uses;
    if (policy.clairvoyant) {
      for (const Batch& batch : batches) add_uses(batch.tasks, uses);
      residency.foresee(uses);
    }
    bool begins = true;
    for (const Batch& batch : batches) {
      if (begins && policy.expects) residency.begin_cycle();
      begins = batch.ended;
      uses.clear();
      add_uses(batch.tasks, uses);
      add_uses(batch.later, uses);
      if (policy.foresees && !policy.clairvoyant) residency.foresee(uses);
      issue(batch.tasks, residency);
      if (!batch.ended || policy.pinned_share == 0) continue;
      residency.keep(pinned_weights(shape_, pages_, classes_, *batch.ended, policy.pinned_share));
    }
    misses_.uploads /= static_cast<double>(steps);
    misses_.mb_read /= static_cast<double>(steps);
    return misses_;
  }

 private:
  void issue(const TaskList& tasks, Residency& residency) {
    for (const Task& task : tasks) {
      const std::span<const PageUse> uses(task.uses.data(), task.num_uses);
      moves_.clear();
      residency.acquire(uses, moves_, slots_);
      residency.release(uses);
      for (const Move& move : moves_) count(move);
      for (int i = 0; i < task.num_uses; ++i) {
        if (task.dies >> i & 1) residency.discard(task.uses[i].page);
      }
    }
  }
  void count(const Move& move) {
    const PageTable::Class& info = pages_.classes[pages_.pages[move.page].slot_class];
    if (!info.expert) return;
    const bool weights = info.kind == PageKind::kWeights;
    if (move.kind == Move::Kind::kUpload) misses_.uploads += weights;
    if (move.kind == Move::Kind::kFetch) misses_.mb_read += info.kind == PageKind::kState ? 12 : 2;
  }

  const RunShape& shape_;
  const PageTable& pages_;
  std::vector<SlotClass> classes_;
  Misses misses_;
  std::vector<Move> moves_;
  std::vector<int32_t> slots_;
};

// Everything fits but experts: of their weights `on_device`, of all their pages `in_host`.
std::vector<SlotClass> slots_for(const PageTable& pages, double on_device, double in_host) {
  std::vector<SlotClass> classes;
  for (const PageTable::Class& info : pages.classes) {
    const auto count = static_cast<double>(info.num_pages);
    const bool pages_out = info.expert && info.kind != PageKind::kInbound &&
                           info.kind != PageKind::kOutbound;
    SlotClass slots{{static_cast<int32_t>(count)}, static_cast<int32_t>(count)};
    if (pages_out) {
      const double device = info.kind == PageKind::kWeights ? on_device * count : 2;
      slots.device_slots[0] = std::max(2, static_cast<int32_t>(device));
      slots.host_slots = std::max(3, static_cast<int32_t>(in_host * count));
    }
    classes.push_back(slots);
  }
  return classes;
}

void print_row(const char* routing, Regime regime, const char* tier, int percent,
               const std::vector<double>& misses) {
  std::printf("| %s | %s | %s | %d%% |", routing, kRegimeNames[static_cast<int>(regime)], tier,
              percent);
  for (double m : misses) std::printf(" %.1f |", m);
  const double lru = misses.front(), ours = misses.end()[-2], belady = misses.back();
  std::printf(" %.3f | %.3f |\n", belady > 0 ? ours / belady : 1.0, lru > 0 ? ours / lru : 1.0);
}

void study(const char* name, const Routing& routing) {
  const RunShape shape = shape_of(routing.front());
  for (Regime regime : {Regime::kDeferred, Regime::kEager, Regime::kForward}) {
    RunShape run_shape = shape;
    run_shape.training = regime != Regime::kForward;
    const PageTable pages(run_shape);
    Issue issue(run_shape, pages, regime);
    std::vector<Batch> batches;
    for (const Layers& tokens : routing) issue.step(tokens, batches);
    for (const bool host : {false, true}) {
      for (int percent : {10, 25, 50, 75, 90}) {
        const double share = percent / 100.0;
        Replay replay(run_shape, pages,
                      host ? slots_for(pages, 0.1, share) : slots_for(pages, share, 1.0));
        std::vector<double> misses;
        for (const Policy& policy : kPolicies) {
          const Misses m = replay.run(batches, routing.size(), policy);
          misses.push_back(host ? m.mb_read : m.uploads);
        }
        print_row(name, regime, host ? "host" : "device", percent, misses);
      }
    }
  }
}

void print_head() {
  std::printf("| routing | regime | tier | budget |");
  for (const Policy& policy : kPolicies) std::printf(" %s |", policy.name);
  std::printf(" ours/belady | ours/lru |\n|---|---|---|---|");
  for (size_t i = 0; i < std::size(kPolicies); ++i) std::printf("---|");
  std::printf("---|---|\n");
}

int fail(const Status& status) {
  std::fprintf(stderr, "residency_study: %s\n", status.message().c_str());
  return static_cast<int>(status.code());
}

Result<Routing> read_routing(const char* path) try {
  std::ifstream file(path);
  Routing routing;
  for (std::string line; std::getline(file, line);) {
    routing.push_back(Json::parse(line).get<Layers>());
  }
  if (routing.empty()) return Status(Exit::kUsage, std::string(path) + ": no routing in it");
  return routing;
} catch (const std::exception& error) {
  return Status(Exit::kUsage, std::string(path) + ": " + error.what());
}

Status record(const char* model, const char* text, int64_t steps, const char* path) {
  RunConfig config;
  config.model.path = model;
  config.data.path = {text};
  config.data.sequence_len = 64;
  config.train.tokens_per_step = 512;
  config.train.micro_batch_tokens = 512;
  config.train.steps = steps;
  config.train.save_steps = 0;
  config.optim.learning_rate = 1e-3;
  config.train.output_dir = std::string(path) + ".run";
  RETURN_IF_ERROR(config.validate_for_training());
  ASSIGN_OR_RETURN(const auto storage, open_storage(IoKind::kAuto, "."));
  ASSIGN_OR_RETURN(const auto trainer, Trainer::start(config, false, storage.get()));
  std::ofstream file(path);
  for (int64_t i = 0; i < steps; ++i) {
    ASSIGN_OR_RETURN(const StepResult result, trainer->step());
    file << Json(result.tokens_per_expert).dump() << "\n";
  }
  file.flush();
  return file ? Status() : Status(Exit::kIoError, std::string(path) + ": not written");
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 5 && words[0] == "record") {
    int64_t steps = 0;
    if (!parse_int64(words[3], steps) || steps < 1) {
      return fail(Status(Exit::kUsage, "STEPS must be a whole number above 0"));
    }
    const Status status =
        record(words[1].c_str(), words[2].c_str(), steps, words[4].c_str());
    return status.ok() ? 0 : fail(status);
  }
  if (words.size() == 2 && words[0] == "replay") {
    const auto routing = read_routing(words[1].c_str());
    if (!routing.ok()) return fail(routing.status());
    print_head();
    study("recorded", routing.value());
    return 0;
  }
  if (!words.empty()) return fail(Status(Exit::kUsage, "see the head of residency_study.cc"));
  print_head();
  study("uniform", draw_routing(0, 0));
  study("zipf 1.0", draw_routing(1, 0));
  study("sticky 0.9", draw_routing(0, 0.9));
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run({argv + 1, argv + argc}); }
