// In place of tests that need the CUDA toolkit (or a part of it) to compile, where there is none.
#include <gtest/gtest.h>

TEST(Cuda, NeedsTheToolkit) { GTEST_SKIP() << "SKIPPED: built without the CUDA toolkit"; }
