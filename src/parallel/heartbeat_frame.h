// What ranks tell each other to show that they live: frames of 128 bytes, numbers little-endian.
//
//   byte 0   "pagodahb"
//   byte 8   the run's key, 16 bytes
//   byte 24  sender's rank, 4 bytes
//   byte 28  receiver's rank, 4 bytes
//   byte 32  number of the frame on its connection, from 0, 8 bytes
//   byte 40  kind, 4 bytes: 0 beat, 1 goodbye, 2 a rank is lost
//   byte 44  the lost rank, or of a beat the one that its sender waits for, 4 bytes
//   byte 48  for how many milliseconds already; 0: it waits for nobody, 4 bytes
//   byte 52  bytes of the word, 4 bytes
//   byte 56  the word: what the sender is doing, for people; zeros behind it
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace pagoda {

inline constexpr size_t kHeartbeatBytes = 128;
inline constexpr size_t kMostWordBytes = kHeartbeatBytes - 56;

using HeartbeatBytes = std::array<std::byte, kHeartbeatBytes>;
using HeartbeatKey = std::array<std::byte, 16>;

enum class HeartbeatKind : uint32_t { kBeat, kGoodbye, kLoss };

struct HeartbeatFrame {
  HeartbeatKey key{};
  uint32_t from = 0, to = 0;  // ranks
  uint64_t number = 0;
  HeartbeatKind kind = HeartbeatKind::kBeat;
  uint32_t of = 0;  // the rank that it is about
  uint32_t waited_ms = 0;
  std::string word;   // cut to kMostWordBytes when it is encoded

  HeartbeatBytes encode() const;
  // Nothing if the bytes are no frame.
  static std::optional<HeartbeatFrame> decode(const HeartbeatBytes& bytes);
};

}  // namespace pagoda
