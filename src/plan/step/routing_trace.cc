#include "plan/step/routing_trace.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/number_text.h"

namespace pagoda {
namespace {

constexpr std::string_view kFormat = "pagoda-routing";
constexpr int64_t kVersion = 1;
// No run has more; sums of all experts of a layer stay far below 2^63.
constexpr int64_t kMostSteps = int64_t{1} << 40, kMostTokens = int64_t{1} << 38;
constexpr int64_t kMostNumber = int64_t{1} << 20;  // experts; microbatches times layers

std::vector<int64_t> layers_with_experts(const RoutedShape& shape) {
  std::vector<int64_t> layers;
  for (size_t l = 0; l < shape.is_moe.size(); ++l) {
    if (shape.is_moe[l]) layers.push_back(static_cast<int64_t>(l));
  }
  return layers;
}

Status bad_line(int64_t line, const std::string& what) {
  return Status(Exit::kBadData, strf("routing trace, line %lld: ", (long long)line) + what +
                                    "; nothing was planned from it, record it anew");
}

// The words of a line, one after the other.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}

  bool at_end() const { return rest_.empty(); }
  std::string_view next() {
    const size_t blank = rest_.find(' ');
    const std::string_view word = rest_.substr(0, blank);
    rest_ = blank == std::string_view::npos ? std::string_view() : rest_.substr(blank + 1);
    return word;
  }
  // False when the next word is no number of [least, most].
  bool number(int64_t least, int64_t most, int64_t& value) {
    return parse_int64(next(), value) && value >= least && value <= most;
  }
  bool named_number(std::string_view name, int64_t& value) {
    return next() == name && number(1, kMostNumber, value);
  }

 private:
  std::string_view rest_;
};

Result<RoutedShape> parse_header(std::string_view line) {
  Words words(line);
  if (words.next() != kFormat) {
    return bad_line(1, "it does not begin with \"" + std::string(kFormat) + "\"");
  }
  int64_t version = 0, layers = 0, layer = -1;
  if (!words.number(kVersion, kVersion, version)) {
    return bad_line(1, strf("it is not of version %lld", (long long)kVersion));
  }
  RoutedShape shape;
  if (!words.named_number("experts", shape.num_experts) ||
      !words.named_number("experts_per_token", shape.experts_per_token) ||
      !words.named_number("microbatches", shape.microbatches) ||
      !words.named_number("layers", layers) || words.next() != "with_experts" || words.at_end()) {
    return bad_line(1, "it does not tell experts, experts_per_token, microbatches, layers and "
                       "with_experts");
  }
  if (shape.experts_per_token > shape.num_experts) {
    return bad_line(1, "a token chooses more experts than there are");
  }
  if (shape.microbatches * layers > kMostNumber) {
    return bad_line(1, "no step has so many microbatches and layers");
  }
  shape.is_moe.assign(static_cast<size_t>(layers), 0);
  while (!words.at_end()) {
    if (!words.number(layer + 1, layers - 1, layer)) {
      return bad_line(1, "layers with experts are not ascending numbers below that of all layers");
    }
    shape.is_moe[static_cast<size_t>(layer)] = 1;
  }
  return shape;
}

// Steps are kept with an empty list for each layer without experts. Where most layers are such, the
// lines that a text of `bytes` bytes may have would take far more memory than the text.
bool takes_too_much(const RoutedShape& shape, int64_t bytes) {
  const auto layers = static_cast<int64_t>(shape.is_moe.size());
  const auto with_experts = static_cast<int64_t>(layers_with_experts(shape).size());
  const int64_t least_line_bytes = 6 + 2 * shape.num_experts;  // "1 0 0 0 0\n"
  const int64_t lines = bytes / least_line_bytes;
  return lines / with_experts * layers > bytes / 4 + kMostNumber;
}

class Parser {
 public:
  explicit Parser(RoutedShape shape) : layers_(layers_with_experts(shape)) {
    trace_.shape = std::move(shape);
    step_.routing = empty_lists();
  }

  Status add(std::string_view line);
  RoutingTrace take() {
    begin_step(0);
    return std::move(trace_);
  }

 private:
  void begin_step(int64_t step);
  Routing empty_lists() const {
    return Routing(static_cast<size_t>(trace_.shape.microbatches),
                   LayerRouting(trace_.shape.is_moe.size()));
  }
  int64_t place(int64_t microbatch, int64_t layer) const;
  Status counts(Words& words, std::vector<int64_t>& tokens) const;

  RoutingTrace trace_;
  std::vector<int64_t> layers_;  // with experts
  RoutedStep step_;              // the step that is being read; 0: none
  int64_t next_ = 0;             // place of the next line in it
  bool whole_ = true;            // no line before that is missing
  int64_t line_ = 1;
};

// Keeps the step before if all of it was there. If not, its lists are filled anew: making all of
// them takes far longer than reading one line, and a step that is kept has a line for each.
void Parser::begin_step(int64_t step) {
  const int64_t lines = trace_.shape.microbatches * static_cast<int64_t>(layers_.size());
  if (step_.step > 0 && whole_ && next_ == lines) {
    trace_.steps.push_back(std::move(step_));
    step_.routing = empty_lists();
  }
  step_.step = step;
  next_ = 0;
  whole_ = true;
}

// The number of a line within its step; -1 if there is no such line.
int64_t Parser::place(int64_t microbatch, int64_t layer) const {
  const auto found = std::lower_bound(layers_.begin(), layers_.end(), layer);
  if (found == layers_.end() || *found != layer) return -1;
  return microbatch * static_cast<int64_t>(layers_.size()) + (found - layers_.begin());
}

Status Parser::counts(Words& words, std::vector<int64_t>& tokens) const {
  tokens.resize(static_cast<size_t>(trace_.shape.num_experts));
  for (int64_t& count : tokens) {
    if (!words.number(0, kMostTokens, count)) {
      return bad_line(line_, strf("it does not tell the tokens of %lld experts",
                                  (long long)trace_.shape.num_experts));
    }
  }
  if (!words.at_end()) return bad_line(line_, "it goes on behind the last expert");
  const int64_t rows = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (rows % trace_.shape.experts_per_token == 0) return Status();
  return bad_line(line_, strf("%lld choices are not those of tokens that choose %lld experts each",
                              (long long)rows, (long long)trace_.shape.experts_per_token));
}

Status Parser::add(std::string_view line) {
  ++line_;
  Words words(line);
  int64_t step = 0, microbatch = 0, layer = 0;
  if (!words.number(1, kMostSteps, step) ||
      !words.number(0, trace_.shape.microbatches - 1, microbatch) ||
      !words.number(0, static_cast<int64_t>(trace_.shape.is_moe.size()) - 1, layer)) {
    return bad_line(line_, "it does not begin with a step, a microbatch and a layer of the trace");
  }
  if (step > step_.step) begin_step(step);
  const int64_t at = place(microbatch, layer);
  if (step < step_.step || at < next_) {
    return bad_line(line_, strf("step %lld, microbatch %lld, layer %lld does not come here",
                                (long long)step, (long long)microbatch, (long long)layer));
  }
  whole_ = whole_ && at == next_;
  next_ = at + 1;
  return counts(words, step_.routing[static_cast<size_t>(microbatch)][static_cast<size_t>(layer)]);
}

}  // namespace

RoutedShape routed_shape(const RunShape& shape) {
  return {shape.num_experts, shape.experts_per_token, shape.microbatches, shape.is_moe};
}

std::string routing_header(const RoutedShape& shape) {
  std::string text =
      strf("%s %lld experts %lld experts_per_token %lld microbatches %lld layers %zu with_experts",
           std::string(kFormat).c_str(), (long long)kVersion, (long long)shape.num_experts,
           (long long)shape.experts_per_token, (long long)shape.microbatches, shape.is_moe.size());
  for (const int64_t layer : layers_with_experts(shape)) text += " " + std::to_string(layer);
  return text + "\n";
}

std::string routing_lines(int64_t step, const Routing& routing) {
  std::string text;
  for (size_t b = 0; b < routing.size(); ++b) {
    for (size_t l = 0; l < routing[b].size(); ++l) {
      if (routing[b][l].empty()) continue;
      text += strf("%lld %zu %zu", (long long)step, b, l);
      for (const int64_t tokens : routing[b][l]) text += " " + std::to_string(tokens);
      text += '\n';
    }
  }
  return text;
}

int64_t most_routing_bytes(const RunShape& shape) {
  const auto digits = [](int64_t value) {
    return static_cast<int64_t>(std::to_string(value).size());
  };
  constexpr int64_t kStepDigits = 13;  // digits of kMostSteps
  const auto layers = std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1});
  const int64_t line = kStepDigits + 1 + digits(shape.microbatches) + 1 +
                       digits(shape.num_layers) +
                       shape.num_experts * (1 + digits(shape.microbatch_tokens)) + 1;
  return shape.microbatches * layers * line;
}

Result<RoutingTrace> parse_routing_trace(std::string_view text) {
  const auto next_line = [&text](std::string_view& line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return false;  // not a whole line
    line = text.substr(0, end);
    text.remove_prefix(end + 1);
    return true;
  };
  std::string_view line;
  if (!next_line(line)) return bad_line(1, "it is not there, or not whole");
  ASSIGN_OR_RETURN(RoutedShape shape, parse_header(line));
  if (takes_too_much(shape, static_cast<int64_t>(text.size()))) {
    return bad_line(1, "it has too many layers without experts");
  }
  Parser parser(std::move(shape));
  while (next_line(line)) RETURN_IF_ERROR(parser.add(line));
  return parser.take();
}

}  // namespace pagoda
