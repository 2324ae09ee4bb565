#include "base/memory_size.h"

#include <algorithm>
#include <string_view>

#include "base/bytes.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};

// Largest first within each family: text() takes the first binary unit that divides.
constexpr Unit kUnits[] = {
    {"TiB", kGiB * 1024},  {"GiB", kGiB},      {"MiB", kMiB},   {"KiB", kKiB}, {"B", 1},
    {"TB", 1000000000000}, {"GB", 1000000000}, {"MB", 1000000}, {"KB", 1000},
};
constexpr int kBinaryUnits = 5;
constexpr double kMaxBytes = 9.0e18;  // below the largest int64

Status not_a_size(const std::string& text) {
  return Status(Exit::kUsage,
                "\"" + text + "\" is not a size; write for example \"24GiB\", \"80%\" or \"auto\"");
}

}  // namespace

Result<MemorySize> MemorySize::parse(const std::string& text) {
  if (text == "auto") return MemorySize();
  const std::string_view all(text);
  const std::string_view digits = all.substr(0, all.find_first_not_of("0123456789."));
  std::string_view unit = all.substr(digits.size());
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double number = 0;
  if (!parse_real(digits, number)) return not_a_size(text);
  if (unit == "%") {
    if (number > 0 && number <= 100) return of_percent(number);
    return Status(Exit::kUsage, "\"" + text + "\": a percentage lies above 0% and at most 100%");
  }
  for (const Unit& known : kUnits) {
    if (unit != known.name && !(unit.empty() && known.bytes == 1)) continue;
    const double bytes = number * static_cast<double>(known.bytes);
    if (bytes > kMaxBytes) return not_a_size(text);
    int64_t whole = 0;  // exact where a double would round
    if (parse_int64(digits, whole)) return of_bytes(checked_mul(whole, known.bytes));
    return of_bytes(static_cast<int64_t>(bytes));
  }
  return not_a_size(text);
}

int64_t MemorySize::resolve(int64_t total_bytes, int64_t auto_bytes) const {
  switch (kind_) {
    case Kind::kAuto:
      return auto_bytes;
    case Kind::kBytes:
      return bytes_;
    case Kind::kPercent:
      // A double cannot tell the largest int64 from 2^63, which is none.
      if (percent_ == 100) return total_bytes;
      return static_cast<int64_t>(static_cast<double>(total_bytes) * percent_ / 100);
  }
  return auto_bytes;
}

std::string MemorySize::text() const {
  if (kind_ == Kind::kAuto) return "auto";
  if (kind_ == Kind::kPercent) {
    std::string number = real_text(percent_);
    if (number.ends_with(".0")) number.resize(number.size() - 2);
    return number + "%";
  }
  for (int i = 0; i < kBinaryUnits; ++i) {
    const Unit& unit = kUnits[i];
    if (bytes_ != 0 && bytes_ % unit.bytes == 0)
      return std::to_string(bytes_ / unit.bytes) + unit.name;
  }
  return "0B";
}

MemorySizes::MemorySizes(std::vector<MemorySize> sizes) : sizes_(std::move(sizes)) {
  CHECK(!sizes_.empty(), "no size");
}

Result<MemorySizes> MemorySizes::parse(const std::vector<std::string>& texts) {
  std::vector<MemorySize> sizes;
  for (const std::string& text : texts) {
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      ASSIGN_OR_RETURN(const MemorySize size, MemorySize::parse(text.substr(begin, end - begin)));
      sizes.push_back(size);
      begin = end + 1;
    }
  }
  if (sizes.empty()) return not_a_size("");
  return MemorySizes(std::move(sizes));
}

const MemorySize& MemorySizes::of(size_t place) const {
  if (sizes_.size() == 1) return sizes_.front();
  CHECK(place < sizes_.size(), "%zu sizes for more places", sizes_.size());
  return sizes_[place];
}

}  // namespace pagoda
