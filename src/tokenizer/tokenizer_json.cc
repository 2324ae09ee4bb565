#include "tokenizer/tokenizer_json.h"

#include "base/log.h"
#include "model/json.h"
#include "tokenizer/json_fields.h"

namespace pagoda {

namespace {

// What cuts words where a ByteLevel pre-tokenizer does it itself: the expression of GPT-2.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class TokenizerReader {
 public:
  explicit TokenizerReader(const std::string& where) : where_(where) {}

  Result<TokenizerSpec> read(const Json& root) {
    JsonFields fields(root, where_, &error_);
    fields.ignore({"version", "truncation", "padding"});
    added_tokens(fields.any("added_tokens"));
    component("normalizer", "normalizers", fields, &TokenizerReader::normalizer);
    component("pre_tokenizer", "pretokenizers", fields, &TokenizerReader::pre_tokenizer);
    model(fields.any("model"));
    component("post_processor", "processors", fields, &TokenizerReader::post_processor);
    component("decoder", "decoders", fields, &TokenizerReader::decoder);
    fields.refuse_others();
    if (!error_.ok()) return error_;
    return std::move(spec_);
  }

 private:
  using Component = void (TokenizerReader::*)(const std::string& type, JsonFields& fields);

  void component(const char* name, const char* list, JsonFields& fields, Component read) {
    num_steps_ = 0;
    each(name, list, fields.any(name), read);
  }

  // Reads a component, or those of a Sequence, whose list is called `list`. null: there is none.
  void each(const std::string& place, const char* list, const Json& json, Component read) {
    if (json.is_null() || !error_.ok()) return;
    JsonFields fields(json, where_ + ": " + place, &error_);
    const std::string type = fields.text("type");
    if (type == "Sequence") {
      const Json& parts = fields.any(list);
      if (!parts.is_array()) fields.fail(strf("\"%s\" must be a list", list));
      for (size_t i = 0; i < parts.size() && error_.ok(); ++i) {
        if (++num_steps_ > kMaxSteps) fields.fail(strf("has more than %zu steps", kMaxSteps));
        each(strf("%s.%s[%zu]", place.c_str(), list, i), list, parts[i], read);
      }
    } else {
      (this->*read)(type, fields);
    }
    fields.refuse_others();
  }

  void unknown(const std::string& type, JsonFields& fields) {
    fields.fail(strf("the component \"%s\" is not known to pagoda", printable(type).c_str()));
  }

  // What a step puts into a text.
  std::string content(const char* key, JsonFields& fields) {
    const std::string text = fields.text(key);
    if (text.size() > kMaxContentBytes) {
      fields.fail(strf("\"%s\" is longer than %zu bytes", key, kMaxContentBytes));
    }
    return text;
  }

  // {"String": TEXT} or {"Regex": PATTERN}
  Pattern pattern(JsonFields& fields) {
    JsonFields choice(fields.any("pattern"), fields.where() + ".pattern", &error_);
    const bool regex = choice.has("Regex");
    const std::string text = choice.text(regex ? "Regex" : "String");
    choice.refuse_others();
    if (text.empty()) choice.fail("the pattern is empty");
    if (!error_.ok()) return Pattern::literal("?");
    if (!regex) return Pattern::literal(text);
    return compiled(text, choice.where());
  }
  Pattern compiled(const std::string& regex, const std::string& where) {
    auto result = Pattern::regex(regex, where);
    if (result.ok()) return result.take();
    if (error_.ok()) error_ = result.status();
    return Pattern::literal("?");
  }

  void added_tokens(const Json& list) {
    if (list.is_null()) return;
    if (!list.is_array()) {
      error_ = Status(Exit::kBadData, where_ + ": added_tokens: must be a list");
      return;
    }
    for (size_t i = 0; i < list.size() && error_.ok(); ++i) {
      JsonFields fields(list[i], strf("%s: added_tokens[%zu]", where_.c_str(), i), &error_);
      AddedToken token;
      token.id = static_cast<uint32_t>(fields.integer("id", 0, kMaxTokens - 1));
      token.content = fields.text("content");
      token.single_word = fields.boolean("single_word", false);
      token.lstrip = fields.boolean("lstrip", false);
      token.rstrip = fields.boolean("rstrip", false);
      token.special = fields.boolean("special", false);
      token.normalized = fields.boolean("normalized", !token.special);
      if (token.content.empty()) fields.fail("\"content\" is empty");
      if (token.content.size() > kMaxAddedTokenBytes) {
        fields.fail(strf("\"content\" is longer than %zu bytes", kMaxAddedTokenBytes));
      }
      fields.refuse_others();
      spec_.added_tokens.push_back(std::move(token));
    }
  }

  void normalizer(const std::string& type, JsonFields& fields) {
    using Kind = NormalizerStep::Kind;
    if (type == "NFC") {
      spec_.normalizer.push_back({Kind::kNfc});
    } else if (type == "Prepend") {
      spec_.normalizer.push_back({Kind::kPrepend, content("prepend", fields)});
    } else if (type == "Replace") {
      spec_.normalizer.push_back({Kind::kReplace, content("content", fields), pattern(fields)});
    } else {
      unknown(type, fields);
    }
  }

  void pre_tokenizer(const std::string& type, JsonFields& fields) {
    if (spec_.byte_level) return fields.fail("nothing may stand behind ByteLevel");
    if (type == "Split") {
      split(fields);
    } else if (type == "Digits") {
      const bool each_digit = fields.boolean("individual_digits", false);
      spec_.splits.push_back({compiled("\\p{N}", fields.where()),
                              each_digit ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
    } else if (type == "ByteLevel") {
      byte_level(fields);
    } else if (type == "Metaspace") {
      metaspace(fields);
    } else {
      unknown(type, fields);
    }
  }

  void split(JsonFields& fields) {
    SplitStep step{pattern(fields)};
    step.behavior = static_cast<SplitBehavior>(fields.choice(
        "behavior", {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"}));
    step.invert = fields.boolean("invert", false);
    spec_.splits.push_back(std::move(step));
  }

  void byte_level(JsonFields& fields) {
    fields.ignore({"trim_offsets"});
    spec_.byte_level = true;
    if (fields.boolean("add_prefix_space", true)) {
      set_prefix({PrefixStep::When::kAlways, " ", false}, fields);
    }
    if (fields.boolean("use_regex", true)) {
      spec_.splits.push_back({compiled(kGpt2Pattern, fields.where())});
    }
  }

  // Metaspace's replacement and when it is put before a text.
  PrefixStep metaspace_prefix(JsonFields& fields) {
    using When = PrefixStep::When;
    fields.ignore({"str_rep"});
    PrefixStep prefix{When::kAlways, content("replacement", fields), true};
    if (prefix.content.empty()) fields.fail("\"replacement\" is empty");
    const bool add = fields.boolean("add_prefix_space", true);
    if (fields.has("prepend_scheme")) {
      const When schemes[] = {When::kAlways, When::kAtStart, When::kNever};
      prefix.when = schemes[fields.choice("prepend_scheme", {"always", "first", "never"})];
    } else if (!add) {
      prefix.when = When::kNever;
    }
    if (!add && prefix.when != When::kNever)
      fields.fail("add_prefix_space and prepend_scheme differ");
    return prefix;
  }

  void metaspace(JsonFields& fields) {
    const PrefixStep prefix = metaspace_prefix(fields);
    const bool cut = fields.boolean("split", true);
    set_prefix(prefix, fields);
    if (cut && error_.ok()) {
      spec_.splits.push_back({Pattern::literal(prefix.content), SplitBehavior::kMergedWithNext});
    }
  }

  void set_prefix(const PrefixStep& prefix, JsonFields& fields) {
    const bool first = spec_.splits.empty() && spec_.prefix.content.empty();
    if (!first) fields.fail("what changes the text must be the first pre-tokenizer");
    spec_.prefix = prefix;
  }

  void model(const Json& json) {
    JsonFields fields(json, where_ + ": model", &error_);
    // Old files do not say the type of this one.
    const std::string type =
        fields.has("merges") && !fields.has("type") ? "BPE" : fields.text("type");
    fields.any("type");
    if (type != "BPE") return unknown(type, fields);
    if (const Json& dropout = fields.any("dropout"); !dropout.is_null() && dropout != 0) {
      fields.fail("\"dropout\" is not known to pagoda");
    }
    fields.must_be_empty("continuing_subword_prefix");
    fields.must_be_empty("end_of_word_suffix");
    spec_.model.unk_token = fields.text_or_none("unk_token");
    spec_.model.fuse_unk = fields.boolean("fuse_unk", false);
    spec_.model.byte_fallback = fields.boolean("byte_fallback", false);
    spec_.model.ignore_merges = fields.boolean("ignore_merges", false);
    vocabulary(fields.any("vocab"), fields);
    merges(fields.any("merges"), fields);
    fields.refuse_others();
  }

  void vocabulary(const Json& vocab, JsonFields& fields) {
    if (!vocab.is_object()) return fields.fail("\"vocab\" must be an object");
    spec_.model.vocab.reserve(vocab.size());
    for (const auto& [token, id] : vocab.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t{kMaxTokens}) {
        return fields.fail(strf("vocab: the id of \"%s\" must be a whole number below %lld",
                                printable(token).c_str(), (long long)kMaxTokens));
      }
      spec_.model.vocab.emplace_back(token, id.get<uint32_t>());
    }
  }

  // ["a b", ...] or [["a", "b"], ...]
  void merges(const Json& list, JsonFields& fields) {
    if (!list.is_array()) return fields.fail("\"merges\" must be a list");
    spec_.model.merges.reserve(list.size());
    for (const Json& merge : list) {
      const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                        merge[1].is_string();
      if (pair) {
        spec_.model.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
        continue;
      }
      const std::string text = merge.is_string() ? merge.get<std::string>() : "";
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return fields.fail(strf("merge %zu is not a pair of tokens", spec_.model.merges.size()));
      }
      spec_.model.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
  }

  void post_processor(const std::string& type, JsonFields& fields) {
    if (type == "ByteLevel") {
      fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "TemplateProcessing") {
      template_processing(fields);
    } else {
      unknown(type, fields);
    }
  }

  // "single" is a list of {"SpecialToken": {"id": NAME}} and one {"Sequence": {"id": "A"}}.
  void template_processing(JsonFields& fields) {
    fields.ignore({"pair"});
    const Json& single = fields.any("single");
    const Json& tokens = fields.any("special_tokens");
    if (!single.is_array() || !tokens.is_object()) {
      return fields.fail("\"single\" must be a list and \"special_tokens\" an object");
    }
    for (const Json& part : single) {
      JsonFields item(part, fields.where() + ".single", &error_);
      if (item.has("Sequence")) return;
      JsonFields token(item.any("SpecialToken"), item.where() + ".SpecialToken", &error_);
      const std::string name = token.text("id");
      JsonFields names(tokens, fields.where() + ".special_tokens", &error_);
      JsonFields special(names.any(name.c_str()), names.where() + "." + printable(name), &error_);
      const Json& ids = special.any("ids");
      if (!ids.is_array() || ids.size() != 1 || !ids[0].is_number_unsigned() ||
          ids[0].get<uint64_t>() >= uint64_t{kMaxTokens}) {
        return special.fail("\"ids\" must be a list of one id");
      }
      spec_.before_text.push_back(ids[0].get<uint32_t>());
    }
    fields.fail("\"single\" has no Sequence");
  }

  void decoder(const std::string& type, JsonFields& fields) {
    using Kind = DecoderStep::Kind;
    if (type == "ByteLevel") {
      fields.ignore({"add_prefix_space", "trim_offsets", "use_regex"});
      spec_.decoder.push_back({Kind::kByteLevel});
    } else if (type == "ByteFallback") {
      spec_.decoder.push_back({Kind::kByteFallback});
    } else if (type == "Fuse") {
      spec_.decoder.push_back({Kind::kFuse});
    } else if (type == "Replace") {
      spec_.decoder.push_back({Kind::kReplace, pattern(fields), content("content", fields)});
    } else if (type == "Strip") {
      DecoderStep step{Kind::kStrip, std::nullopt, content("content", fields)};
      step.begin = static_cast<uint32_t>(fields.integer("start", 0, 1000));
      step.end = static_cast<uint32_t>(fields.integer("stop", 0, 1000));
      if (step.content.empty()) fields.fail("\"content\" is empty");
      spec_.decoder.push_back(std::move(step));
    } else if (type == "Metaspace") {
      fields.ignore({"split"});
      const PrefixStep prefix = metaspace_prefix(fields);
      const bool keeps_first = prefix.when == PrefixStep::When::kNever;
      spec_.decoder.push_back({Kind::kMetaspace, std::nullopt, prefix.content, keeps_first, 0});
    } else {
      unknown(type, fields);
    }
  }

  const std::string where_;
  Status error_;
  TokenizerSpec spec_;
  size_t num_steps_ = 0;  // of the component being read
};

}  // namespace

Result<TokenizerSpec> read_tokenizer_json(const Json& root, const std::string& where) {
  return TokenizerReader(where).read(root);
}

}  // namespace pagoda
