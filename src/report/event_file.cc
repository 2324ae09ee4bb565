#include "report/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "offload/checksum.h"
#include "parallel/host_name.h"

namespace pagoda {
namespace {

// Fields of protocol buffers, by their number.
void add_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
enum class Wire : uint64_t { kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5 };
void add_key(int number, Wire wire, std::string& out) {
  add_varint(static_cast<uint64_t>(number) << 3 | static_cast<uint64_t>(wire), out);
}
template <typename T>
void add_bits(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void add_bytes(int number, const std::string& bytes, std::string& out) {
  add_key(number, Wire::kBytes, out);
  add_varint(bytes.size(), out);
  out += bytes;
}

// Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
std::string event(double wall_time, int64_t step) {
  std::string out;
  add_key(1, Wire::kDouble, out);
  add_bits(wall_time, out);
  if (step == 0) return out;  // as any default, it is left out
  add_key(2, Wire::kVarint, out);
  add_varint(static_cast<uint64_t>(step), out);
  return out;
}

// Summary: 1 value, repeated; a value: 1 tag, 2 simple_value.
void add_scalar(const std::string& tag, double value, std::string& summary) {
  if (!std::isfinite(value)) return;
  std::string scalar;
  add_bytes(1, tag, scalar);
  add_key(2, Wire::kFloat, scalar);
  add_bits(static_cast<float>(value), scalar);
  add_bytes(1, scalar, summary);
}

uint32_t masked_checksum(const std::string& bytes) {
  return std::rotr(crc32c(bytes.data(), static_cast<int64_t>(bytes.size())), 15) + 0xa282ead8u;
}

// Adds the worst layer's numbers of expert_loads() (report/step_usage.h), and the dead of all.
void add_experts(const std::string& json, std::string& summary) {
  const nlohmann::json loads = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto numbers = [&](const char* name) {
    return loads.is_object() && loads.contains(name) ? loads[name].get<std::vector<double>>()
                                                     : std::vector<double>();
  };
  const std::vector<double> load = numbers("max_over_mean"), entropy = numbers("entropy");
  if (load.empty() || entropy.empty()) return;
  add_scalar("experts/max_over_mean", *std::max_element(load.begin(), load.end()), summary);
  add_scalar("experts/entropy", *std::min_element(entropy.begin(), entropy.end()), summary);
  double dead = 0;
  for (const double of_layer : numbers("dead")) dead += of_layer;
  add_scalar("experts/dead", dead, summary);
}

struct AddValue {
  const std::string& tag;
  std::string& summary;
  void operator()(int64_t value) const { add_scalar(tag, static_cast<double>(value), summary); }
  void operator()(double value) const { add_scalar(tag, value, summary); }
  void operator()(bool value) const { add_scalar(tag, value ? 1 : 0, summary); }
  void operator()(const MetricsObject& value) const {
    if (tag.ends_with("/experts")) add_experts(value.json, summary);
  }
  template <typename T>
  void operator()(const T&) const {}  // no number
};

}  // namespace

double EventFile::now() {
  using std::chrono::system_clock;
  return std::chrono::duration<double>(system_clock::now().time_since_epoch()).count();
}

Result<std::unique_ptr<EventFile>> EventFile::create(const std::string& folder, int64_t first_step,
                                                     Clock clock) {
  std::error_code error;
  if (std::filesystem::create_directory(folder, error)) {
    std::filesystem::permissions(folder, std::filesystem::perms::owner_all, error);
  }
  if (!std::filesystem::is_directory(std::filesystem::symlink_status(folder, error))) {
    return Status(Exit::kCannotCreate,
                  printable(folder) + ": is no folder and cannot become one; event files need one");
  }
  const double wall_time = clock();
  const std::string name = strf("events.out.tfevents.%lld.%s.%lld", (long long)wall_time,
                                host_name().c_str(), (long long)::getpid());
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> lines,
                   LineFile::open(folder + "/" + name, "event files", LineFile::Must::kBeNew));
  std::unique_ptr<EventFile> file(new EventFile(std::move(lines), std::move(clock)));
  std::string version = event(wall_time, 0);
  add_bytes(3, "brain.Event:2", version);
  file->add(version);
  std::string start = event(wall_time, first_step);
  add_bytes(7, {'\x08', '\x01'}, start);  // SessionLog: 1 status, START
  file->add(start);
  return file;
}

void EventFile::write(MetricsType type, const MetricsFields& fields) {
  if (type != MetricsType::kStep && type != MetricsType::kEval) return;
  const std::string group = type == MetricsType::kStep ? "train/" : "eval/";
  int64_t step = 0;
  std::string summary;
  for (const auto& [name, value] : fields) {
    if (name == "step") {
      step = std::get<int64_t>(value);
    } else {
      std::visit(AddValue{group + name, summary}, value);
    }
  }
  std::string message = event(clock_(), step);
  add_bytes(5, summary, message);
  add(message);
}

void EventFile::add(const std::string& message) {
  std::string record;
  add_bits(static_cast<uint64_t>(message.size()), record);
  add_bits(masked_checksum(record), record);
  record += message;
  add_bits(masked_checksum(message), record);
  lines_->add(record);
}

}  // namespace pagoda
