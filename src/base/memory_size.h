// MemorySize: an amount of memory as a person writes it: "24GiB", "1.5GiB", "512MiB", "24GB" (10^9)
// or "80%" of a total that is known only on the machine, or "auto" (the program decides).
// MemorySizes: one for each of several places, or one that each of them has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pagoda {

class MemorySize {
 public:
  MemorySize() = default;  // auto
  static MemorySize of_bytes(int64_t bytes) { return MemorySize(Kind::kBytes, bytes, 0); }
  static MemorySize of_percent(double percent) { return MemorySize(Kind::kPercent, 0, percent); }
  // kUsage, without naming the option, when `text` is not a size; percentages are in (0, 100].
  static Result<MemorySize> parse(const std::string& text);

  // The bytes, given the total that a percentage refers to and the bytes that "auto" means here.
  int64_t resolve(int64_t total_bytes, int64_t auto_bytes) const;
  // Parses back to the same value: "auto", "80%", "24GiB", "4097B".
  std::string text() const;

  friend bool operator==(const MemorySize&, const MemorySize&) = default;

 private:
  enum class Kind : uint8_t { kAuto, kBytes, kPercent };
  MemorySize(Kind kind, int64_t bytes, double percent)
      : kind_(kind), bytes_(bytes), percent_(percent) {}

  Kind kind_ = Kind::kAuto;
  int64_t bytes_ = 0;
  double percent_ = 0;
};

class MemorySizes {
 public:
  MemorySizes(MemorySize each = MemorySize()) : sizes_{each} {}  // of any number of places
  // REQUIRES: not empty. One alone is that of each place.
  explicit MemorySizes(std::vector<MemorySize> sizes);
  // Texts with commas between sizes, or one for each. Returns the errors of MemorySize::parse.
  static Result<MemorySizes> parse(const std::vector<std::string>& texts);

  const std::vector<MemorySize>& listed() const { return sizes_; }
  // REQUIRES: one is listed, or more than `place`.
  const MemorySize& of(size_t place) const;

  friend bool operator==(const MemorySizes&, const MemorySizes&) = default;

 private:
  std::vector<MemorySize> sizes_;
};

}  // namespace pagoda
