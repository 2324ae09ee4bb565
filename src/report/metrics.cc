#include "report/metrics.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace pagoda {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
    case MetricsType::kMove:
      return "move";
    case MetricsType::kDeal:
      return "deal";
    case MetricsType::kWarn:
      return "warn";
  }
  return "run";
}

struct ToJson {
  OrderedJson operator()(double value) const {
    return std::isfinite(value) ? OrderedJson(value) : OrderedJson();
  }
  OrderedJson operator()(const MetricsObject& value) const {
    return OrderedJson::parse(value.json);
  }
  template <typename T>
  OrderedJson operator()(const T& value) const {
    return OrderedJson(value);
  }
};

void add_fields(const MetricsFields& fields, OrderedJson& object) {
  for (const auto& [name, value] : fields) object[name] = std::visit(ToJson(), value);
}

std::string text_of(const OrderedJson& object) {
  return object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// The step an object is about, -1 if it names none.
int64_t step_of(const OrderedJson& object) {
  const auto step = object.is_object() ? object.find("step") : object.end();
  return step != object.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

}  // namespace

void EvalHistory::add(int64_t step, double loss) {
  if (first_step < 0) {
    first_step = step;
    first_loss = loss;
  }
  last_step = step;
  last_loss = loss;
  ++since_best;
  if (!(best_step < 0 ? std::isfinite(loss) : loss < best_loss)) return;
  best_step = step;
  best_loss = loss;
  since_best = 0;
}

std::string metrics_line(MetricsType type, const MetricsFields& fields) {
  OrderedJson object;
  object["type"] = type_name(type);
  add_fields(fields, object);
  return text_of(object);
}

MetricsObject metrics_object(const MetricsFields& fields) {
  OrderedJson object = OrderedJson::object();
  add_fields(fields, object);
  return {text_of(object)};
}

Result<std::unique_ptr<MetricsFile>> MetricsFile::open(const std::string& path, int64_t keep_step) {
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> lines, LineFile::open(path, "metrics"));
  std::unique_ptr<MetricsFile> metrics(new MetricsFile(std::move(lines)));
  int64_t kept = 0;
  if (keep_step >= 0) {
    ASSIGN_OR_RETURN(kept, metrics->lines_->kept_bytes([&](std::string_view line) {
      return metrics->note(line, keep_step);
    }));
  }
  RETURN_IF_ERROR(metrics->lines_->cut(kept));
  return metrics;
}

// Notes the content of a line. Returns false if it is incomplete or of a step behind `last`.
bool MetricsFile::note(std::string_view line, int64_t last) {
  if (!line.ends_with('\n')) return false;
  const auto shallow = [](int depth, OrderedJson::parse_event_t, OrderedJson&) {
    return depth < kDeepestMetrics;
  };
  const OrderedJson object = OrderedJson::parse(line, shallow, /*allow_exceptions=*/false);
  const int64_t step = step_of(object);
  if (step > last) return false;
  if (step < 0) return true;
  const OrderedJson type = object.value("type", OrderedJson());
  if (type == type_name(MetricsType::kSample)) last_sample_step_ = step;
  const auto number = [&](const char* field, double otherwise) {
    const OrderedJson value = object.value(field, OrderedJson());
    return value.is_number() ? value.get<double>() : otherwise;
  };
  if (type == type_name(MetricsType::kStep)) last_step_s_ = number("step_s", 0);
  if (type == type_name(MetricsType::kCheckpoint)) last_save_s_ = number("save_s", 0);
  if (type == type_name(MetricsType::kEval)) evals_.add(step, number("loss", NAN));
  return true;
}

void MetricsFile::write(MetricsType type, const MetricsFields& fields) {
  lines_->add(metrics_line(type, fields) + "\n");
}

}  // namespace pagoda
