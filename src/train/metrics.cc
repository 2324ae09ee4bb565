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
    case MetricsType::kSample:
      return "sample";
    case MetricsType::kCheckpoint:
      return "checkpoint";
    case MetricsType::kWarn:
      return "warn";
  }
  return "run";
}

struct ToJson {
  Json operator()(double value) const { return std::isfinite(value) ? Json(value) : Json(); }
  Json operator()(const MetricsObject& value) const { return Json::parse(value.json); }
  template <typename T>
  Json operator()(const T& value) const {
    return Json(value);
  }
};

void add_fields(const MetricsFields& fields, Json& object) {
  for (const auto& [name, value] : fields) object[name] = std::visit(ToJson(), value);
}

std::string text_of(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The step an object is about, -1 if it names none.
int64_t step_of(const Json& object) {
  const auto step = object.is_object() ? object.find("step") : object.end();
  return step != object.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
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

void EvalHistory::add(int64_t step, double loss) {
  if (first_step < 0) {
    first_step = step;
    first_loss = loss;
  }
  last_step = step;
  last_loss = loss;
}

std::string metrics_line(MetricsType type, const MetricsFields& fields) {
  Json object;
  object["type"] = type_name(type);
  add_fields(fields, object);
  return text_of(object);
}

MetricsObject metrics_object(const MetricsFields& fields) {
  Json object = Json::object();
  add_fields(fields, object);
  return {text_of(object)};
}

Result<std::unique_ptr<MetricsFile>> MetricsFile::open(const std::string& path, int64_t keep_step) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0) {
    return Status(Exit::kCannotCreate, printable(path) + ": " + std::strerror(errno) +
                                           "; metrics need a writable output folder");
  }
  std::unique_ptr<MetricsFile> metrics(new MetricsFile(file, path));
  if (keep_step >= 0) metrics->keep_until(keep_step);
  if (::ftruncate(file, metrics->bytes_) != 0) {
    return Status(Exit::kCannotCreate,
                  printable(path) + ": cannot be cut to the resumed step: " + std::strerror(errno));
  }
  return metrics;
}

// Notes what the whole lines before the first one of a later step hold.
void MetricsFile::keep_until(int64_t step) {
  std::ifstream in(path_, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // no newline, so not a whole line
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step_of(object) > step) break;
    bytes_ += static_cast<int64_t>(line.size()) + 1;
    if (step_of(object) < 0) continue;
    const Json type = object.value("type", Json());
    if (type == type_name(MetricsType::kSample)) last_sample_step_ = step_of(object);
    if (type != type_name(MetricsType::kEval)) continue;
    const Json loss = object.value("loss", Json());
    evals_.add(step_of(object), loss.is_number() ? loss.get<double>() : NAN);
  }
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
