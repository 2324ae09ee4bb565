// What is done in a directory by name follows no link and takes no other one for it.
#include "base/directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/watchdog.h"

namespace pagoda {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class DirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(dir_.file("victim"));
    put_file(dir_.file("victim/thesis"), "years of work");
    fs::create_directory(dir_.file("own"));
  }
  void TearDown() override { EXPECT_EQ(get_file(dir_.file("victim/thesis")), "years of work"); }
  Directory own() const { return Directory::open(dir_.file("own"), Links::kRefuse).take(); }

  TempDir dir_;
};

TEST_F(DirectoryTest, NewFoldersHaveNamesOfTheirOwn) {
  const auto first = own().make_folder("scratch-"), second = own().make_folder("scratch-");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first.value().path(), second.value().path());
  EXPECT_EQ(files_in(dir_.file("own")).size(), 2u);
  EXPECT_EQ(fs::status(first.value().path()).permissions(), fs::perms::owner_all);
  EXPECT_TRUE(first.value().is_own());
}

TEST_F(DirectoryTest, RemovesATreeButNotWhatItsLinksLeadTo) {
  fs::create_directories(dir_.file("own/a/b/c"));
  put_file(dir_.file("own/a/b/file"), "x");
  fs::create_directory_symlink(dir_.file("victim"), dir_.file("own/a/b/c/link"));
  fs::create_symlink(dir_.file("victim/thesis"), dir_.file("own/a/link"));
  EXPECT_TRUE(own().remove_folder("a").ok());
  EXPECT_TRUE(own().remove_folder("a").ok()) << "absent";
  EXPECT_TRUE(files_in(dir_.file("own")).empty());
}

TEST_F(DirectoryTest, ALinkIsNoFolder) {
  fs::create_directory_symlink(dir_.file("victim"), dir_.file("own/link"));
  EXPECT_EQ(own().folder("link").status().code(), Exit::kBadData);
  EXPECT_EQ(own().remove_folder("link").code(), Exit::kBadData);
  EXPECT_EQ(own().remove_empty("link").code(), Exit::kBadData);
  EXPECT_TRUE(own().has_link("link"));
  EXPECT_FALSE(own().has_folder("link"));
  EXPECT_EQ(Directory::open(dir_.file("own/link"), Links::kRefuse).status().code(), Exit::kBadData);
  EXPECT_TRUE(Directory::open(dir_.file("own/link"), Links::kFollow).ok());
  EXPECT_TRUE(own().remove_file("link").ok());
  EXPECT_FALSE(own().has_link("link"));
}

// Whoever puts another folder in its place changes nothing for who holds it.
TEST_F(DirectoryTest, StaysTheOneThatWasOpened) {
  const Directory held = own();
  put_file(dir_.file("own/file"), "x");
  fs::rename(dir_.file("own"), dir_.file("moved"));
  fs::create_directory_symlink(dir_.file("victim"), dir_.file("own"));
  EXPECT_EQ(held.names().value(), Names{"file"});
  EXPECT_TRUE(held.remove_file("thesis").ok());
  EXPECT_TRUE(held.remove_file("file").ok());
  EXPECT_TRUE(files_in(dir_.file("moved")).empty());
}

TEST_F(DirectoryTest, FilesAreRegularOnes) {
  const Watchdog watchdog("a FIFO was waited for", std::chrono::seconds(60));
  ASSERT_EQ(mkfifo(dir_.file("own/fifo").c_str(), 0600), 0);
  fs::create_symlink(dir_.file("victim/thesis"), dir_.file("own/link"));
  for (const char* name : {"fifo", "link"}) {
    EXPECT_EQ(own().file(name).status().code(), Exit::kBadData) << name;
    EXPECT_EQ(own().make_file(name, "y").code(), Exit::kCannotCreate) << name;
  }
  EXPECT_EQ(own().file("none").status().code(), Exit::kNoInput);
  EXPECT_TRUE(own().make_file("new", "y").ok());
  EXPECT_TRUE(own().file("new").ok());
  EXPECT_EQ(get_file(dir_.file("own/new")), "y");
}

TEST_F(DirectoryTest, OneHolderAtATime) {
  const Directory first = own();
  EXPECT_EQ(first.lock(), Directory::Lock::kTaken);
  EXPECT_EQ(own().lock(), Directory::Lock::kTakenByAnother);
}

// A tree may come from anywhere.
TEST_F(DirectoryTest, DepthIsBounded) {
  std::string path = dir_.file("own/deep");
  for (int i = 0; i < 40; ++i) path += "/d";
  fs::create_directories(path);
  EXPECT_EQ(own().remove_folder("deep").code(), Exit::kIoError);
  EXPECT_TRUE(fs::exists(path));
}

}  // namespace
}  // namespace pagoda
