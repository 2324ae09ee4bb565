// A use of a page: which page, where, and what for.
#pragma once

#include <cstdint>

#include "offload/place.h"

namespace pagoda {

using PageId = uint32_t;

enum class Access : uint8_t {
  kRead,
  kWrite,     // read and changed
  kCreate,    // written without looking at what was there
  kPrefetch,  // a guess that a use follows; it never displaces a certain use
};

constexpr bool changes_content(Access access) {
  return access == Access::kWrite || access == Access::kCreate;
}

struct PageUse {
  PageId page = 0;
  Place place;
  Access access = Access::kRead;
  bool last = false;  // the content is not needed afterwards: the user discards it
  bool operator==(const PageUse&) const = default;
};

}  // namespace pagoda
