// Copies pages, which are too large to stay in the cache.
#pragma once

#include <cstdint>

namespace pagoda {

// Copies `bytes` bytes between places that do not overlap, with stores that bypass the cache (a
// line that is only written is not read first) and four stretches side by side, which keeps more
// reads of memory under way. After the large copies of the GNU C library, which begins with them
// only far above the size of a page. Small or unaligned copies are a memcpy.
void copy_past_cache(void* target, const void* source, int64_t bytes);

}  // namespace pagoda
