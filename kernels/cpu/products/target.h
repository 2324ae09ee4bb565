// PAGODA_TARGET_BEGIN("avx2,fma") ... PAGODA_TARGET_END: functions between them are compiled for
// processors with these features, whatever the file's own. Neither compiler knows the other's way.
#pragma once

#define PAGODA_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define PAGODA_TARGET_BEGIN(features) \
  PAGODA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define PAGODA_TARGET_END PAGODA_PRAGMA(clang attribute pop)
#else
#define PAGODA_TARGET_BEGIN(features) \
  PAGODA_PRAGMA(GCC push_options) PAGODA_PRAGMA(GCC target(features))
#define PAGODA_TARGET_END PAGODA_PRAGMA(GCC pop_options)
#endif
