#include "tests/testing/trace_file.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/testing/files.h"

namespace pagoda {

TraceFile TraceFile::read(const std::string& path) {
  const auto json = nlohmann::json::parse(get_file(path), nullptr, false);
  CHECK(json.is_object(), "%s is no JSON", path.c_str());
  std::map<int64_t, std::string> groups, rows;
  TraceFile file;
  file.cut_events = json.at("otherData").at("cut_events");
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("name") == "process_name") groups[event.at("pid")] = event["args"]["name"];
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event["args"]["name"];
  }
  for (const auto& event : json.at("traceEvents")) {
    const std::string group = groups.at(event.at("pid"));
    const int64_t at_us = event.at("ts");
    if (event.at("ph") == "X") {
      file.spans.push_back({group, rows.at(event.at("tid")), event.at("name"), at_us,
                            at_us + event.at("dur").get<int64_t>(), event.at("args")});
    } else if (event.at("ph") == "C") {
      file.numbers.push_back({group, event.at("name"), at_us, event.at("args").at("bytes")});
    }
  }
  return file;
}

std::vector<TraceFile::Span> TraceFile::of_lane(const std::string& lane) const {
  std::vector<Span> found;
  for (const Span& span : spans) {
    if (span.lane() == lane) found.push_back(span);
  }
  return found;
}

std::vector<TraceFile::Number> TraceFile::of_track(const std::string& group,
                                                   const std::string& name) const {
  std::vector<Number> found;
  for (const Number& number : numbers) {
    if (number.group == group && number.name == name) found.push_back(number);
  }
  return found;
}

}  // namespace pagoda
