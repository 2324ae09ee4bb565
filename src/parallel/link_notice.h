// What a rank tells every other one when the link is given up: why, and how far it has come with
// each flow between the two, so that both can end what is under way.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

struct LinkNotice {
  struct Flow {
    int channel = 0;
    bool sends = false;  // the rank that tells does
    int64_t parts = 0;   // begun
    bool operator==(const Flow&) const = default;
  };
  Status why{Exit::kInternal, ""};
  int by = 0;  // the rank that gave up first
  std::vector<Flow> flows;

  std::string to_text() const;
  // Nothing if the text is none, or says what cannot be: there are `ranks` ranks.
  static std::optional<LinkNotice> parse(const std::string& text, int ranks);
};

}  // namespace pagoda
