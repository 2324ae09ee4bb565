#include "base/options.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "base/log.h"
#include "base/number_text.h"
#include "base/utf8.h"

namespace pagoda {
namespace {

template <typename... F>
struct Overload : F... {
  using F::operator()...;
};
template <typename... F>
Overload(F...) -> Overload<F...>;  // Clang does not deduce this before 17

std::string join(const std::vector<std::string>& words, const char* separator) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : separator) + word;
  return out;
}

std::vector<std::string> texts_of(const MemorySizes& sizes) {
  std::vector<std::string> texts;
  for (const MemorySize& size : sizes.listed()) texts.push_back(size.text());
  return texts;
}

std::string toml_list(const std::vector<std::string>& texts) {
  std::vector<std::string> quoted;
  for (const std::string& text : texts) quoted.push_back(toml_string(text));
  return "[" + join(quoted, ", ") + "]";
}

Status wrong(const Option& option, const std::string& text) {
  return Status(Exit::kUsage,
                option.key + ": \"" + printable(text) + "\" is not " + option.expects());
}

// Converts `text`; with `commit` also writes the member.
struct Reader {
  const Option& option;
  const std::vector<std::string>& texts;
  bool commit;

  const std::string& text() const { return texts.front(); }
  template <typename T>
  Status take(T* target, T value) const {
    if (commit) *target = std::move(value);
    return Status();
  }
  Status operator()(std::string* target) const { return take(target, text()); }
  Status operator()(std::vector<std::string>* target) const { return take(target, texts); }
  Status operator()(int64_t* target) const {
    int64_t value = 0;
    return parse_int64(text(), value) ? take(target, value) : wrong(option, text());
  }
  Status operator()(CountOrAuto target) const {
    int64_t value = 0;
    if (text() != "auto" && (!parse_int64(text(), value) || value <= 0)) {
      return wrong(option, text());
    }
    return take(target.count, value);
  }
  Status operator()(RealOrAuto target) const {
    double value = -1;
    if (text() != "auto" && (!parse_real(text(), value) || !(value >= 0))) {
      return wrong(option, text());
    }
    return take(target.number, value);
  }
  Status operator()(double* target) const {
    double value = 0;
    return parse_real(text(), value) ? take(target, value) : wrong(option, text());
  }
  Status operator()(bool* target) const {
    if (text() != "true" && text() != "false") return wrong(option, text());
    return take(target, text() == "true");
  }
  Status operator()(MemorySize* target) const {
    Result<MemorySize> value = MemorySize::parse(text());
    if (value.ok()) return take(target, value.take());
    return Status(Exit::kUsage, option.key + ": " + value.status().message());
  }
  Status operator()(MemorySizes* target) const {
    Result<MemorySizes> value = MemorySizes::parse(texts);
    if (value.ok()) return take(target, value.take());
    return Status(Exit::kUsage, option.key + ": " + value.status().message());
  }
  Status operator()(const ChoiceTarget& target) const {
    const auto found = std::find(target.names.begin(), target.names.end(), text());
    if (found == target.names.end()) return wrong(option, text());
    if (commit) target.set(static_cast<int>(found - target.names.begin()));
    return Status();
  }
};

Status read_texts(const Option& option, const std::vector<std::string>& texts, bool commit) {
  if (!option.is_list() && texts.size() != 1) {
    return Status(Exit::kUsage,
                  option.key + ": expects one value, got " + std::to_string(texts.size()));
  }
  for (const std::string& text : texts) {
    if (first_invalid_utf8(text) != std::string_view::npos) {
      return Status(Exit::kUsage,
                    option.key + ": \"" + printable(replace_invalid_utf8(text)) +
                        "\" is not valid UTF-8");
    }
    if (text.find('\0') != std::string::npos) return wrong(option, text);
  }
  return std::visit(Reader{option, texts, commit}, option.target);
}

}  // namespace

std::string Option::expects() const {
  return std::visit(
      Overload{[](std::string*) -> std::string { return "a text in quotes"; },
               [](std::vector<std::string>*) -> std::string { return "a list of texts in quotes"; },
               [](int64_t*) -> std::string { return "a whole number"; },
               [](CountOrAuto) -> std::string { return "a whole number above 0, or \"auto\""; },
               [](RealOrAuto) -> std::string { return "a number from 0, or \"auto\""; },
               [](double*) -> std::string { return "a number"; },
               [](bool*) -> std::string { return "true or false"; },
               [](MemorySize*) -> std::string { return "a size such as \"24GiB\" or \"80%\""; },
               [](MemorySizes*) -> std::string {
                 return "a size such as \"24GiB\" or \"80%\", or a list of them";
               },
               [](const ChoiceTarget& t) { return "one of " + join(t.names, ", "); }},
      target);
}

std::string Option::text() const {
  return std::visit(
      Overload{[](std::string* v) { return *v; },
               [](std::vector<std::string>* v) { return join(*v, " "); },
               [](int64_t* v) { return std::to_string(*v); },
               [](CountOrAuto v) { return *v.count > 0 ? std::to_string(*v.count) : "auto"; },
               [](RealOrAuto v) { return *v.number >= 0 ? real_text(*v.number) : "auto"; },
               [](double* v) { return real_text(*v); },
               [](bool* v) -> std::string { return *v ? "true" : "false"; },
               [](MemorySize* v) { return v->text(); },
               [](MemorySizes* v) { return join(texts_of(*v), " "); },
               [](const ChoiceTarget& t) { return t.names.at(t.get()); }},
      target);
}

std::string Option::toml() const {
  return std::visit(
      Overload{[](std::string* v) { return toml_string(*v); },
               [](std::vector<std::string>* v) { return toml_list(*v); },
               [](MemorySizes* v) {
                 const std::vector<std::string> texts = texts_of(*v);
                 return texts.size() == 1 ? toml_string(texts[0]) : toml_list(texts);
               },
               [this](int64_t*) { return text(); },
               [this](CountOrAuto v) { return *v.count > 0 ? text() : toml_string(text()); },
               [this](RealOrAuto v) { return *v.number >= 0 ? text() : toml_string(text()); },
               [this](double*) { return text(); }, [this](bool*) { return text(); },
               [this](const auto&) { return toml_string(text()); }},
      target);
}

Status Option::check(const std::vector<std::string>& texts) const {
  return read_texts(*this, texts, /*commit=*/false);
}

Status Option::assign(const std::vector<std::string>& texts) const {
  return read_texts(*this, texts, /*commit=*/true);
}

void OptionTable::section(const std::string& name, const std::string& title) {
  sections_.push_back({name, title});
}

void OptionTable::add_option(const char* name, OptionTarget target, Affects affects,
                             const char* help, const char* unit) {
  CHECK(!sections_.empty(), "option %s is declared before any section", name);
  Option option;
  option.section = sections_.back().name;
  option.key = option.section + "." + name;
  option.help = help;
  option.unit = unit;
  option.affects = affects;
  option.target = std::move(target);
  option.default_text = option.text();
  CHECK(find(option.key) == nullptr, "option %s is declared twice", option.key.c_str());
  options_.push_back(std::move(option));
}

const Option* OptionTable::find(const std::string& key) const {
  for (const Option& option : options_) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

std::string OptionTable::suggestion(const std::string& key) const {
  std::vector<std::string> keys, names;
  for (const Option& option : options_) {
    keys.push_back(option.key);
    names.push_back(option.key.substr(option.section.size() + 1));
  }
  // The same name in another section is nearer than any other word.
  const std::string name = key.substr(key.rfind('.') + 1);
  const bool is_name = std::find(names.begin(), names.end(), name) != names.end();
  std::string near = is_name ? "" : nearest_word(key, keys);
  if (near.empty()) {
    const auto found = std::find(names.begin(), names.end(), nearest_word(name, names));
    if (found != names.end()) near = keys[found - names.begin()];
  }
  return near.empty() ? "" : ", did you mean \"" + near + "\"?";
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += strf("\\u%04X", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string options_toml(const OptionTable& table, bool with_help) {
  std::string text;
  for (const OptionSection& section : table.sections()) {
    text += (text.empty() ? "[" : "\n[") + section.name + "]\n";
    for (const Option& option : table.options()) {
      if (option.section != section.name) continue;
      text += option.key.substr(section.name.size() + 1) + " = " + option.toml() +
              (with_help ? "  # " + option.help + "\n" : "\n");
    }
  }
  return text;
}

}  // namespace pagoda
