#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pagoda {
namespace {

using Json = nlohmann::ordered_json;

const char* type_name(MetricsType type) {
  switch (type) {
    case MetricsType::kRun:
      return "run";
    case MetricsType::kStep:
      return "step";
    case MetricsType::kEval:
      return "eval";
    case MetricsType::kCheckpoint:
      return "checkpoint";
    case MetricsType::kWarn:
      return "warn";
  }
  return "run";
}

Json to_json(const MetricsValue& value) {
  if (const double* real = std::get_if<double>(&value); real && !std::isfinite(*real))
    return Json();
  return std::visit([](const auto& v) { return Json(v); }, value);
}

bool is_later(const std::string& line, int64_t keep_step) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("step")) return false;
  const Json& step = object["step"];
  return step.is_number_integer() && step.get<int64_t>() > keep_step;
}

// Length of the whole lines before the first one of a later step.
int64_t kept_bytes(const std::string& path, int64_t keep_step) {
  if (keep_step < 0) return 0;
  std::ifstream in(path, std::ios::binary);
  int64_t bytes = 0;
  for (std::string line; std::getline(in, line);) {
    if (in.eof() || is_later(line, keep_step)) break;  // eof: no newline, so not a whole line
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return bytes;
}

bool write_all(int file, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t moved = ::write(file, text.data() + done, text.size() - done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

}  // namespace

std::string metrics_line(MetricsType type, const MetricsFields& fields) {
  Json object;
  object["type"] = type_name(type);
  for (const auto& [name, value] : fields) object[name] = to_json(value);
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::unique_ptr<MetricsFile>> MetricsFile::open(const std::string& path, int64_t keep_step) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) {
    return Status(Exit::kCannotCreate, printable(path) + ": " + std::strerror(errno) +
                                           "; metrics need a writable output folder");
  }
  const int64_t bytes = kept_bytes(path, keep_step);
  std::unique_ptr<MetricsFile> metrics(new MetricsFile(file, bytes, path));
  if (::ftruncate(file, bytes) != 0) {
    return Status(Exit::kCannotCreate,
                  printable(path) + ": cannot be cut to the resumed step: " + std::strerror(errno));
  }
  return metrics;
}

MetricsFile::~MetricsFile() {
  if (::close(file_) != 0 && !warned_) {
    log_warn(printable(path_) + ": " + std::strerror(errno) + "; the last lines may be missing");
  }
}

void MetricsFile::write(MetricsType type, const MetricsFields& fields) {
  const std::string line = metrics_line(type, fields) + "\n";
  if (write_all(file_, line)) {
    bytes_ += static_cast<int64_t>(line.size());
    return;
  }
  const std::string reason = std::strerror(errno);
  // Half a line would spoil the next one.
  const bool cut = ::ftruncate(file_, bytes_) == 0;
  if (warned_) return;
  warned_ = true;
  log_warn(printable(path_) + ": " + reason + "; training goes on, metrics are being lost" +
           (cut ? "" : " and a line is broken"));
}

}  // namespace pagoda
