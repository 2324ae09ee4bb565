// What the kernel tells of a card's link, from files as it writes them.
#include "hardware/pci_link.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

TEST(PciLink, ReadsGenerationAndWidth) {
  const TempDir dir;
  const std::string card = dir.file("0000:3b:00.0");
  ASSERT_TRUE(std::filesystem::create_directory(card));
  const auto link = [&] { return pci_link("0000:3B:00.0", dir.path()); };
  EXPECT_EQ(link().text(), "");
  put_file(card + "/current_link_speed", "16.0 GT/s PCIe\n");
  put_file(card + "/current_link_width", "16\n");
  EXPECT_EQ(link().text(), "PCIe 4 x16");
  put_file(card + "/max_link_speed", "16.0 GT/s PCIe\n");
  put_file(card + "/max_link_width", "16\n");
  EXPECT_EQ(link().text(), "PCIe 4 x16");
  put_file(card + "/current_link_speed", "2.5 GT/s PCIe\n");
  EXPECT_EQ(link().text(), "PCIe 1 x16 now, up to 4 x16");
  const char* speeds[] = {"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"};
  for (int generation = 1; generation <= 6; ++generation) {
    put_file(card + "/current_link_speed", std::string(speeds[generation - 1]) + " GT/s PCIe\n");
    EXPECT_EQ(link().generation, generation);
  }
  put_file(card + "/current_link_speed", "Unknown\n");
  EXPECT_EQ(link().text(), "");
}

}  // namespace
}  // namespace pagoda
