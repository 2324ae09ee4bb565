#include "commands/generate_together.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "hardware/machine.h"
#include "plan/exchange/colocated_homes.h"
#include "preview/this_machine.h"

namespace pagoda {
namespace {

RunConfig with_model(RunConfig config, const std::string& path) {
  config.model.path = path;
  return config;
}

int64_t weight_bytes(const ModelConfig& config, DType dtype) {
  int64_t elements = 0;
  for (const RecordSpec& record : TensorTable::make(config).records) {
    elements += record.num_elements;
  }
  return elements * dtype_bytes(dtype);
}

// Rough rates. Only how long rows compute beside how long they travel matters. A speed is
// operations a second. `rates`: ForwardRun::expert_rates().
std::vector<ServingDevice> serving_devices(const SessionOptions& options,
                                           std::span<const double> rates) {
  const MachineSheet sheet = this_machine_sheet(options.gpus);
  const bool on_gpus = !options.gpus.empty();
  const double bytes_per_s = 1e9 * (on_gpus ? sheet.link.gb_s : sheet.host.copy_gb_s);
  // A GPU's rate is of 10^12 operations a second; a CPU device of rate 1 is a thread.
  const double operations = 1e12 * (on_gpus ? 1 : sheet.device.gemm_tflops / sheet.host.cores);
  std::vector<ServingDevice> devices;
  for (const double rate : rates) devices.push_back({bytes_per_s, operations * rate});
  return devices;
}

// [device] the share of the tokens that it attends to, if there are prompts for all.
std::vector<double> attention_shares(const SessionOptions& options) {
  std::vector<double> shares;
  for (const DeviceSetup& device : options.devices) shares.push_back(device.attention_speed());
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= all;
  return shares;
}

ColocatedModel colocated(const GenerateRun& run, const RunShape& shape, const RoutingTrace& trace,
                         std::span<const double> attends, DType dtype) {
  constexpr double kOperations = 6;  // of a weight of an expert's three matrices and a row
  const auto hidden = static_cast<double>(run.model().hidden_size);
  const auto of_expert = static_cast<double>(run.model().moe_intermediate_size);
  return {shape, trace, kOperations * hidden * of_expert,
          hidden * static_cast<double>(dtype_bytes(dtype)), attends};
}

}  // namespace

Status run_together(const StoppablePart& first, const StoppablePart& second) {
  std::atomic<bool> stop{false};
  // These are of who was the first to set `stop`; they are read once both have ended.
  Status failed;
  std::exception_ptr thrown;
  const auto run = [&](const StoppablePart& part) {
    try {
      Status status = part(stop);
      if (!status.ok() && !stop.exchange(true)) failed = std::move(status);
    } catch (...) {
      if (!stop.exchange(true)) thrown = std::current_exception();
    }
  };
  std::thread beside;
  try {
    beside = std::thread([&] { run(second); });
  } catch (const std::system_error& error) {
    return threads_refused(error);
  }
  run(first);
  beside.join();
  if (thrown) std::rethrow_exception(thrown);
  return failed;
}

GeneratedTogether::GeneratedTogether(const RunConfig& config, const GenerateFlags& flags)
    : flags_(flags),
      first_config_(config),
      second_config_(with_model(config, flags.with)),
      first_(first_config_, flags, first_alone_),
      second_(second_config_, flags, second_alone_) {}

std::string GeneratedTogether::first_name() const {
  return flags_.checkpoint.empty() ? first_config_.model.path : flags_.checkpoint;
}

double GeneratedTogether::part_of_first(int64_t first_bytes, int64_t second_bytes) {
  const double part =
      static_cast<double>(first_bytes) / static_cast<double>(first_bytes + second_bytes);
  return std::clamp(part, kLeastPart, 1 - kLeastPart);
}

// Puts experts of both at home by what was recorded.
Status GeneratedTogether::place(SessionOptions& of_first, SessionOptions& of_second) const {
  if (!flags_.routing) return Status();
  const RunShape first = make_run_shape(model_shape(first_.model()), of_first);
  const RunShape second = make_run_shape(model_shape(second_.model()), of_second);
  const std::vector<double> attends = attention_shares(of_first);
  ASSIGN_OR_RETURN(const std::vector<double> rates, first_.forward().expert_rates(of_first));
  ASSIGN_OR_RETURN(
      ColocatedHomes homes,
      colocated_homes(
          colocated(first_, first, *flags_.routing, attends, of_first.size.dtype),
          colocated(second_, second, *flags_.with_routing, attends, of_second.size.dtype),
          serving_devices(of_first, rates)));
  of_first.homes = std::move(homes.of_a);
  of_second.homes = std::move(homes.of_b);
  log_info(
      strf("experts of both models are shared out by recorded routing: their layers should take "
           "%.3f of the time that they would by speed alone",
           homes.by_speed_s > 0 ? homes.together_s / homes.by_speed_s : 1.0));
  return Status();
}

Status GeneratedTogether::plan() {
  ASSIGN_OR_RETURN(SessionOptions of_first, first_.forward().options({}));
  ASSIGN_OR_RETURN(SessionOptions of_second, second_.forward().options({}));
  RETURN_IF_ERROR(place(of_first, of_second));
  for (int d = 0; d < of_first.own_devices().count; ++d) {
    of_first.turns.push_back(std::make_shared<DeviceTurn>());
  }
  of_second.turns = of_first.turns;
  const double part = part_of_first(weight_bytes(first_.model(), of_first.size.dtype),
                                    weight_bytes(second_.model(), of_second.size.dtype));
  const auto plan_part = [](GenerateRun& run, const std::string& name, SessionOptions options,
                            double part, int64_t beside_bytes) {
    log_info(strf("%s, with %.0f %% of memory.device and memory.host:", printable(name).c_str(),
                  100 * part));
    options.device_bytes = options.device_bytes.part(part);
    options.host_bytes = static_cast<int64_t>(part * static_cast<double>(options.host_bytes));
    const Status planned = run.plan(std::move(options), beside_bytes);
    if (planned.ok()) return planned;
    return Status(planned.code(),
                  strf("%s, with %.0f %% of the budgets: ", printable(name).c_str(), 100 * part) +
                      planned.message());
  };
  RETURN_IF_ERROR(plan_part(first_, first_name(), std::move(of_first), part, 0));
  return plan_part(second_, flags_.with, std::move(of_second), 1 - part,
                   first_.host_memory_bytes());
}

Status GeneratedTogether::generate() {
  RETURN_IF_ERROR(first_.open(flags_.checkpoint));
  RETURN_IF_ERROR(second_.open(""));
  RETURN_IF_ERROR(plan());
  const auto part = [](GenerateRun& model) {
    return [&model](const std::atomic<bool>& stop) { return model.generate(false, &stop); };
  };
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(run_together(part(first_), part(second_)));
  seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info(printable(first_name()) + ": " + first_.summary());
  log_info(printable(flags_.with) + ": " + second_.summary());
  log_info(strf("both, with what it took to load them: %.1f s", seconds_));
  return Status();
}

nlohmann::ordered_json GeneratedTogether::json() const {
  nlohmann::ordered_json models = nlohmann::ordered_json::array();
  const auto add = [&](const std::string& name, const GenerateRun& run) {
    nlohmann::ordered_json of_model = {{"model", name}};
    of_model.update(run.json());
    models.push_back(std::move(of_model));
  };
  add(first_name(), first_);
  add(flags_.with, second_);
  return {{"models", models}, {"seconds", seconds_}};
}

void GeneratedTogether::print() const {
  print_text("== " + first_name() + "\n");
  first_.print();
  print_text("\n== " + flags_.with + "\n");
  second_.print();
}

}  // namespace pagoda
