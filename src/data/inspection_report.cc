#include <algorithm>

#include "base/log.h"
#include "base/terminal_text.h"
#include "data/inspection.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr const char* kTrainedColour = "\033[32m";
constexpr const char* kMaskedColour = "\033[2m";
constexpr const char* kEndColour = "\033[0m";
constexpr int kBarWidth = 40;

double share(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string file_line(const std::string& name, const Inspection::File& file) {
  return strf("%s: %lld examples, %lld tokens, %lld trained (%.1f %%)\n", name.c_str(),
              (long long)file.examples, (long long)file.tokens, (long long)file.trained_tokens,
              share(file.trained_tokens, file.tokens));
}

std::string lengths_text(const Inspection& inspection) {
  const Inspection::File total = inspection.total();
  std::string text = strf(
      "\nlengths in tokens: median %lld, 90 %% up to %lld, 99 %% up to %lld, "
      "longest %lld\n",
      (long long)inspection.percentile(50), (long long)inspection.percentile(90),
      (long long)inspection.percentile(99), (long long)total.longest);
  const std::vector<Inspection::Bucket> buckets = inspection.histogram();
  int64_t most = 1;
  for (const Inspection::Bucket& bucket : buckets) most = std::max(most, bucket.examples);
  for (const Inspection::Bucket& bucket : buckets) {
    const auto width = static_cast<size_t>((bucket.examples * kBarWidth + most - 1) / most);
    text += strf("%9lld to %-9lld %9lld ", (long long)bucket.from, (long long)bucket.to,
                 (long long)bucket.examples) + std::string(width, '#') + "\n";
  }
  return text;
}

// What becomes of a conversation longer than a row.
const char* fate(TooLong too_long) {
  switch (too_long) {
    case TooLong::kTruncate:
      return "truncated";
    case TooLong::kDrop:
      return "dropped";
    case TooLong::kError:
      return "refused when training starts";
  }
  CHECK(false);
  return "";
}

std::string problems_text(const Inspection& inspection) {
  std::string text;
  for (const Inspection::File& file : inspection.files()) {
    if (file.longer == 0) continue;
    text += strf("%s: %lld longer than data.sequence_len = %lld", printable(file.path).c_str(),
                 (long long)file.longer, (long long)inspection.sequence_len());
    const int64_t left_out = file.longer - file.cut - file.too_long;
    const std::pair<int64_t, const char*> fates[] = {{file.cut, "cut into several rows"},
                                                     {file.too_long, fate(inspection.too_long())},
                                                     {left_out, "left out"}};
    const char* before = ": ";
    for (const auto& [count, what] : fates) {
      if (count == 0) continue;
      text += before + strf("%lld %s", (long long)count, what);
      before = ", ";
    }
    text += "\n";
  }
  const Inspection::File total = inspection.total();
  if (total.untrained > 0) {
    text += strf("left out, as no token that is kept is trained: %lld examples\n",
                 (long long)total.untrained);
  }
  if (total.unended > 0) {
    text += strf(
        "trained answers without a special token at their end, behind which a model may "
        "go on writing: %lld\n",
        (long long)total.unended);
  }
  const Inspection::Duplicates duplicates = inspection.duplicates();
  text += strf("duplicates: %lld", (long long)duplicates.examples);
  if (duplicates.examples > 0) {
    text += ", the first is " + printable(duplicates.first) + ", like " +
            printable(duplicates.original);
  }
  return text + "\n";
}

// Calls visit(first, count, weight) for runs of tokens with the same weight.
template <typename Visit>
void for_each_run(const Example& example, const Visit& visit) {
  for (size_t first = 0; first < example.tokens.size();) {
    size_t end = first + 1;
    while (end < example.tokens.size() && example.weights[end] == example.weights[first]) ++end;
    visit(first, end - first, example.weights[first]);
    first = end;
  }
}

}  // namespace

std::string marked_text(const Example& example, const Tokenizer& tokenizer, bool colour) {
  std::string text;
  for_each_run(example, [&](size_t first, size_t count, float weight) {
    const std::string part =
        terminal_text(tokenizer.decode(std::span(example.tokens).subspan(first, count), false));
    const std::string behind = weight == 0 || weight == 1 ? "" : strf("*%g", weight);
    if (colour) {
      text += (weight > 0 ? kTrainedColour : kMaskedColour) + part + behind + kEndColour;
    } else {
      text += weight > 0 ? "⟦" + part + "⟧" + behind : part;
    }
  });
  return text;
}

Result<std::string> template_line(const ExampleOptions& options, const Tokenizer& tokenizer) {
  const ChatPreset* preset = options.chat.preset;
  if (options.chat.program) {
    return std::string(
        "chat template: the model's own, which is run; where it rewrites earlier "
        "messages, each trained one ends a row of its own");
  }
  if (preset == nullptr) return std::string("chat template: none, ") + options.chat.missing;
  const std::string end = preset->end_of_answer(options.chat.special);
  std::vector<uint32_t> ids;
  RETURN_IF_ERROR(tokenizer.encode(end, &ids));
  const std::string line = strf("chat template: %s (%s); its end token %s is ", preset->name,
                                preset->models, printable(end).c_str());
  if (ids.size() == 1) return line + strf("token %u", ids[0]);
  return line + strf("%zu tokens here: the tokenizer does not have it", ids.size());
}

std::string inspection_text(const Inspection& inspection, const Tokenizer& tokenizer,
                            const std::string& about, bool colour) {
  std::string text;
  for (const Inspection::Shown& shown : inspection.shown()) {
    const std::string& path = inspection.files()[shown.file].path;
    text += strf("--- %s example %lld, %lld tokens\n", printable(path).c_str(),
                 (long long)shown.number, (long long)shown.tokens);
    text += marked_text(shown.example, tokenizer, colour) + "\n";
    const int64_t left = shown.tokens - static_cast<int64_t>(shown.example.tokens.size());
    if (left > 0) text += strf("... and %lld tokens more\n", (long long)left);
  }
  if (!text.empty()) text += "\n";
  text += about + "\n";
  for (const Inspection::File& file : inspection.files()) {
    text += file_line(printable(file.path) + " (" + name_of(file.kind) + ")", file);
  }
  const Inspection::File total = inspection.total();
  if (inspection.files().size() > 1) text += file_line("together", total);
  if (total.examples > 0) text += lengths_text(inspection) + problems_text(inspection);
  return text;
}

namespace {

Json file_json(const Inspection::File& file) {
  return {{"examples", file.examples},
          {"tokens", file.tokens},
          {"longer", file.longer},
          {"trained_tokens", file.trained_tokens},
          {"cut", file.cut},
          {"too_long", file.too_long},
          {"untrained", file.untrained},
          {"longest", file.longest},
          {"unended", file.unended}};
}

Json shown_json(const Inspection::Shown& shown, const Inspection& inspection,
                const Tokenizer& tokenizer) {
  Json parts = Json::array();
  for_each_run(shown.example, [&](size_t first, size_t count, float weight) {
    const auto tokens = std::span(shown.example.tokens).subspan(first, count);
    parts.push_back({{"weight", weight},
                     {"tokens", Json(std::vector<uint32_t>(tokens.begin(), tokens.end()))},
                     {"text", tokenizer.decode(tokens, false)}});
  });
  return {{"path", inspection.files()[shown.file].path},
          {"example", shown.number},
          {"tokens", shown.tokens},
          {"parts", parts}};
}

}  // namespace

Json inspection_json(const Inspection& inspection, const Tokenizer& tokenizer,
                     const ExampleOptions& options) {
  Json root = {{"sequence_len", inspection.sequence_len()},
               {"train_on", name_of(options.train_on)},
               {"chat_template", nullptr},
               {"files", Json::array()},
               {"shown", Json::array()},
               {"histogram", Json::array()},
               {"total", file_json(inspection.total())}};
  if (options.chat.preset != nullptr) root["chat_template"] = options.chat.preset->name;
  if (options.chat.program) root["chat_template"] = "run";
  for (const Inspection::File& file : inspection.files()) {
    Json& entry = root["files"].emplace_back(file_json(file));
    entry["path"] = file.path;
    entry["kind"] = name_of(file.kind);
  }
  for (const Inspection::Shown& shown : inspection.shown()) {
    root["shown"].push_back(shown_json(shown, inspection, tokenizer));
  }
  for (const Inspection::Bucket& bucket : inspection.histogram()) {
    root["histogram"].push_back(
        {{"from", bucket.from}, {"to", bucket.to}, {"examples", bucket.examples}});
  }
  for (const int percent : {50, 90, 99}) {
    if (root["total"]["examples"] == 0) break;
    root["total"]["p" + std::to_string(percent)] = inspection.percentile(percent);
  }
  const Inspection::Duplicates duplicates = inspection.duplicates();
  root["duplicates"] = {{"examples", duplicates.examples},
                        {"first", duplicates.first},
                        {"original", duplicates.original}};
  return root;
}

}  // namespace pagoda
