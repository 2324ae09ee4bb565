// Where bytes live. A tier is a kind of memory; a place is one memory.
#pragma once

#include <cstdint>

namespace pagoda {

enum class Tier : uint8_t { kDevice, kHost, kDisk };

struct Place {
  Tier tier = Tier::kHost;
  uint8_t device = 0;  // its number, when tier is kDevice

  static Place on_device(int device) { return {Tier::kDevice, static_cast<uint8_t>(device)}; }
  static Place host() { return {Tier::kHost, 0}; }
  bool operator==(const Place&) const = default;
};

}  // namespace pagoda
