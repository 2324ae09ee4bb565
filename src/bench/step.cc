#include "bench/step.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/race/available_memory.h"
#include "bench/random_batch.h"
#include "bench/random_weights.h"
#include "bench/roofs/step_products.h"
#include "bench/step_shapes.h"
#include "hardware/machine.h"
#include "kernels/cpu/products/products.h"
#include "model/json.h"
#include "offload/scratch_folder.h"
#include "train/saved_layers.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr int kWarmUpSteps = 2;  // pages arrive in the first, updates begin in the second
constexpr double kLearningRate = 1e-5;
// When weights and state page, these parts of them have room on the device, beside what a step
// needs there, and in host memory.
constexpr double kDevicePart = 0.1, kHostPart = 0.3;

struct Model {
  std::string name;
  ModelConfig config;
};

Result<std::vector<Model>> models_of(const StepBench& bench) {
  std::vector<Model> models;
  if (bench.config_path.empty()) {
    for (const StepShape& shape : kStepShapes) {
      ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::parse(shape.config, shape.name));
      models.push_back({shape.name, std::move(config)});
    }
  } else {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(bench.config_path, Links::kFollow,
                                                            JsonLimits().max_bytes));
    ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::parse(text, bench.config_path));
    models.push_back({config.family->model_type, std::move(config)});
  }
  return models;
}

// A run's own defaults, with room for everything.
SessionOptions roomy_options(const StepBench& bench, const std::string& directory) {
  RunConfig config;
  config.train.tokens_per_step = bench.tokens;
  config.train.micro_batch_tokens = bench.sequence_len;
  config.train.threads = bench.threads;
  config.train.save_steps = 0;
  config.memory.disk = {directory};
  SessionOptions options = session_options(config);
  options.device_bytes = options.host_bytes = kRoomForAll;
  return options;
}

Result<SessionOptions> resident_options(const ModelConfig& config, SessionOptions options) {
  ASSIGN_OR_RETURN(const MemoryPlan plan, Session::plan(config, options));
  options.device_bytes = plan.whole_device_bytes + most_kept_bytes(config, options);
  options.host_bytes = plan.min_host_bytes;
  return options;
}

Result<SessionOptions> paged_options(const ModelConfig& config, SessionOptions options) {
  int64_t bytes = 0;  // of weights and state
  const RunShape shape = make_run_shape(model_shape(config), options);
  for (const RecordShape& record : shape.records) {
    bytes += record.num_elements * shape.dtype_bytes + record.state_bytes;
  }
  const auto part = [bytes](double of) {
    return static_cast<int64_t>(of * static_cast<double>(bytes));
  };
  ASSIGN_OR_RETURN(const MemoryPlan roomy, Session::plan(config, options));
  options.device_bytes = roomy.min_device_bytes + part(kDevicePart);
  ASSIGN_OR_RETURN(const MemoryPlan narrow, Session::plan(config, options));
  options.host_bytes = std::max(narrow.min_host_bytes, part(kHostPart));
  return options;
}

Figure in_tokens(Figure figure) {
  constexpr double kBillion = 1e9;  // the unit of a Timing's rates
  figure.unit = "token/s";
  figure.value *= kBillion;
  figure.roof *= kBillion;
  figure.cpu_s_per_unit /= kBillion;
  figure.roof_cpu_s_per_unit /= kBillion;
  return figure;
}

// Takes turns between steps of one model in one session and its roof.
class StepRace {
 public:
  StepRace(const StepBench& bench, const Model& model, StepProducts* products, const char* path)
      : bench_(bench), model_(model), products_(products), path_(path), race_(what()) {}

  Status run(const SessionOptions& options, Storage* storage) {
    RETURN_IF_ERROR(check_available(options.device_bytes.of(0) + options.host_bytes));
    const int64_t before_bytes = resident_bytes();
    ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                     Session::create(model_.config, options, storage));
    const Status status = take_steps(*session, before_bytes);
    session->remove_files();
    return status;
  }

  void report(BenchReport& report) const {
    const auto of_step = [this](int64_t bytes) { return format_bytes(bytes / bench_.rounds); };
    report.facts.emplace_back(
        model_.name + "_" + path_,
        strf("%s of memory; a step moves %s from disk, %s to it, %s to the device, %s back",
             format_bytes(session_bytes_).c_str(), of_step(moved_.fetch_bytes).c_str(),
             of_step(moved_.write_back_bytes).c_str(), of_step(moved_.upload_bytes).c_str(),
             of_step(moved_.download_bytes).c_str()));
    if (pages()) report.figures.push_back(in_tokens(race_.figure()));
  }

 private:
  Figure what() const {
    Figure figure;
    figure.name = model_.name;
    figure.path = path_;
    return figure;
  }

  // False for a session that was to page and had room for everything.
  bool pages() const {
    return path_ != std::string("paged") || (moved_.fetch_bytes > 0 && moved_.write_back_bytes > 0);
  }

  Status take_steps(Session& session, int64_t before_bytes) {
    RandomWeights weights(model_.config);
    RETURN_IF_ERROR(load_weights(weights, session));
    Ledger ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0));
    StepRunner runner(&session, &ledger, session.options().adam.clip_norm);
    std::mt19937 random(3);
    Pager::Counters before;
    for (int round = -kWarmUpSteps; round < bench_.rounds; ++round) {
      set_status_line(strf("bench step: %s, %s, round %d of %d", model_.name.c_str(), path_,
                           std::max(0, round + 1), bench_.rounds));
      if (round == 0) before = session.pager().counters();
      const StepBatch batch = random_batch(session, random);
      Timing timings[2];  // the step, its products
      for (int i = 0; i < 2; ++i) {
        RETURN_IF_ERROR(stop_status("measuring"));
        if ((round + i) % 2 == 0) {
          ASSIGN_OR_RETURN(timings[0], take_step(batch, runner, session));
        } else {
          timings[1] = products_->measure();
          timings[1].bytes = bench_.tokens;
        }
      }
      session_bytes_ = std::max(session_bytes_, resident_bytes() - before_bytes);
      if (round >= 0) race_.add(timings[0], timings[1]);
    }
    moved_ = since(before, session.pager().counters());
    return Status();
  }

  Result<Timing> take_step(const StepBatch& batch, StepRunner& runner, Session& session) const {
    const TimingClock timer;
    RETURN_IF_ERROR(runner.train(batch, kLearningRate).status());
    session.pager().drain();
    const Timing timing = timer.finish(bench_.tokens);
    RETURN_IF_ERROR(session.pager().status());
    return timing;
  }

  static Pager::Counters since(const Pager::Counters& before, const Pager::Counters& now) {
    Pager::Counters moved;
    moved.fetch_bytes = now.fetch_bytes - before.fetch_bytes;
    moved.write_back_bytes = now.write_back_bytes - before.write_back_bytes;
    moved.upload_bytes = now.upload_bytes - before.upload_bytes;
    moved.download_bytes = now.download_bytes - before.download_bytes;
    return moved;
  }

  const StepBench& bench_;
  const Model& model_;
  StepProducts* products_;
  const char* path_;
  PairedRounds race_;
  Pager::Counters moved_;      // in all measured steps
  int64_t session_bytes_ = 0;  // at most, after a step
};

Status race_model(const StepBench& bench, const Model& model, const std::string& directory,
                  Storage* storage, BenchReport& report) {
  const TensorTable table = TensorTable::make(model.config);
  const auto millions = [](int64_t count) { return static_cast<double>(count) / 1e6; };
  report.facts.emplace_back(
      model.name,
      strf("%.1f M parameters, %.1f M active per token; %.1f GFLOP of products a step",
           millions(table.total_parameters()), millions(table.active_parameters(model.config)),
           millions(step_operations(model.config, bench.tokens, bench.sequence_len)) / 1e3));
  const SessionOptions roomy = roomy_options(bench, directory);
  ASSIGN_OR_RETURN(const SessionOptions resident, resident_options(model.config, roomy));
  ASSIGN_OR_RETURN(const SessionOptions paged, paged_options(model.config, roomy));
  const std::unique_ptr<Stream> stream =
      make_host_stream({"products", WorkKind::kCompute},
                       std::make_shared<ThreadPool>(bench.threads));
  ASSIGN_OR_RETURN(StepProducts products,
                   StepProducts::make(model.config, bench.tokens, bench.sequence_len,
                                      stream.get()));
  products.measure();  // its memory is resident before a session's is counted
  for (const auto& [path, options] : {std::pair{"resident", &resident}, {"paged", &paged}}) {
    StepRace race(bench, model, &products, path);
    RETURN_IF_ERROR(race.run(*options, storage));
    race.report(report);
  }
  return Status();
}

}  // namespace

Result<BenchReport> run_step_bench(const StepBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0 && bench.sequence_len > 0);
  CHECK(bench.tokens > 0 && bench.tokens % bench.sequence_len == 0);
  ASSIGN_OR_RETURN(const std::vector<Model> models, models_of(bench));
  ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage,
                   open_storage(IoKind::kAuto, bench.directory));
  ScratchFolder scratch(bench.directory);
  RETURN_IF_ERROR(scratch.create());
  BenchReport report;
  report.bench = "step";
  report.facts = {{"processor", cpu_model()},
                  {"kernel", products_kernel()},
                  {"products", cpu_ops_build()},
                  {"storage", storage->describe()},
                  {"threads", std::to_string(bench.threads)},
                  {"tokens", strf("%lld a step in sequences of %lld, bf16",
                                  static_cast<long long>(bench.tokens),
                                  static_cast<long long>(bench.sequence_len))},
                  {"roof", "the step's products by themselves, on the same threads"}};
  for (const Model& model : models) {
    RETURN_IF_ERROR(race_model(bench, model, scratch.path(), storage.get(), report));
  }
  set_status_line("");
  return report;
}

}  // namespace pagoda
