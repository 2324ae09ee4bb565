#include "parallel/heartbeat_frame.h"

#include <algorithm>
#include <cstring>

namespace pagoda {
namespace {

constexpr char kMagic[] = "pagodahb";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;

template <typename T>
void put(HeartbeatBytes& bytes, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<std::byte>(value >> 8 * i);
}

template <typename T>
T get(const HeartbeatBytes& bytes, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(bytes[at + i]) << 8 * i;
  return value;
}

}  // namespace

HeartbeatBytes HeartbeatFrame::encode() const {
  HeartbeatBytes bytes{};
  const auto words = static_cast<uint32_t>(std::min(word.size(), kMostWordBytes));
  std::memcpy(bytes.data(), kMagic, kMagicBytes);
  std::copy(key.begin(), key.end(), bytes.begin() + 8);
  put(bytes, 24, from);
  put(bytes, 28, to);
  put(bytes, 32, number);
  put(bytes, 40, static_cast<uint32_t>(kind));
  put(bytes, 44, of);
  put(bytes, 48, waited_ms);
  put(bytes, 52, words);
  if (words > 0) std::memcpy(&bytes[56], word.data(), words);
  return bytes;
}

std::optional<HeartbeatFrame> HeartbeatFrame::decode(const HeartbeatBytes& bytes) {
  HeartbeatFrame frame;
  const auto kind = get<uint32_t>(bytes, 40), words = get<uint32_t>(bytes, 52);
  if (std::memcmp(bytes.data(), kMagic, kMagicBytes) != 0) return std::nullopt;
  if (kind > static_cast<uint32_t>(HeartbeatKind::kLoss) || words > kMostWordBytes) {
    return std::nullopt;
  }
  std::copy_n(bytes.begin() + 8, frame.key.size(), frame.key.begin());
  frame.from = get<uint32_t>(bytes, 24);
  frame.to = get<uint32_t>(bytes, 28);
  frame.number = get<uint64_t>(bytes, 32);
  frame.kind = static_cast<HeartbeatKind>(kind);
  frame.of = get<uint32_t>(bytes, 44);
  frame.waited_ms = get<uint32_t>(bytes, 48);
  frame.word.assign(reinterpret_cast<const char*>(&bytes[56]), words);
  return frame;
}

}  // namespace pagoda
