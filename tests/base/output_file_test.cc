// Output takes the place of a regular file or of nothing; what else has its name stays.
#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

#include "base/descriptor.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class OutputFileTest : public testing::Test {
 protected:
  mode_t kind() const {
    struct stat info = {};
    EXPECT_EQ(lstat(path_.c_str(), &info), 0);
    return info.st_mode & S_IFMT;
  }
  void expect_refused() const {
    EXPECT_EQ(check_output(path_).code(), Exit::kCannotCreate);
    EXPECT_EQ(write_output(path_, "new").code(), Exit::kCannotCreate);
    EXPECT_EQ(write_text_file(path_, "new").code(), Exit::kCannotCreate);
  }

  TempDir dir_;
  const std::string path_ = dir_.file("out");
  Watchdog watchdog_{"an output waits for something", std::chrono::seconds(60)};
};

TEST_F(OutputFileTest, ReplacesAFileWholeAndLeavesNothingBeside) {
  for (const char* content : {"one", "two"}) {
    EXPECT_TRUE(check_output(path_).ok());
    EXPECT_TRUE(write_output(path_, content).ok());
    EXPECT_EQ(get_file(path_), content);
    EXPECT_EQ(files_in(dir_.path()), Names{"out"});
  }
  {
    auto file = OutputFile::create(path_);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->append("x", 1).ok());
    const Names names = files_in(dir_.path());
    ASSERT_EQ(names.size(), 2u);
    EXPECT_TRUE(is_unfinished(names[1], "out")) << names[1];
    EXPECT_FALSE(is_unfinished("out.tmp", "out"));
    EXPECT_FALSE(is_unfinished(names[1], "ou"));
  }
  EXPECT_EQ(get_file(path_), "two") << "without commit()";
  EXPECT_EQ(files_in(dir_.path()), Names{"out"});
}

TEST_F(OutputFileTest, AFileOfTheUsersNamedTmpStays) {
  put_file(path_ + ".tmp", "years of work");
  EXPECT_TRUE(write_text_file(path_, "new").ok());
  EXPECT_EQ(get_file(path_ + ".tmp"), "years of work");
}

TEST_F(OutputFileTest, LinksStayAndSoDoesWhatTheyLeadTo) {
  put_file(dir_.file("real"), "years of work");
  fs::create_symlink(dir_.file("real"), path_);
  expect_refused();
  EXPECT_EQ(kind(), mode_t{S_IFLNK});
  EXPECT_EQ(get_file(dir_.file("real")), "years of work");
  fs::remove(path_);
  fs::create_symlink(dir_.file("nothing"), path_);
  expect_refused();
  EXPECT_FALSE(fs::exists(dir_.file("nothing")));
}

TEST_F(OutputFileTest, APipeIsWrittenToWhereItIsRead) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(write_output(path_, "new").code(), Exit::kCannotCreate) << "nobody reads it";
  EXPECT_EQ(write_text_file(path_, "new").code(), Exit::kCannotCreate);
  const Descriptor reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  fs::create_symlink(path_, dir_.file("link"));  // /dev/stdout is such a link
  for (const std::string& name : {path_, dir_.file("link")}) {
    EXPECT_TRUE(check_output(name).ok());
    EXPECT_TRUE(write_output(name, "new").ok());
    char got[8] = {};
    EXPECT_EQ(::read(reader.get(), got, sizeof(got)), 3);
    EXPECT_EQ(std::string(got), "new");
  }
  EXPECT_EQ(kind(), mode_t{S_IFIFO});
}

TEST_F(OutputFileTest, ADeviceIsWrittenToAndStays) {
  if (::mknod(path_.c_str(), S_IFCHR | 0600, makedev(1, 3)) != 0) {  // /dev/null is such a device
    GTEST_SKIP() << "SKIPPED: making a device needs root";
  }
  EXPECT_TRUE(check_output(path_).ok());
  const Status written = write_output(path_, "new");
  EXPECT_EQ(kind(), mode_t{S_IFCHR});
  if (!written.ok()) GTEST_SKIP() << "SKIPPED: no devices on this file system";
  EXPECT_EQ(write_text_file(path_, "new").code(), Exit::kCannotCreate);
  EXPECT_EQ(kind(), mode_t{S_IFCHR});
}

}  // namespace
}  // namespace pagoda
