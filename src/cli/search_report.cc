#include "cli/search_report.h"

#include "base/bytes.h"
#include "cli/plan_report.h"
#include "model/json.h"

namespace pagoda {

std::string SearchReport::text() const {
  const ParameterCount count = count_parameters(model.shape);
  std::string text = strf("model     %s (%s): %s parameters, %s active\n", model.name.c_str(),
                          model.family.c_str(), grouped_digits(count.total).c_str(),
                          grouped_digits(count.active).c_str()) +
                     strf("cluster   %s\nrun       %s tokens a step; %zu ways fit\n", where.c_str(),
                          grouped_digits(tokens).c_str(), ways.size()) +
                     "            step s   tokens/s  MFU  of each device\n";
  for (size_t i = 0; i < ways.size() && i < shown; ++i) {
    const SearchedWay& way = ways[i];
    text += strf("%8zu %9.4g %10.4g %4.1f %%  %11s  %s\n", i + 1, way.step_s,
                 static_cast<double>(tokens) / way.step_s, 100 * way.mfu,
                 format_bytes(way.device_bytes).c_str(), way.text().c_str());
  }
  return text;
}

std::string SearchReport::json() const {
  const ParameterCount count = count_parameters(model.shape);
  Json json = {{"model", model.name},
               {"parameters", count.total},
               {"active_parameters", count.active},
               {"cluster", where},
               {"tokens_per_step", tokens},
               {"fits", !ways.empty()}};
  for (size_t i = 0; i < ways.size() && i < shown; ++i) {
    const SearchedWay& way = ways[i];
    json["ways"].push_back({{"way", way.text()},
                            {"step_s", way.step_s},
                            {"tokens_per_s", static_cast<double>(tokens) / way.step_s},
                            {"mfu", way.mfu},
                            {"device_bytes", way.device_bytes},
                            {"pipeline", way.mesh.pipeline},
                            {"expert", way.mesh.expert},
                            {"data", way.mesh.data},
                            {"microbatches", way.microbatches}});
  }
  return json.dump();
}

}  // namespace pagoda
