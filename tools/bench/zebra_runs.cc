#include "tools/bench/zebra_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "preview/zebra_choice.h"

namespace pagoda {
namespace {

HfFolder make_model(const std::string& directory, const RandomModel& model) {
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  return make_random_model(directory, model);
}

std::vector<Throttle> joined(std::vector<Throttle> devices, const std::vector<Throttle>& others) {
  devices.insert(devices.end(), others.begin(), others.end());
  return devices;
}

double wire_bytes(const MeasuredRun& run) {
  const auto devices = static_cast<double>(run.busy_s().size());
  return static_cast<double>(run.sent().bytes) / (devices * (devices - 1));
}

std::string numbers(const std::vector<int64_t>& all) {
  std::string text;
  for (const int64_t n : all) text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

}  // namespace

std::string names_of(const std::vector<Throttle>& devices) {
  std::string names;
  for (size_t d = 0; d < devices.size(); ++d) {
    size_t same = 1;
    while (d + 1 < devices.size() && devices[d + 1].experts == devices[d].experts &&
           devices[d + 1].rest == devices[d].rest) {
      ++d;
      ++same;
    }
    names += (names.empty() ? "" : ",") + strf("cpu/%g:%g", devices[d].experts, devices[d].rest);
    if (same > 1) names += strf("*%zu", same);
  }
  return names;
}

std::string describe(const Layout& layout) {
  return strf("offloaded %s, lags %d %d %d", numbers(layout.offloaded).c_str(), layout.lags.head,
              layout.lags.attention, layout.lags.expert);
}

Layout expert_parallel(std::string name, std::vector<Throttle> devices, ShareKind shares) {
  Layout layout{.name = std::move(name), .devices = std::move(devices)};
  layout.attention_devices = std::ssize(layout.devices);
  layout.shares = shares;
  return layout;
}

Layout disaggregated(std::string name, const std::vector<Throttle>& faster,
                     const std::vector<Throttle>& slower) {
  Layout layout{.name = std::move(name), .devices = joined(faster, slower), .zebra = true};
  layout.attention_devices = std::ssize(faster);
  return layout;
}

LayoutRace::LayoutRace(std::string directory, Storage* storage, const TrainedStep& step, int steps)
    : directory_(std::move(directory)),
      storage_(storage),
      step_(step),
      steps_(steps),
      folder_(make_model(directory_, step.model)) {}

SessionOptions LayoutRace::options(const Layout& layout, const std::string& file) const {
  SessionOptions options = roomy_options(directory_ + "/store", file, step_.chunks * step_.width,
                                         step_.row_tokens, false);
  options.optimizer_threads = 1;
  options.devices.clear();
  for (const Throttle& throttle : layout.devices) options.devices.push_back({1, throttle});
  options.size.sums.chunks = layout.chunks;
  options.size.sums.shards = default_shards(options.size.microbatches / layout.chunks);
  options.zebra = layout.zebra;
  options.size.pages_expert_sums = options.size.sums.pages_expert_sums(layout.zebra);
  options.lags = layout.lags;
  options.offloaded = layout.offloaded;
  options.order = layout.order;
  options.shares = layout.shares;
  options.seats_by_step = true;
  options.deal_attention(layout.attention_devices);
  return options;
}

std::unique_ptr<MeasuredRun> LayoutRace::make_run(const Layout& layout,
                                                  const SlowLink::Speed& link) {
  auto run =
      std::make_unique<MeasuredRun>(folder_, storage_, options(layout, strf("run-%d", ++files_)),
                                    link.bytes_per_s > 0 ? std::optional(link) : std::nullopt);
  run->draw(even_batch);
  return run;
}

RunShape LayoutRace::shape_of(const Layout& layout) const {
  return make_run_shape(model_shape(folder_.config()), options(layout, "shape"));
}

ActionTimes LayoutRace::times_of(const Layout& layout) {
  return run_times(shape_of(layout), profile_on(layout.devices, {}));
}

Layout LayoutRace::plan_zebra(std::string name, const std::vector<Throttle>& faster,
                              const std::vector<Throttle>& slower, bool asym_ea) {
  Layout layout = disaggregated(std::move(name), faster, slower);
  layout.chunks = step_.chunks;
  const ModelShape model = model_shape(folder_.config());
  OpenZebra open;
  open.attention_devices = layout.attention_devices;
  open.most_kept = most_kept_experts(model, options(layout, "shape"));
  if (!asym_ea) open.offloaded = layout.offloaded;
  const auto with = [&](int64_t, int64_t offloaded) {
    layout.offloaded = {offloaded};
    return shape_of(layout);
  };
  const ZebraRun best = choose_zebra(open, with, profile_on(layout.devices, {}));
  layout.offloaded = best.offloaded;
  layout.lags = best.lags;
  return layout;
}

void LayoutRace::add(const Layout& layout) {
  SlowLink::Speed link;
  if (layout.exchange > 0) {
    const std::unique_ptr<MeasuredRun> trial = make_run(layout, {});
    if (trial->sent().bytes > 0) {
      link = {.latency_s = 100e-6,
              .bytes_per_s = wire_bytes(*trial) / (layout.exchange * trial->step_s())};
    }
  }
  for (const Throttle& device : layout.devices) reference(device);
  entries_.push_back({layout, link, make_run(layout, link)});
}

void LayoutRace::draw_for(const std::string& name, BatchSource batches) {
  for (Entry& entry : entries_) {
    if (entry.layout.name == name) entry.run->draw(std::move(batches));
  }
}

const LayoutRace::Reference& LayoutRace::reference(const Throttle& throttle) {
  for (const Reference& r : references_) {
    if (r.throttle.experts == throttle.experts && r.throttle.rest == throttle.rest) return r;
  }
  const Layout alone = expert_parallel("reference", {throttle}, ShareKind::kSpeed);
  SessionOptions asked = options(alone, strf("reference-%zu", references_.size()));
  asked.size.microbatches = std::max(step_.width, step_.chunks * step_.width / 2);
  asked.size.sums.shards = default_shards(asked.size.microbatches);
  references_.push_back({throttle, std::make_unique<MeasuredRun>(folder_, storage_, asked)});
  Reference& r = references_.back();
  r.run->draw(even_batch);
  measure(r);
  return r;
}

void LayoutRace::measure(Reference& reference) const {
  reference.machine = measure_machine(*reference.run, storage_, directory_);
  reference.run->measure(1);
  fit_tasks(*reference.run, reference.machine);
}

bool LayoutRace::shared() const {
  return std::any_of(references_.begin(), references_.end(),
                     [](const Reference& r) { return r.machine.shared(); }) ||
         measure_machine(*references_.front().run, storage_, directory_).shared();
}

MachineProfile LayoutRace::profile_on(const std::vector<Throttle>& devices,
                                      const SlowLink::Speed& link) {
  MachineProfile profile = profile_of(reference(devices.front()).machine, {}, {}, link);
  for (const Throttle& device : devices) {
    const MeasuredMachine& alone = reference(device).machine;
    profile.device_tasks.push_back(profile_of(alone, {device}, device, link).device_tasks.front());
  }
  return profile;
}

LayoutTimes LayoutRace::times_now(Entry& entry) {
  const MeasuredRun& run = *entry.run;
  const MachineProfile profile = profile_on(entry.layout.devices, entry.link);
  const MeasuredRun::Replayed replayed = run.simulate(profile);
  entry.step_seconds = run.step_seconds();
  entry.simulated_seconds = replayed.step_seconds;
  // A planner has the first round's costs, before the others.
  const double forecast_s = entry.rounds.empty() ? simulate_even(run.session(), profile).step_s
                                                 : entry.rounds.front().forecast_s;
  LayoutTimes times{run.step_s(), replayed.step_s, forecast_s};
  for (size_t d = 0; d < run.busy_s().size(); ++d) {
    times.busy.push_back(run.busy_s()[d] / run.step_s());
    times.simulated_busy.push_back(replayed.busy_s[d] / replayed.step_s);
  }
  if (entry.link.bytes_per_s > 0) {
    times.wire_share = wire_bytes(run) / entry.link.bytes_per_s / run.step_s();
  }
  return times;
}

void LayoutRace::run(int rounds, int most_repeats) {
  for (int round = 0; round < rounds; ++round) {
    for (int trial = 0; trial <= most_repeats; ++trial) {
      for (Reference& r : references_) measure(r);
      // Every second time in the other order.
      for (size_t i = 0; i < entries_.size(); ++i) {
        entries_[round % 2 == 0 ? i : entries_.size() - 1 - i].run->measure(steps_);
      }
      if (trial < most_repeats && shared()) {
        ++repeats_;
        continue;
      }
      for (Entry& entry : entries_) entry.rounds.push_back(times_now(entry));
      break;
    }
  }
}

const LayoutRace::Entry& LayoutRace::entry(const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.layout.name == name) return entry;
  }
  CHECK(false, "no layout %s", name.c_str());
}

LayoutTimes LayoutRace::times(const std::string& name) const {
  const std::vector<LayoutTimes>& rounds = entry(name).rounds;
  LayoutTimes times;
  for (double LayoutTimes::*of : {&LayoutTimes::measured_s, &LayoutTimes::simulated_s,
                                  &LayoutTimes::forecast_s, &LayoutTimes::wire_share}) {
    times.*of = median(rounds, of);
  }
  for (size_t d = 0; d < rounds.front().busy.size(); ++d) {
    times.busy.push_back(median(rounds, [&](const LayoutTimes& t) { return t.busy[d]; }));
    times.simulated_busy.push_back(
        median(rounds, [&](const LayoutTimes& t) { return t.simulated_busy[d]; }));
  }
  return times;
}

const std::vector<double>& LayoutRace::step_seconds(const std::string& name) const {
  return entry(name).step_seconds;
}

const std::vector<double>& LayoutRace::simulated_seconds(const std::string& name) const {
  return entry(name).simulated_seconds;
}

StepBatch even_batch(const Session& session, std::mt19937& random) {
  StepBatch batch = random_batch(session, random);
  const auto vocabulary = static_cast<uint64_t>(session.config().vocab_size);
  for (int32_t& token : batch.tokens) token = static_cast<int32_t>(random() % vocabulary);
  return batch;
}

}  // namespace pagoda
