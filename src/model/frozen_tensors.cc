#include "model/frozen_tensors.h"

#include <algorithm>
#include <string_view>

#include "base/edit_distance.h"
#include "base/log.h"

namespace pagoda {
namespace {

// What a tensor is called by what it is for.
std::string_view word_of(const TensorSpec& tensor, RecordKind kind) {
  switch (tensor.role) {
    case TensorRole::kEmbedding:
      return "embed";
    case TensorRole::kHead:
      return "head";
    case TensorRole::kInputNorm:
    case TensorRole::kPostAttentionNorm:
    case TensorRole::kFinalNorm:
      return "norms";
    case TensorRole::kRouter:
    case TensorRole::kRouterBias:
      return "router";
    case TensorRole::kSharedGate:
      return "shared";
    case TensorRole::kGate:
    case TensorRole::kUp:
    case TensorRole::kDown:
    case TensorRole::kGateBias:
    case TensorRole::kUpBias:
    case TensorRole::kDownBias:
      return kind == RecordKind::kExpert ? "experts" : "mlp";
    case TensorRole::kCorrection:
      return "";  // it is not trained in any case
    default:
      return "attention";
  }
}

// Greedy: a star takes as little as it can, and more where what follows does not fit.
bool matches(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n]) && pattern[p] != '*') {
      ++p, ++n;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool is_name(const std::string& pattern) {
  return pattern.find_first_of(".*?") != std::string::npos;
}

bool names(const std::string& pattern, const TensorTable& table, const TensorSpec& tensor) {
  if (tensor.is_correction()) return false;
  if (is_name(pattern)) return matches(pattern, tensor.name);
  const RecordSpec& record = table.records[static_cast<size_t>(tensor.record)];
  const bool shared =
      record.kind == RecordKind::kLayer && table.find(tensor.record, TensorRole::kRouter) >= 0;
  const std::string_view word = word_of(tensor, record.kind);
  return pattern == (shared && word == "mlp" ? "shared" : word);
}

Status names_nothing(const std::string& pattern, const TensorTable& table) {
  std::vector<std::string> known = freeze_words();
  if (is_name(pattern)) {
    known.clear();
    for (const TensorSpec& tensor : table.tensors) known.push_back(tensor.name);
  }
  const std::string near = nearest_word(pattern, known);
  std::string words;
  for (const std::string& word : freeze_words()) words += (words.empty() ? "" : ", ") + word;
  return Status(
      Exit::kUsage,
      strf("train.freeze has \"%s\", and no tensor of the model that would train is called "
           "so%s; name one of %s, or a tensor as \"model.layers.0.*\"",
           printable(pattern).c_str(),
           near.empty() || near == pattern ? "" : (", did you mean \"" + near + "\"?").c_str(),
           words.c_str()));
}

}  // namespace

bool FrozenTensors::covers(const TensorTable& table, int64_t record, int64_t begin,
                           int64_t end) const {
  if (tensors.empty()) return false;
  const RecordSpec& r = table.records[static_cast<size_t>(record)];
  for (int64_t t = r.first_tensor; t < r.first_tensor + r.num_tensors; ++t) {
    const TensorSpec& tensor = table.tensors[static_cast<size_t>(t)];
    const bool inside = tensor.offset < end && tensor.offset + tensor.num_elements() > begin;
    if (inside && !has(t)) return false;
  }
  return true;
}

std::vector<std::string> freeze_words() {
  return {"embed", "head", "attention", "norms", "router", "experts", "shared", "mlp"};
}

Result<FrozenTensors> freeze_tensors(const TensorTable& table,
                                     const std::vector<std::string>& patterns) {
  FrozenTensors frozen;
  if (patterns.empty()) return frozen;
  frozen.tensors.assign(table.tensors.size(), 0);
  for (const std::string& pattern : patterns) {
    bool found = false;
    for (size_t t = 0; t < table.tensors.size(); ++t) {
      if (!names(pattern, table, table.tensors[t])) continue;
      found = true;
      frozen.tensors[t] = 1;
    }
    if (!found) return names_nothing(pattern, table);
  }
  bool any = false;
  for (const RecordSpec& record : table.records) {
    int64_t trained = 0;
    for (int64_t t = record.first_tensor; t < record.first_tensor + record.num_tensors; ++t) {
      const TensorSpec& tensor = table.tensors[static_cast<size_t>(t)];
      if (frozen.has(t)) frozen.elements += tensor.num_elements();
      if (!frozen.has(t) && !tensor.is_correction())
        trained = tensor.offset + tensor.num_elements();
    }
    any = any || trained > 0;
    frozen.trailing.push_back(record.num_elements - trained);
  }
  if (any) return frozen;
  return Status(Exit::kUsage,
                "train.freeze names every tensor of the model, so there is nothing to "
                "train; leave some out");
}

}  // namespace pagoda
