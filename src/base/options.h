// Options: a struct of settings declares each setting ONCE, by adding it to an OptionTable; flags,
// run file, help, resolved.toml, log lines and the configuration hash are walks over that table.
// After the argument visitor of gemma.cpp (util/args.h).
//
//   void RunConfig::declare(OptionTable& table) {
//     table.section("train", "Training");
//     table.add("steps", train.steps, Affects::kResults, "optimizer steps", "steps");
//   }
//
// An Option refers to the member it was made from: the struct must outlive the table and not move.
// Nothing here is thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/memory_size.h"
#include "base/status.h"

namespace pagoda {

// Whether a setting can change the numbers a run computes (and so belongs in the configuration
// hash) or only where, how fast and how visibly it runs. A local one is each process's own in a run
// of several; the others have rank 0's everywhere.
enum class Affects : uint8_t { kResults, kRunOnly, kLocal };

// An enum seen through its names; value i has name i.
struct ChoiceTarget {
  std::vector<std::string> names;
  std::function<int()> get;
  std::function<void(int)> set;
};

// A count above 0 that may be left to the program: "auto", which is 0.
struct CountOrAuto {
  int64_t* count;
};

// A number from 0 that may be left to the program: "auto", which is negative.
struct RealOrAuto {
  double* number;
};

using OptionTarget = std::variant<std::string*, std::vector<std::string>*, int64_t*, double*, bool*,
                                  MemorySize*, MemorySizes*, ChoiceTarget, CountOrAuto, RealOrAuto>;

struct Option {
  std::string key;      // "train.steps"
  std::string alias;    // another name of its flag, without section; or empty
  std::string section;  // "train"
  std::string help;     // one line without a full stop
  std::string unit;     // "tokens", or empty
  Affects affects = Affects::kRunOnly;
  OptionTarget target;
  std::string default_text;  // the value the member had when it was declared

  bool is_list() const {
    return std::holds_alternative<std::vector<std::string>*>(target) ||
           std::holds_alternative<MemorySizes*>(target);
  }
  // "a whole number", "one of fp32, bf16": what may be written, for help and errors.
  std::string expects() const;
  // The current value as a person would type it after the flag; lists with spaces between.
  std::string text() const;
  // The current value as a TOML literal that reads back as the same value. Sizes of which there is
  // one are no list.
  std::string toml() const;
  // Checks `texts` (one text, or any number for a list). kUsage with "KEY: ..." when wrong.
  Status check(const std::vector<std::string>& texts) const;
  // Checks, then writes the member; on error it is unchanged.
  Status assign(const std::vector<std::string>& texts) const;
};

struct OptionSection {
  std::string name;   // "train"
  std::string title;  // "Training"
};

class OptionTable {
 public:
  // Options added from here on get keys "NAME.option".
  void section(const std::string& name, const std::string& title);

  template <typename T>
  requires(!std::is_enum_v<T>) void add(const char* name, T& member, Affects affects,
                                        const char* help, const char* unit = "") {
    add_option(name, OptionTarget(&member), affects, help, unit);
  }
  void add_or_auto(const char* name, int64_t& member, Affects affects, const char* help,
                   const char* unit = "") {
    add_option(name, CountOrAuto{&member}, affects, help, unit);
  }
  void add_or_auto(const char* name, double& member, Affects affects, const char* help,
                   const char* unit = "") {
    add_option(name, RealOrAuto{&member}, affects, help, unit);
  }
  // Gives the option that was added last a second flag "--ALIAS".
  void alias(const char* alias) { options_.back().alias = alias; }
  // names[i] is the text of the enum value i.
  template <typename E>
  requires(std::is_enum_v<E>) void add(const char* name, E& member,
                                       std::initializer_list<const char*> names, Affects affects,
                                       const char* help) {
    ChoiceTarget choice{{names.begin(), names.end()},
                        [&member] { return static_cast<int>(member); },
                        [&member](int value) { member = static_cast<E>(value); }};
    add_option(name, std::move(choice), affects, help, "");
  }

  const std::vector<OptionSection>& sections() const { return sections_; }
  const std::vector<Option>& options() const { return options_; }
  const Option* find(const std::string& key) const;  // nullptr: no such key
  // ", did you mean \"train.steps\"?", or nothing when no key is near. Keys without their section
  // are compared too.
  std::string suggestion(const std::string& key) const;

 private:
  void add_option(const char* name, OptionTarget target, Affects affects, const char* help,
                  const char* unit);

  std::vector<OptionSection> sections_;
  std::vector<Option> options_;
};

// A file with every option of the table, by section, which parses back to the same values.
// `with_help`: each with its line of help behind it.
std::string options_toml(const OptionTable& table, bool with_help = false);

// `text` as a TOML basic string. REQUIRES: valid UTF-8 (Option::assign lets nothing else in).
std::string toml_string(const std::string& text);

}  // namespace pagoda
