#include "model/json.h"

#include <exception>
#include <iterator>
#include <utility>
#include <vector>

#include "base/log.h"

namespace pagoda {

namespace {

// A character pointer that publishes how far the parser has read, because the parser tells its
// events no position.
class CountedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  CountedIterator(const char* at, int64_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountedIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  CountedIterator operator++(int) {
    CountedIterator old = *this;
    ++*this;
    return old;
  }
  friend bool operator==(const CountedIterator& a, const CountedIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountedIterator& a, const CountedIterator& b) { return !(a == b); }

 private:
  const char* at_;
  int64_t* count_;
};

// Builds the tree from parser events; an event that returns false ends the parse.
class TreeBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override {
    return length_ok(value) && add(std::move(value)) != nullptr;
  }
  bool binary(binary_t&) override { return refuse("binary value"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!length_ok(name)) return false;
    const auto [at, inserted] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!inserted) return refuse("duplicate key \"" + printable(name) + "\"");
    slot_ = &at->second;
    return true;
  }
  bool parse_error(size_t, const std::string&, const Json::exception& e) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: MESSAGE; last read: ..."
    const std::string text = e.what();
    const size_t colon = text.find(": ");
    const std::string why = colon == std::string::npos ? text : text.substr(colon + 2);
    return refuse("invalid JSON: " + printable(why));
  }

  const std::string& error() const { return error_; }
  Json& root() { return root_; }

 private:
  template <typename T>
  Json* add(T&& value) {
    if (++num_values_ > limits_.max_values) {
      refuse(strf("more than %lld values", (long long)limits_.max_values));
      return nullptr;
    }
    Json* place = &root_;
    if (slot_ != nullptr) {
      place = std::exchange(slot_, nullptr);
    } else if (!open_.empty()) {
      place = &open_.back()->get_ref<Json::array_t&>().emplace_back();
    }
    *place = std::forward<T>(value);
    return place;
  }
  bool open(Json&& container) {
    if (static_cast<int>(open_.size()) >= limits_.max_depth) {
      return refuse(strf("nested deeper than %d", limits_.max_depth));
    }
    // A container's address is stable while it is open: only its parent's last element is touched.
    Json* place = add(std::move(container));
    if (place != nullptr) open_.push_back(place);
    return place != nullptr;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool length_ok(const std::string& text) {
    if (static_cast<int64_t>(text.size()) <= limits_.max_string_bytes) return true;
    return refuse(strf("a string longer than %lld bytes", (long long)limits_.max_string_bytes));
  }
  bool refuse(std::string why) {
    if (error_.empty()) error_ = std::move(why);
    return false;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json*> open_;  // the path of open containers
  Json* slot_ = nullptr;     // where the value of the last key goes
  int64_t num_values_ = 0;
  std::string error_;
};

Status json_error(const std::string& where, int64_t byte, const std::string& why) {
  return Status(Exit::kBadData,
                strf("%s: byte %lld: %s", printable(where).c_str(), (long long)byte, why.c_str()));
}

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_bytes) {
    return json_error(where, 0,
                      strf("%zu bytes of JSON, more than the limit of %lld", text.size(),
                           (long long)limits.max_bytes));
  }
  // The parser would take NUL for the end of input and skip a byte order mark.
  const size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    return json_error(where, static_cast<int64_t>(nul), "invalid JSON: NUL byte");
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    return json_error(where, 0, "invalid JSON: byte order mark; save the file without it");
  }
  int64_t position = 0;
  try {
    TreeBuilder builder(limits);
    const bool ok =
        Json::sax_parse(CountedIterator(text.data(), &position),
                        CountedIterator(text.data() + text.size(), &position), &builder);
    if (!ok || !builder.error().empty()) return json_error(where, position, builder.error());
    return std::move(builder.root());
  } catch (const std::exception& e) {
    return json_error(where, position, std::string("cannot be read: ") + printable(e.what()));
  }
}

}  // namespace pagoda
