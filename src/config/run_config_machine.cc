// What a run takes of the machine that it is started on: devices, threads and budgets.
#include <algorithm>

#include "base/bytes.h"
#include "config/run_config.h"
#include "config/usable_gpu.h"
#include "hardware/machine.h"
#include "hardware/numa.h"
#include "plan/machine/machine_sheet.h"

namespace pagoda {
namespace {

bool is_auto(const RunConfig& c) { return parse_devices(c.train.devices).value().empty(); }

Result<std::vector<Gpu>> listed_gpus(const std::vector<ListedDevice>& devices) {
  std::vector<int> numbers;
  for (const ListedDevice& device : devices) numbers.push_back(device.index);
  return usable_gpus(numbers);
}

}  // namespace

Status RunConfig::check_devices() const {
  const Status listed = parse_devices(train.devices).status();
  return listed.ok() ? listed : Status(listed.code(), "train.devices: " + listed.message());
}

Status RunConfig::check_gpus() const {
  const std::vector<ListedDevice> devices = this->devices();
  if (!names_gpus(devices)) return Status();
  const Status found = listed_gpus(devices).status();
  if (found.ok()) return found;
  std::string names;
  for (const std::string& word : train.devices) names += (names.empty() ? "" : ",") + word;
  return Status(found.code(), "train.devices = " + toml_string(names) + ": " + found.message());
}

std::vector<ListedDevice> RunConfig::devices() const {
  std::vector<ListedDevice> devices = parse_devices(train.devices).value();
  if (devices.empty()) devices.emplace_back();
  return devices;
}

int RunConfig::compute_threads() const {
  return train.threads > 0 ? narrow<int>(train.threads) : usable_cores();
}

int RunConfig::threads_of(const ListedDevice& device) const {
  if (device.throttle.slows()) return 1;
  const std::vector<ListedDevice> all = devices();
  const auto whole = std::count_if(all.begin(), all.end(),
                                   [](const ListedDevice& d) { return !d.throttle.slows(); });
  return std::max(1, compute_threads() / narrow<int>(whole));
}

int RunConfig::optimizer_threads() const {
  // Sixteen threads come close to the rate of a socket's memory: a core's updates move 20 to 25
  // GB/s (pagoda bench adam), and twelve channels of DDR5-4800 give 461 GB/s at most.
  constexpr int kMostUpdatingThreads = 16;
  if (train.optimizer_threads > 0) return narrow<int>(train.optimizer_threads);
  return std::min(compute_threads(), kMostUpdatingThreads * narrow<int>(numa_nodes().size()));
}

std::vector<Gpu> RunConfig::gpus() const {
  const std::vector<ListedDevice> devices = this->devices();
  if (names_gpus(devices)) {
    Result<std::vector<Gpu>> found = listed_gpus(devices);
    if (found.ok()) return found.take();
    std::vector<Gpu> lost;  // one without memory takes nothing
    for (const ListedDevice& device : devices) {
      lost.push_back({device.index, "which does not answer", 0, 0, 0, ""});
    }
    return lost;
  }
  const std::optional<Gpu> first = is_auto(*this) ? usable_gpu().gpu : std::nullopt;
  return first ? std::vector{*first} : std::vector<Gpu>();
}

std::optional<Gpu> RunConfig::gpu() const {
  const std::vector<Gpu> all = gpus();
  return all.empty() ? std::nullopt : std::optional(all.front());
}

std::string RunConfig::unused_gpu() const {
  if (!is_auto(*this)) return "";
  const UsableGpu found = usable_gpu();
  return found.is_there ? found.why_not : "";
}

DeviceBudget RunConfig::device_budget(std::span<const int64_t> memory_bytes,
                                      double auto_share) const {
  std::vector<int64_t> budgets;
  for (size_t d = 0; d < memory_bytes.size(); ++d) {
    const auto by_default =
        static_cast<int64_t>(auto_share * static_cast<double>(memory_bytes[d]));
    budgets.push_back(memory.device.of(d).resolve(memory_bytes[d], by_default));
  }
  return budgets;
}

DeviceBudget RunConfig::device_budget() const {
  std::vector<int64_t> of_gpus;
  for (const Gpu& gpu : gpus()) of_gpus.push_back(gpu.memory_bytes);
  if (!of_gpus.empty()) return device_budget(of_gpus, kAutoGpu);
  const size_t count = devices().size();
  const int64_t own = machine_memory().usable_bytes() / static_cast<int64_t>(count);
  return device_budget(std::vector(count, own), kAutoDevice);
}

int64_t RunConfig::host_bytes() const {
  const int64_t usable = machine_memory().usable_bytes();
  return memory.host.resolve(usable, static_cast<int64_t>(kAutoHost * double(usable)));
}

SumShape RunConfig::sums() const {
  const int64_t columns = micro_batches() / train.chunks;
  const int64_t shards = train.shards > 0 ? train.shards : default_shards(columns);
  return {train.chunks, shards, train.expert_shards};
}

int64_t RunConfig::attention_devices(int64_t devices) const {
  const int64_t wanted = parallel.attention_devices;
  const int64_t most =
      zebra() ? std::max<int64_t>(1, devices / (stages() * copies()) / 2) : devices;
  return wanted > 0 ? std::min(devices, wanted) : std::min(most, sums().shards);
}

std::string RunConfig::scratch_parent() const {
  return memory.disk.empty() ? "." : memory.disk.front();
}

std::vector<std::string> RunConfig::disk_directories() const {
  if (memory.disk.empty()) return {train.output_dir + "/store"};
  std::vector<std::string> directories;
  for (const std::string& directory : memory.disk) {
    directories.push_back(absolute_path(directory));
  }
  return directories;
}

}  // namespace pagoda
