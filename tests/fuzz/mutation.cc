#include "tests/fuzz/mutation.h"

#include <algorithm>

#include "base/random.h"

namespace pagoda {
namespace {

constexpr uint64_t kSeed = 17;
constexpr size_t kLongest = 64;  // stretch

// Numbers at the borders of types and of limits.
constexpr const char* kNumbers[] = {"0",          "-1",         "1e308",
                                    "2147483648", "4294967296", "9223372036854775807",
                                    "-0.5",       "1e-400",     "18446744073709551615"};
constexpr const char* kPieces[] = {"null",    "true", "[]", "{}", "\"",
                                   "\\u0000", "\xff", "\n", "[[["};

void change(std::string& text, const std::string& other, const std::array<uint32_t, 4>& r) {
  if (text.empty()) text = other;
  if (text.empty()) return;
  const size_t at = r[1] % text.size();
  const size_t length = 1 + r[2] % std::min(kLongest, text.size() - at);
  switch (r[0] % 8) {
    case 0:
      text[at] ^= static_cast<char>(1 << r[2] % 8);
      break;
    case 1:
      text[at] = static_cast<char>(r[2]);
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(at, text.substr(at, length));
      break;
    case 4:
      text.resize(at);
      break;
    case 5:
      text.insert(at, kPieces[r[2] % std::size(kPieces)]);
      break;
    case 6: {
      const size_t digit = std::min(text.find_first_of("0123456789", at), text.size());
      const size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
      text.replace(digit, end - digit, kNumbers[r[2] % std::size(kNumbers)]);
      break;
    }
    default:
      if (!other.empty()) text.replace(at, length, other.substr(r[3] % other.size(), length));
  }
}

}  // namespace

std::string mutated(const std::vector<std::string>& seeds, uint64_t n) {
  const auto first = philox(kSeed, RandomPurpose::kTest, n, 0);
  std::string text = seeds[first[0] % seeds.size()];
  const std::string& other = seeds[first[1] % seeds.size()];
  for (uint32_t i = 0; i <= first[2] % 4; ++i) {
    change(text, other, philox(kSeed, RandomPurpose::kTest, n, 1 + i));
  }
  return text;
}

}  // namespace pagoda
