#include "cli/option_file.h"

#include <toml++/toml.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

Status error_at(const std::string& path, const toml::source_position& at,
                const std::string& message) {
  return Status(Exit::kUsage, strf("%s:%u:%u: ", printable(path).c_str(), at.line, at.column) +
                                  printable(message, 1000));
}

const char* type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "a string";
    case toml::node_type::integer:
      return "a whole number";
    case toml::node_type::floating_point:
      return "a number with a fraction";
    case toml::node_type::boolean:
      return "true or false";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::table:
      return "a table";
    default:
      return "a date or time";
  }
}

// The text of a scalar if the option's type takes it: numbers are not strings, nor the reverse.
bool scalar_text(const toml::node& node, const Option& option, std::string& text) {
  const bool real_or_auto = std::holds_alternative<RealOrAuto>(option.target);
  const bool real = std::holds_alternative<double*>(option.target) || real_or_auto;
  const bool count = std::holds_alternative<CountOrAuto>(option.target);
  const bool whole = std::holds_alternative<int64_t*>(option.target);
  if (std::holds_alternative<bool*>(option.target)) {
    if (!node.is_boolean()) return false;
    text = node.as_boolean()->get() ? "true" : "false";
  } else if (node.is_integer() && (real || whole || count)) {
    text = std::to_string(node.as_integer()->get());
  } else if (node.is_floating_point() && real) {
    text = real_text(node.as_floating_point()->get());
  } else if (node.is_string() && (!real || real_or_auto) && !whole) {
    text = node.as_string()->get();
  } else {
    return false;
  }
  return true;
}

class Walk {
 public:
  Walk(const std::string& path, const OptionTable& table, int rank)
      : path_(path), table_(table), rank_(rank) {}

  Status root(const toml::table& root) {
    for (auto&& [key, node] : root) {
      const std::string name(key.str());
      const bool known = is_section(name);
      if (known && node.is_table()) {
        RETURN_IF_ERROR(section(name, *node.as_table()));
      } else if (name == "rank" && has_local_options()) {
        RETURN_IF_ERROR(ranks(node));
      } else if (known) {
        return error_at(path_, node.source().begin, name + " is a section; write [" + name + "]");
      } else {
        RETURN_IF_ERROR(unknown(key, node, name));
      }
    }
    return Status();
  }

  // What is said of the rank wins.
  std::vector<RunFileItem> take() {
    for (const RunFileItem& own : of_rank_) {
      std::erase_if(items_, [&](const RunFileItem& item) { return item.key == own.key; });
    }
    std::move(of_rank_.begin(), of_rank_.end(), std::back_inserter(items_));
    return std::move(items_);
  }

 private:
  bool is_section(const std::string& name) const {
    for (const OptionSection& section : table_.sections()) {
      if (section.name == name) return true;
    }
    return false;
  }

  bool has_local_options() const {
    return std::ranges::any_of(
        table_.options(), [](const Option& option) { return option.affects == Affects::kLocal; });
  }

  // [rank.3.memory] and the like.
  Status ranks(const toml::node& node) {
    const char* const form = "write [rank.3.memory], with the number of a rank and a section";
    if (!node.is_table()) return error_at(path_, node.source().begin, form);
    for (auto&& [number, of_rank] : *node.as_table()) {
      int64_t rank = -1;
      if (!parse_int64(number.str(), rank) || rank < 0 || !of_rank.is_table()) {
        return error_at(path_, number.source().begin, form);
      }
      for (auto&& [key, of_section] : *of_rank.as_table()) {
        const std::string name(key.str());
        if (!is_section(name)) {
          RETURN_IF_ERROR(unknown(key, of_section, name));
        } else if (!of_section.is_table()) {
          return error_at(path_, key.source().begin, form);
        }
        std::vector<RunFileItem> shared = std::exchange(items_, {});
        RETURN_IF_ERROR(section(name, *of_section.as_table()));
        std::swap(shared, items_);
        for (RunFileItem& item : shared) {
          if (table_.find(item.key)->affects != Affects::kLocal) {
            return error_at(path_, key.source().begin,
                            item.key + " is the same for all ranks; set it outside of [rank]");
          }
          if (rank == rank_) of_rank_.push_back(std::move(item));
        }
      }
    }
    return Status();
  }

  // A misspelt section is best explained through its first key.
  Status unknown(const toml::key& key, const toml::node& node, const std::string& name) {
    std::string full = name;
    if (node.is_table() && !node.as_table()->empty()) {
      full += "." + std::string(node.as_table()->begin()->first.str());
    }
    return error_at(path_, key.source().begin, "unknown key " + full + table_.suggestion(full));
  }

  Status section(const std::string& name, const toml::table& table) {
    for (auto&& [key, node] : table) {
      const std::string full = name + "." + std::string(key.str());
      const Option* option = table_.find(full);
      if (option == nullptr) return unknown(key, node, full);
      RETURN_IF_ERROR(value(*option, node));
    }
    return Status();
  }

  Status value(const Option& option, const toml::node& node) {
    RunFileItem item{option.key, {}};
    if (option.is_list() && node.is_array()) {
      for (const toml::node& element : *node.as_array()) {
        RETURN_IF_ERROR(scalar(option, element, item));
      }
    } else {
      RETURN_IF_ERROR(scalar(option, node, item));
    }
    if (const Status status = option.check(item.texts); !status.ok()) {
      return error_at(path_, node.source().begin, status.message());
    }
    if (!item.texts.empty()) items_.push_back(std::move(item));
    return Status();
  }

  Status scalar(const Option& option, const toml::node& node, RunFileItem& item) {
    std::string text;
    if (!scalar_text(node, option, text)) {
      return error_at(path_, node.source().begin,
                      option.key + " expects " + option.expects() + ", found " + type_name(node));
    }
    item.texts.push_back(std::move(text));
    return Status();
  }

  const std::string& path_;
  const OptionTable& table_;
  const int rank_;
  std::vector<RunFileItem> items_, of_rank_;
};

}  // namespace

Result<std::vector<RunFileItem>> parse_run_file(const std::string& text, const std::string& path,
                                                const OptionTable& table, int rank) {
  try {
    const toml::table root = toml::parse(text, path);
    Walk walk(path, table, rank);
    RETURN_IF_ERROR(walk.root(root));
    return walk.take();
  } catch (const toml::parse_error& error) {
    return error_at(path, error.source().begin, std::string(error.description()));
  }
}

}  // namespace pagoda
