// Event files, byte for byte as TensorBoard's own writer makes them of the same numbers.
#include "report/event_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "report/step_usage.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

// The file of tools/make_event_golden.py.
TEST(EventFile, IsWhatTensorBoardWrites) {
  TempDir dir;
  double clock = 1700000000.0;
  auto file = EventFile::create(dir.file("tensorboard"), 1, [&] { return clock += 0.25; });
  ASSERT_TRUE(file.ok()) << file.status().message();
  EventFile& events = **file;
  events.write(MetricsType::kRun, {{"step", int64_t{0}}, {"steps", int64_t{9}}});
  const std::vector<std::vector<int64_t>> loads = {{}, {1, 1, 2, 0}, {4, 0, 0, 0}};
  events.write(MetricsType::kStep, {{"step", int64_t{1}},
                                    {"loss", 2.5},
                                    {"grad_norm", NAN},
                                    {"skipped", false},
                                    {"tokens", int64_t{16384}},
                                    {"stalls", std::vector<double>{1, 2}},
                                    {"experts", expert_loads(loads)}});
  events.write(MetricsType::kEval, {{"step", int64_t{300}}, {"loss", 2.25}});
  events.write(MetricsType::kWarn, {{"step", int64_t{300}}, {"text", std::string("no number")}});
  EXPECT_EQ(get_file(events.path()), get_file(std::string(PAGODA_GOLDEN_DIR) + "/events.tfevents"));
}

TEST(EventFile, EachProcessHasAFileOfItsOwn) {
  TempDir dir;
  const std::string folder = dir.file("tensorboard");
  auto first = EventFile::create(folder, 1, [] { return 1700000000.0; });
  ASSERT_TRUE(first.ok()) << first.status().message();
  const std::string name = std::filesystem::path((*first)->path()).filename();
  EXPECT_TRUE(name.starts_with("events.out.tfevents.1700000000.")) << name;
  EXPECT_EQ(EventFile::create(folder, 1, [] { return 1700000000.0; }).status().code(),
            Exit::kCannotCreate)
      << "the same second of the same process";
  EXPECT_TRUE(EventFile::create(folder, 7, [] { return 1700000001.0; }).ok());
}

TEST(EventFile, NeedsAFolder) {
  TempDir dir;
  put_file(dir.file("file"), "");
  std::filesystem::create_directory(dir.file("real"));
  std::filesystem::create_directory_symlink(dir.file("real"), dir.file("link"));
  for (const char* name : {"file", "link", "missing/tensorboard"}) {
    EXPECT_EQ(EventFile::create(dir.file(name), 1).status().code(), Exit::kCannotCreate) << name;
  }
}

}  // namespace
}  // namespace pagoda
