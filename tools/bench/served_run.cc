#include "tools/bench/served_run.h"

#include <cmath>
#include <filesystem>
#include <random>

#include "tools/bench/task_pauses.h"
#include "train/task_times.h"
#include "train/weights.h"

namespace pagoda {
namespace {

// Draws distinct experts by their popularity.
void draw_choices(std::mt19937& random, std::vector<double> popularity, int64_t k,
                  std::vector<int32_t>& choices) {
  for (int64_t c = 0; c < k; ++c) {
    std::discrete_distribution<int32_t> draw(popularity.begin(), popularity.end());
    choices.push_back(draw(random));
    popularity[static_cast<size_t>(choices.back())] = 0;
  }
}

void draw_routing(ServedModel& model, uint32_t seed) {
  std::mt19937 random(seed);
  std::lognormal_distribution<double> lognormal(0, 1);
  const int64_t k = model.sizes.experts_per_token, tokens = kSequences * model.prompt_tokens();
  for (int64_t l = 0; l < model.sizes.layers; ++l) {
    std::vector<double> popularity(kExperts);
    for (double& p : popularity) p = lognormal(random);
    std::vector<int32_t>& of_layer = model.choices.emplace_back();
    for (int64_t t = 0; t < tokens; ++t) draw_choices(random, popularity, k, of_layer);
  }
  model.trace.shape = {kExperts, k, kSequences,
                       std::vector<uint8_t>(static_cast<size_t>(model.sizes.layers), 1)};
  RoutedStep& step = model.trace.steps.emplace_back();
  step.step = 1;
  for (int64_t i = 0; i < kSequences; ++i) {
    LayerRouting& layers = step.routing.emplace_back();
    for (const std::vector<int32_t>& of_layer : model.choices) {
      std::vector<int64_t>& counts = layers.emplace_back(static_cast<size_t>(kExperts), 0);
      const int64_t rows = model.prompt_tokens() * k;
      for (int64_t r = i * rows; r < (i + 1) * rows; ++r) {
        ++counts[static_cast<size_t>(of_layer[static_cast<size_t>(r)])];
      }
    }
  }
}

}  // namespace

ServedModel make_served_model(const ServedSetting& setting, const std::string& name, double width,
                              int64_t k, uint32_t seed) {
  const int64_t d = setting.tiny ? 32 : setting.hidden_size;
  const std::string folder = setting.directory + "/" + name;
  CHECK(std::filesystem::create_directory(folder), "%s exists", folder.c_str());
  const RandomModel sizes = {.layers = setting.layers(),
                             .hidden_size = d,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .experts = kExperts,
                             .experts_per_token = k,
                             .expert_size = std::llround(width * static_cast<double>(d)),
                             .vocab_size = 272,
                             .initializer_range = 0.05};
  ServedModel model{sizes, make_random_model(folder, sizes), {}};
  std::mt19937 random(seed);
  for (int64_t i = 0; i < kSequences; ++i) {
    TokenIds& prompt = model.prompts.emplace_back();
    for (int64_t t = 0; t < setting.prompt_tokens(); ++t) prompt.push_back(random() % 255);
  }
  draw_routing(model, seed);
  return model;
}

SessionOptions served_options(ServedSetting& setting, const ServedModel& model,
                              const std::vector<Throttle>& devices) {
  SessionOptions options =
      roomy_options(setting.directory + "/store", strf("run-%d", ++setting.files), 1, 1, false);
  options.size.training = false;
  options.optimizer_threads = 1;
  options.devices.clear();
  for (const Throttle& throttle : devices) options.devices.push_back({1, throttle});
  options.size.cache = cache_for(model.prompts, 1);
  options.deal_sequences(kSequences, options.num_devices());
  options.size.microbatch_tokens = options.size.cache.sequences * model.prompt_tokens();
  options.exchange = ExchangeOrder::kRounds;
  return options;
}

ServedRun::ServedRun(const ServedModel& model, Storage* storage, const SessionOptions& options,
                     const std::shared_ptr<NetworkCards>& cards)
    : model_(model), session_(need(Session::create(model.folder.config(), options, storage))) {
  need(load_weights(*weights_of_folder(model.folder), *session_));
  need(session_->pager().flush());
  if (cards) session_->slow_link({.latency_s = 20e-6, .cards = cards});
  impose();
  runner_ = std::make_unique<PassRunner>(session_.get());
  serve(1);
}
ServedRun::~ServedRun() {
  runner_.reset();
  session_->remove_files();
}

void ServedRun::serve(int passes) {
  GenerationSettings settings;
  settings.max_new_tokens = 1;
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<TokenIds> next;
    for (const Continuation& c : need(generate(*runner_, model_.prompts, settings))) {
      next.push_back(c.tokens);
    }
    CHECK(next_.empty() || next == next_, "a pass gave other tokens than the one before");
    next_ = std::move(next);
  }
}

int64_t ServedRun::tokens_of(int device) const {
  int64_t tokens = 0;
  for (const int b : session_->options().sequence_microbatch) {
    if (session_->shape().attending(0, b) == device) tokens += model_.prompt_tokens();
  }
  return tokens;
}

// Each prompt's tokens choose what they choose, wherever they are.
void ServedRun::impose() {
  const SessionOptions& options = session_->options();
  const int64_t k = model_.sizes.experts_per_token, rows = model_.prompt_tokens() * k;
  for (const std::vector<int32_t>& choices : model_.choices) {
    std::vector<int32_t>& imposed = imposed_.emplace_back(options.size.tokens() * k);
    std::vector<int64_t> next(static_cast<size_t>(options.size.microbatches));
    for (size_t b = 0; b < next.size(); ++b) {
      next[b] = static_cast<int64_t>(b) * options.size.microbatch_tokens * k;
    }
    for (int64_t i = 0; i < kSequences; ++i) {
      int64_t& at = next[static_cast<size_t>(options.sequence_microbatch[i])];
      std::copy_n(choices.begin() + i * rows, rows, imposed.begin() + at);
      at += rows;
    }
  }
  session_->executor().impose_routing(&imposed_);
}

ServedCosts measure_costs(const ServedSetting& setting, ServedRun& run) {
  using enum TaskKind;
  TaskTimes times(&run.session().shape());
  const auto busy_us = [&](size_t d) {
    return run.executor().device_time(static_cast<int>(d)).busy_us;
  };
  const auto& devices = run.session().options().devices;
  std::vector<int64_t> busy_before_us;
  for (size_t d = 0; d < devices.size(); ++d) busy_before_us.push_back(busy_us(d));
  run.executor().time_tasks(&times);
  run.serve(setting.passes);
  run.executor().time_tasks(nullptr);
  const auto passes = static_cast<double>(setting.passes);
  const auto layers = static_cast<double>(setting.layers());
  const double all_tokens = static_cast<double>(kSequences * setting.prompt_tokens());
  ServedCosts costs;
  double rows = 0;
  for (size_t d = 0; d < devices.size(); ++d) {
    const TaskTimes::OfDevice& of = times.devices()[d];
    const double busy_s = 1e-6 * static_cast<double>(busy_us(d) - busy_before_us[d]);
    const double more_s = between_s(of, busy_s);
    const auto seconds = [&](std::initializer_list<TaskKind> kinds) {
      double sum = 0;
      for (const TaskKind kind : kinds) {
        for (const CostSample& sample : times.of(kind, static_cast<int>(d))) {
          sum += sample.seconds + more_s;
        }
      }
      return sum;
    };
    const double slowness = devices[d].throttle.experts;
    const double experts_s = seconds({kPlaceRows, kExpert, kPackRows});
    rows += static_cast<double>(of.expert_rows);
    costs.row_s += experts_s / slowness;
    costs.experts_s += experts_s / (passes * layers * static_cast<double>(devices.size()));
    costs.before_s += seconds({kCachedAttention, kRoute, kIndex, kDispatch}) / slowness;
    costs.after_s += seconds({kTakeParcel, kCombine, kResidual}) / slowness;
    costs.outside_s = std::max(costs.outside_s, seconds({kEmbed, kLogits}) / passes);
  }
  costs.row_s /= rows;
  costs.before_s /= all_tokens * passes * layers;
  costs.after_s /= all_tokens * passes * layers;
  return costs;
}

}  // namespace pagoda
