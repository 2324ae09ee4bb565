#include "base/trace.h"

#include <algorithm>
#include <map>

#include "base/options.h"
#include "base/output_file.h"

namespace pagoda {

TraceLabel& TraceLabel::add(const char* arg, int64_t value) {
  CHECK(num_args < kMostArgs, "a span with more than %d arguments", kMostArgs);
  args[static_cast<size_t>(num_args++)] = {arg, value};
  return *this;
}

Trace::Lane Trace::lane(const std::string& group, const std::string& name) {
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i].group == group && lanes_[i].name == name) return static_cast<Lane>(i);
  }
  lanes_.push_back({group, name});
  return static_cast<Lane>(lanes_.size() - 1);
}

void Trace::add(Event event) {
  std::lock_guard lock(mutex_);
  if (static_cast<int64_t>(events_.size()) >= most_events_) {
    ++cut_events_;
    return;
  }
  events_.push_back(std::move(event));
}

void Trace::span(Lane lane, int64_t begin_us, int64_t end_us, TraceLabel label) {
  if (!on()) return;
  Event event;
  event.lane = lane;
  event.begin_us = begin_us;
  event.end_us = end_us;
  event.label = std::move(label);
  add(std::move(event));
}

void Trace::counter(Lane lane, int64_t value) {
  if (!on()) return;
  Event event;
  event.lane = lane;
  event.is_counter = true;
  event.begin_us = event.end_us = monotonic_us();
  event.value = value;
  add(std::move(event));
}

int64_t Trace::events() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(events_.size());
}

int64_t Trace::cut_events() const {
  std::lock_guard lock(mutex_);
  return cut_events_;
}

std::vector<Trace::Span> Trace::spans(Lane lane) const {
  std::vector<Span> found;
  std::lock_guard lock(mutex_);
  for (const Event& event : events_) {
    if (event.is_counter || event.lane != lane) continue;
    found.push_back({event.begin_us, event.end_us, event.label});
  }
  return found;
}

constexpr int kRowsOfGroup = 100;

// Writes a trace's part of a file once, while its mutex is held.
class TraceWriter {
 public:
  TraceWriter(const Trace& trace, const Trace::Part& part, const Trace::Sink& sink)
      : trace_(trace),
        part_(part),
        sink_(sink),
        first_(part.first_group == 0),
        rows_(kRowsOfGroup * part.first_group) {}
  Status run();

 private:
  using Events = std::vector<const Trace::Event*>;
  void name_groups();
  void write_lane(Trace::Lane lane, Events events);
  void write_span(const Trace::Event& event, int row);
  void write_counter(Trace::Lane lane, const std::string& name, int64_t at_us, int64_t value);
  void write_sums(Trace::Lane lane, Events events);
  int new_row(Trace::Lane lane, size_t number);
  void name(const char* what, int group, int row, const std::string& name);
  // What every event begins with, after the one before it. `ts`: its time in the file.
  std::string head(const char* phase, int group, int64_t ts);
  int64_t ts(int64_t at_us) const {
    return (part_.clock ? part_.clock(at_us) : at_us) - part_.origin_us;
  }
  void append(const std::string& text);
  void flush();

  int group_of(Trace::Lane lane) const { return groups_.at(trace_.lanes_[lane].group); }

  const Trace& trace_;
  const Trace::Part& part_;
  const Trace::Sink& sink_;
  Status status_;
  std::string text_;  // not yet given away
  bool first_;
  std::map<std::string, int> groups_;
  int rows_;  // their numbers are those of no other part
};

Status TraceWriter::run() {
  name_groups();
  std::vector<Events> by_lane(trace_.lanes_.size());
  for (const Trace::Event& event : trace_.events_) by_lane[event.lane].push_back(&event);
  for (size_t lane = 0; lane < by_lane.size(); ++lane) {
    write_lane(static_cast<Trace::Lane>(lane), std::move(by_lane[lane]));
  }
  flush();
  return status_;
}

void TraceWriter::name_groups() {
  for (const Trace::LaneName& lane : trace_.lanes_) {
    const int number = part_.first_group + static_cast<int>(groups_.size()) + 1;
    if (groups_.emplace(lane.group, number).second) {
      name("process", number, 0, part_.prefix + lane.group);
    }
  }
}

void TraceWriter::name(const char* what, int group, int row, const std::string& name) {
  // The text of a TOML string is that of a JSON string too.
  append(head("M", group, 0) + strf(",\"tid\":%d,\"name\":\"%s_name\",\"args\":{\"name\":%s}}", row,
                                    what, toml_string(name).c_str()));
  append(head("M", group, 0) +
         strf(",\"tid\":%d,\"name\":\"%s_sort_index\",\"args\":{\"sort_index\":%d}}", row, what,
              row > 0 ? row : group));
}

// A row holds spans one after the other; one that begins before the end of another goes to the next
// row with room.
void TraceWriter::write_lane(Trace::Lane lane, Events events) {
  std::stable_sort(events.begin(), events.end(), [](const Trace::Event* a, const Trace::Event* b) {
    return a->begin_us < b->begin_us;
  });
  std::vector<std::pair<int, int64_t>> rows;  // row, end of its last span
  for (const Trace::Event* event : events) {
    if (event->is_counter) {
      write_counter(lane, trace_.lanes_[lane].name, event->begin_us, event->value);
      continue;
    }
    size_t r = 0;
    while (r < rows.size() && rows[r].second > event->begin_us) ++r;
    if (r == rows.size()) rows.emplace_back(new_row(lane, r), 0);
    rows[r].second = event->end_us;
    write_span(*event, rows[r].first);
  }
  write_sums(lane, std::move(events));
}

int TraceWriter::new_row(Trace::Lane lane, size_t number) {
  const std::string& text = trace_.lanes_[lane].name;
  name("thread", group_of(lane), ++rows_, number == 0 ? text : strf("%s (%zu)", text.c_str(),
                                                                    number + 1));
  return rows_;
}

void TraceWriter::write_span(const Trace::Event& event, int row) {
  const int64_t begin = ts(event.begin_us), end = ts(event.end_us);
  std::string text = head("X", group_of(event.lane), begin) +
                     strf(",\"dur\":%lld,\"tid\":%d,\"name\":%s,\"args\":{",
                          (long long)(end - begin), row,
                          toml_string(event.label.name).c_str());
  for (int i = 0; i < event.label.num_args; ++i) {
    const TraceLabel::Arg& arg = event.label.args[static_cast<size_t>(i)];
    text += strf("%s\"%s\":%lld", i > 0 ? "," : "", arg.name, (long long)arg.value);
  }
  append(text + "}}");
}

void TraceWriter::write_counter(Trace::Lane lane, const std::string& name, int64_t at_us,
                                int64_t value) {
  append(head("C", group_of(lane), ts(at_us)) + strf(",\"name\":%s,\"args\":{\"%s\":%lld}}",
                                                     toml_string(name).c_str(), kTraceBytes,
                                                     (long long)value));
}

// Bytes so far, at the end of every span that moved some.
void TraceWriter::write_sums(Trace::Lane lane, Events events) {
  std::stable_sort(events.begin(), events.end(), [](const Trace::Event* a, const Trace::Event* b) {
    return a->end_us < b->end_us;
  });
  int64_t sum = 0;
  for (const Trace::Event* event : events) {
    for (int i = 0; i < event->label.num_args; ++i) {
      const TraceLabel::Arg& arg = event->label.args[static_cast<size_t>(i)];
      if (std::string_view(arg.name) != kTraceBytes) continue;
      sum += arg.value;
      write_counter(lane, trace_.lanes_[lane].name + " so far", event->end_us, sum);
    }
  }
}

std::string TraceWriter::head(const char* phase, int group, int64_t ts) {
  std::string text = strf("%s\n{\"ph\":\"%s\",\"pid\":%d,\"ts\":%lld", first_ ? "" : ",", phase,
                          group, (long long)ts);
  first_ = false;
  return text;
}

void TraceWriter::append(const std::string& text) {
  constexpr size_t kBufferBytes = size_t{1} << 20;
  text_ += text;
  if (text_.size() >= kBufferBytes) flush();
}

void TraceWriter::flush() {
  if (status_.ok() && !text_.empty()) status_ = sink_(text_);
  text_.clear();
}

std::string Trace::begin_text() { return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["; }

std::string Trace::end_text(int64_t cut_events) {
  return strf("\n],\"otherData\":{\"cut_events\":%lld}}\n", (long long)cut_events);
}

Status Trace::write_part(const Part& part, const Sink& sink) const {
  std::lock_guard lock(mutex_);
  return TraceWriter(*this, part, sink).run();
}

Status Trace::write(const std::string& path) const {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  const Sink append = [&](const std::string& text) {
    return file.append(text.data(), static_cast<int64_t>(text.size()));
  };
  RETURN_IF_ERROR(append(begin_text()));
  RETURN_IF_ERROR(write_part({.origin_us = origin_us_}, append));
  RETURN_IF_ERROR(append(end_text(cut_events())));
  return file.commit();
}

TraceScope::TraceScope(Trace* trace, Trace::Lane lane, const char* name)
    : trace_(trace != nullptr && trace->on() ? trace : nullptr), lane_(lane), name_(name) {
  if (trace_) begin_us_ = monotonic_us();
}

TraceScope::~TraceScope() {
  if (trace_) trace_->span(lane_, begin_us_, monotonic_us(), {name_, {}, 0});
}

}  // namespace pagoda
