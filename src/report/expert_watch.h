// Notices experts that a router has stopped choosing, or chooses far too often. Such a router
// seldom mends itself, and the run is better stopped than let go on to its end.
//
// Steps are taken in windows, each of as many steps. Over a window an expert is dead if it got no
// token although an even router would have given it kEnough, and overloaded if it got more than
// `most` times the mean. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda {

class ExpertWatch {
 public:
  // An expert that chance leaves out although it is to get so many tokens is one in 10^8.
  static constexpr int64_t kEnough = 20;

  // steps: of a window, 0: nothing is noticed. most: 0: no expert is overloaded.
  ExpertWatch(int64_t steps, double most) : steps_(steps), most_(most) {}

  // Takes a step's [layer][E], empty for dense layers. At the end of a window returns a text for
  // each layer that has other dead or overloaded experts than when it was last told of:
  // "layer 3: experts 2 and 7 had no token in 100 steps".
  std::vector<std::string> note(const std::vector<std::vector<int64_t>>& tokens_per_expert);

 private:
  struct Layer {
    std::vector<int64_t> tokens;            // of the window, by expert
    std::vector<int64_t> dead, overloaded;  // they were told of
  };
  std::string look_at(size_t layer);

  int64_t steps_, noted_ = 0;
  double most_;
  std::vector<Layer> layers_;
};

}  // namespace pagoda
