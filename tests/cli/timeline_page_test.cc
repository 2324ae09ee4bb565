// The picture of a timeline: what each column of pixels shows of pieces that are wider and narrower
// than it. Expected values are counted by hand from the pieces.
#include "cli/plan/timeline_page.h"

#include <gtest/gtest.h>

#include <regex>

namespace pagoda {
namespace {

struct Rect {
  std::string kind, title;
  double x = 0, y = 0, width = 0, opacity = 0;
};

// What is drawn in lanes, in the order of the page.
std::vector<Rect> rects_of(const std::string& html) {
  static const std::regex pattern(
      R"re(<rect class="(\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+" )re"
      R"re(opacity="([\d.]+)"><title>([^<]*)</title>)re");
  std::vector<Rect> rects;
  for (std::sregex_iterator at(html.begin(), html.end(), pattern), end; at != end; ++at) {
    rects.push_back({(*at)[1], (*at)[6], std::stod((*at)[2]), std::stod((*at)[3]),
                     std::stod((*at)[4]), std::stod((*at)[5])});
  }
  return rects;
}

double ink_of(const std::vector<Rect>& rects) {
  double ink = 0;
  for (const Rect& rect : rects) ink += rect.width * rect.opacity;
  return ink;
}

// A page on which a second is a pixel, with one lane.
TimelinePage page_of(std::vector<TimelinePage::Piece> pieces) {
  TimelinePage page;
  page.end_s = TimelinePage::kColumns;
  page.lanes.push_back({"compute 0", "layer", std::move(pieces)});
  return page;
}

// Ten pieces a pixel that alternate between two kinds, each narrower than a third of a pixel.
TEST(TimelinePage, FullLaneOfPiecesNarrowerThanPixelsIsDrawnFull) {
  std::vector<TimelinePage::Piece> pieces;
  for (int i = 0; i < 5 * TimelinePage::kColumns; ++i) {
    const double at_s = 0.2 * i;
    pieces.push_back({at_s, at_s + 0.0625, "attention", i / 600});
    pieces.push_back({at_s + 0.0625, at_s + 0.2, "experts", i / 600});
  }
  const std::vector<Rect> rects = rects_of(page_of(pieces).html());
  ASSERT_EQ(rects.size(), 1u);
  EXPECT_EQ(rects[0].kind, "experts") << "0.6875 of the time";
  EXPECT_EQ(rects[0].width, 1200);
  EXPECT_EQ(rects[0].opacity, 1);
  EXPECT_EQ(rects[0].title, "experts, layers 0 to 9: 0 to 1200 s, 69 % of it; lane busy 100 %");
}

// A quarter of the time one kind in many pieces, an eighth another; then nothing, and at the end a
// piece of three pixels and a half that begins in the middle of one.
TEST(TimelinePage, InkIsTheTimeThatALaneIsBusy) {
  std::vector<TimelinePage::Piece> pieces;
  for (int i = 0; i < 600; ++i) {
    pieces.push_back({i + 0.25, i + 0.375, "transfer"});
    pieces.push_back({i + 0.5, i + 0.75, "back"});
  }
  pieces.push_back({1000.5, 1004, "transfer"});
  const std::vector<Rect> rects = rects_of(page_of(pieces).html());
  ASSERT_EQ(rects.size(), 3u);
  EXPECT_NEAR(ink_of(rects), 600 * 0.375 + 3.5, 1e-6);
  EXPECT_EQ(rects[0].kind, "back");
  EXPECT_EQ(rects[0].width, 600);
  EXPECT_EQ(rects[0].opacity, 0.375);
  EXPECT_EQ(rects[1].width, 1) << "the pixel that is half busy";
  EXPECT_EQ(rects[1].opacity, 0.5);
  EXPECT_EQ(rects[2].x - rects[0].x, 1001);
  EXPECT_EQ(rects[2].width, 3);
  EXPECT_EQ(rects[2].opacity, 1);
}

// Neighbours of a kind stay apart where one is busier, and so do kinds that take turns.
TEST(TimelinePage, ColumnsThatDifferAreDrawnApart) {
  const std::vector<Rect> rects = rects_of(page_of({{0, 10, "attention", 0},
                                                    {10, 10.5, "attention", 1},
                                                    {11, 11.25, "attention", 1},
                                                    {11.25, 14, "experts", 1},
                                                    {14, 20, "attention", 2}})
                                               .html());
  ASSERT_EQ(rects.size(), 4u);
  const char* kinds[] = {"attention", "attention", "experts", "attention"};
  const double widths[] = {10, 1, 3, 6}, opacities[] = {1, 0.5, 1, 1};
  for (size_t i = 0; i < rects.size(); ++i) {
    EXPECT_EQ(rects[i].kind, kinds[i]) << i;
    EXPECT_EQ(rects[i].width, widths[i]) << i;
    EXPECT_EQ(rects[i].opacity, opacities[i]) << i;
  }
  EXPECT_NEAR(ink_of(rects), 19.5, 1e-6);
}

TEST(TimelinePage, EmptyLanesAndPiecesOfNoTimeDrawNothing) {
  EXPECT_TRUE(rects_of(page_of({}).html()).empty());
  EXPECT_TRUE(rects_of(page_of({{5, 5, "head", 0}, {1200, 1200, "head", 0}}).html()).empty());
}

}  // namespace
}  // namespace pagoda
