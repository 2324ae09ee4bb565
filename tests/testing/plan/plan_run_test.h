// Tests of the built `pagoda plan`, and clusters to plan for.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/testing/run_test.h"

namespace pagoda {

class PlanTest : public RunTest {
 protected:
  // A config.json. Rows of some thousand tokens are nearly all attention in it.
  static const char* const kSmallMixtral;

  static std::string configs(const std::string& name);  // a file of configs/
  // The model on a node of two A40 and one of two V100.
  Words small_on_two_kinds();
  ProcessResult plan(Words words);
  static Words on(const std::string& model, const std::string& machine);
  // A cluster's file: two nodes of two A40, with a network of so many GB/s between them.
  std::string two_nodes(const char* gb_s);
  std::string two_cpu_nodes();
  std::string two_nodes(const char* machine, const char* gb_s);
  // The page is one file, that asks for no other, and has these words.
  static void expect_page(const std::string& file, const Words& words);
  void expect_no_plan(const Words& words, int code, const std::string& names);
};

}  // namespace pagoda
