// Two models at once on slowed CPU devices whose network takes time, as Aurora's Figures 11b to 11d
// have it, beside what its formulas say (plan/exchange/inference_time.h). Not installed.
//
//   colocation_tables [DIR] [--rounds N] [--hidden D] [--tiny]
//                                       pages go to a new folder in DIR, removed at the end
//
//   11b  one model on unequal devices: experts at home by recorded routing, and at random (RGA)
//   11c  two models on equal devices: one after the other, each by itself; both at once, colocated
//        as planned and at random (REC); each by itself on half of the devices (Lina)
//   11d  the same on unequal devices (RGA + REC)
//
// A pass takes 16 prompts through all layers to their next tokens, which are those of a model by
// itself, or the program ends. Routing is imposed: each layer's experts are of lognormal
// popularity, sigma 1, and chosen token by token. A device's network card sends one piece at a time
// and takes one at a time (parallel/slow_link.h), and both models share it; rates are such
// that an all-to-all takes as long as experts do on average. The simulated times are told what a
// row in experts, a token before and after them, and what is outside of layers took in the runs of
// each model by itself; and how many rows go where. Equation (1) is a model by itself, table 2 two
// at once.
//
// Prints medians over N rounds (3), in which all ways take turns. A pass should take some tenths of
// a second: on a fast machine it does with a larger hidden size D of the models (256). --tiny shows
// in seconds that the program works; its figures say nothing.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/race/timing.h"
#include "plan/exchange/colocated_homes.h"
#include "plan/exchange/expert_assignment.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tools/bench/served_run.h"

namespace pagoda {
namespace {

constexpr int kDraws = 3;  // of random places

// A layer as it is in a session: parts of the tokens at their devices, as many as there are
// experts, the last ones empty.
struct Laid {
  MoeLayerLoad load;
  std::vector<int> homes, parts;

  PlacedLayer placed() const { return {load, homes, parts}; }
};

Laid lay(const ServedRun& run, const ServedCosts& costs, int64_t layer) {
  const Session& session = run.session();
  const std::vector<double> none(kExperts, 0);
  Laid laid{{SquareMatrix<double>(kExperts), none, none, none}, {}, {}};
  const int devices = session.shape().devices;
  CHECK(devices <= kExperts);
  for (int p = 0; p < kExperts; ++p) {
    laid.parts.push_back(p % devices);
    if (p >= devices) continue;
    const auto tokens = static_cast<double>(run.tokens_of(p));
    laid.load.gate_s[static_cast<size_t>(p)] = tokens * costs.before_s;
    laid.load.aggregate_s[static_cast<size_t>(p)] = tokens * costs.after_s;
  }
  const auto row_bytes = static_cast<double>(2 * run.model().sizes.hidden_size);
  for (int e = 0; e < kExperts; ++e) {
    const auto record = static_cast<size_t>(session.shape().expert(layer, e));
    laid.homes.push_back(session.shape().records[record].device);
    for (int64_t i = 0; i < kSequences; ++i) {
      const int b = session.options().sequence_microbatch[static_cast<size_t>(i)];
      const auto rows = static_cast<double>(run.model().trace.steps[0].routing[static_cast<size_t>(
          i)][static_cast<size_t>(layer)][static_cast<size_t>(e)]);
      laid.load.traffic_bytes.at(session.shape().attending(layer, b), e) += rows * row_bytes;
      laid.load.ffn_s[static_cast<size_t>(e)] += rows * costs.row_s;
    }
  }
  return laid;
}

// Devices and their network.
struct Cluster {
  std::vector<Throttle> devices;
  std::shared_ptr<NetworkCards> cards;  // null until a rate is known

  std::vector<ServingDevice> serving() const {
    std::vector<ServingDevice> serving;
    for (size_t d = 0; d < devices.size(); ++d) {
      serving.push_back({cards->bytes_per_s(static_cast<int>(d)), 1 / devices[d].experts});
    }
    return serving;
  }
  // Half of the devices: the neighbours from `first` on, with their cards.
  Cluster half(size_t first) const {
    Cluster half;
    std::vector<double> rates;
    for (size_t d = first; d < first + devices.size() / 2; ++d) {
      rates.push_back(cards->bytes_per_s(static_cast<int>(d)));
      half.devices.push_back(devices[d]);
    }
    half.cards = std::make_shared<NetworkCards>(rates);
    return half;
  }
};

// Returns the seconds of a pass.
double simulated_alone_s(const ServedSetting& setting, const ServedRun& run,
                         const ServedCosts& costs, const Cluster& cluster) {
  double seconds = costs.outside_s;
  for (int64_t l = 0; l < setting.layers(); ++l) {
    const Laid laid = lay(run, costs, l);
    seconds += exclusive_time_s(need(device_phases(laid.placed(), cluster.serving())));
  }
  return seconds;
}

double simulated_both_s(const ServedSetting& setting, const ServedRun& a, const ServedCosts& of_a,
                        const ServedRun& b, const ServedCosts& of_b, const Cluster& cluster) {
  double seconds = of_a.outside_s + of_b.outside_s;
  for (int64_t l = 0; l < setting.layers(); ++l) {
    const Laid first = lay(a, of_a, l), second = lay(b, of_b, l);
    seconds +=
        colocated_times(need(colocated_phases(first.placed(), second.placed(), cluster.serving())))
            .gate_a_s;
  }
  return seconds;
}

std::vector<int> random_homes(const RunShape& shape, uint64_t seed) {
  std::vector<int> homes(shape.records.size(), -1);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const std::vector<int> order =
        random_assignment(kExperts, 100 * seed + static_cast<uint64_t>(l));
    for (int64_t e = 0; e < kExperts; ++e) {
      homes[static_cast<size_t>(shape.expert(l, e))] =
          order[static_cast<size_t>(e)] * shape.devices / static_cast<int>(kExperts);
    }
  }
  return homes;
}

// A model on a cluster, with these homes or those of Aurora section 5.1.
std::unique_ptr<ServedRun> run_alone(ServedSetting& setting, const ServedModel& model,
                                     const Cluster& cluster,
                                     const std::vector<int>* homes = nullptr) {
  SessionOptions options = served_options(setting, model, cluster.devices);
  const RunShape shape = make_run_shape(model_shape(model.folder.config()), options);
  std::vector<double> speeds;
  for (const Throttle& throttle : cluster.devices) speeds.push_back(1 / throttle.experts);
  options.homes = homes ? *homes : need(homes_by_routing(shape, model.trace, speeds));
  return std::make_unique<ServedRun>(model, setting.storage.get(), options, cluster.cards);
}

struct Pair {
  std::unique_ptr<ServedRun> a, b;
  ServedCosts of_a, of_b;
};

struct Homes {
  std::vector<int> of_a, of_b;
};

// Both on all devices of a cluster, in turns.
Pair run_both(ServedSetting& setting, const ServedModel& a, const ServedModel& b,
              const Cluster& cluster, const Homes& homes) {
  SessionOptions of_a = served_options(setting, a, cluster.devices);
  SessionOptions of_b = served_options(setting, b, cluster.devices);
  for (size_t d = 0; d < cluster.devices.size(); ++d) {
    of_a.turns.push_back(std::make_shared<DeviceTurn>());
  }
  of_b.turns = of_a.turns;
  of_a.homes = homes.of_a;
  of_b.homes = homes.of_b;
  Storage* storage = setting.storage.get();
  return {std::make_unique<ServedRun>(a, storage, of_a, cluster.cards),
          std::make_unique<ServedRun>(b, storage, of_b, cluster.cards),
          {},
          {}};
}

std::vector<double> shares_of(const ServedRun& run) {
  std::vector<double> shares;
  for (int d = 0; d < run.session().shape().devices; ++d) {
    shares.push_back(static_cast<double>(run.tokens_of(d)) /
                     static_cast<double>(kSequences * run.model().prompt_tokens()));
  }
  return shares;
}

Homes planned_homes(const Pair& alone, const Cluster& cluster) {
  const std::vector<double> attends = shares_of(*alone.a);
  const auto view = [&](const ServedRun& run, const ServedCosts& costs) {
    return ColocatedModel{run.session().shape(), run.model().trace, costs.row_s,
                          static_cast<double>(2 * run.model().sizes.hidden_size), attends};
  };
  ColocatedHomes homes = need(
      colocated_homes(view(*alone.a, alone.of_a), view(*alone.b, alone.of_b), cluster.serving()));
  return {std::move(homes.of_a), std::move(homes.of_b)};
}

// Returns the seconds of a pass.
double alone_s(const ServedSetting& setting, ServedRun& run) {
  const TimingClock timer;
  run.serve(setting.passes);
  return timer.finish(0).seconds / setting.passes;
}

double both_s(const ServedSetting& setting, const Pair& pair) {
  const TimingClock timer;
  std::thread beside([&] { pair.b->serve(setting.passes); });
  pair.a->serve(setting.passes);
  beside.join();
  return timer.finish(0).seconds / setting.passes;
}

// A way to serve, timed round after round.
struct Way {
  std::string name;
  double simulated_s = 0;
  std::function<double()> serve_s;
  std::vector<double> seconds = {};

  double median_s() const { return quantile(seconds, 0.5); }
};

void race(const ServedSetting& setting, std::vector<Way>& ways) {
  for (int round = 0; round < setting.rounds; ++round) {
    for (Way& way : ways) way.seconds.push_back(way.serve_s());
  }
}

void print_ways(const std::vector<Way>& ways, const Way& planned) {
  std::printf("  %-58s  measured ms  over planned   simulated ms  over planned\n", "");
  for (const Way& way : ways) {
    std::printf("  %-58s  %11.1f  %12.2f   %12.1f  %12.2f\n", way.name.c_str(),
                1e3 * way.median_s(), way.median_s() / planned.median_s(), 1e3 * way.simulated_s,
                way.simulated_s / planned.simulated_s);
  }
  std::fflush(stdout);
}

// The rates with which the first model's all-to-alls take as long as its experts on average: with
// even routing a device sends of each of its rows that have not stayed, one part in all devices.
void set_cards(const ServedSetting& setting, Cluster& cluster, const ServedModel& model,
               const ServedCosts& costs) {
  const auto devices = static_cast<double>(cluster.devices.size());
  const double rows =
      static_cast<double>(kSequences * setting.prompt_tokens() * model.sizes.experts_per_token) /
      devices;
  const double bytes =
      rows * (devices - 1) / devices * static_cast<double>(2 * model.sizes.hidden_size);
  double fastest = cluster.devices.front().experts;
  for (const Throttle& throttle : cluster.devices) fastest = std::min(fastest, throttle.experts);
  std::vector<double> rates;
  for (const Throttle& throttle : cluster.devices) {
    rates.push_back(bytes / costs.experts_s * fastest / throttle.experts);
  }
  cluster.cards = std::make_shared<NetworkCards>(rates);
}

// Each by itself on all devices, once their network is known.
Pair measured_alone(ServedSetting& setting, const ServedModel& a, const ServedModel& b,
                    Cluster& cluster) {
  {
    const auto first = run_alone(setting, a, cluster);
    set_cards(setting, cluster, a, measure_costs(setting, *first));
  }
  Pair alone{run_alone(setting, a, cluster), run_alone(setting, b, cluster), {}, {}};
  alone.of_a = measure_costs(setting, *alone.a);
  alone.of_b = measure_costs(setting, *alone.b);
  return alone;
}

void one_model(ServedSetting& setting, const ServedRun& run, const ServedCosts& costs,
               const Cluster& cluster) {
  std::printf("\nFigure 11b: one model on unequal devices (the paper: RGA 1.36 to 1.81 x)\n");
  std::vector<Way> ways;
  std::vector<std::unique_ptr<ServedRun>> runs;
  runs.push_back(run_alone(setting, run.model(), cluster));
  for (uint64_t draw = 1; draw <= kDraws; ++draw) {
    const std::vector<int> homes = random_homes(run.session().shape(), draw);
    runs.push_back(run_alone(setting, run.model(), cluster, &homes));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    CHECK(runs[i]->next() == run.next(), "other homes, other tokens");
    ways.push_back({i == 0 ? "experts at home by recorded routing" : strf("at random, draw %zu", i),
                    simulated_alone_s(setting, *runs[i], costs, cluster),
                    [&setting, &runs, i] { return alone_s(setting, *runs[i]); }});
  }
  race(setting, ways);
  print_ways(ways, ways.front());
}

// The ways of two models, the planned one first.
void two_models(ServedSetting& setting, const char* title, const Pair& alone,
                const Cluster& cluster) {
  std::printf("\n%s\n", title);
  const ServedModel &a = alone.a->model(), &b = alone.b->model();
  std::vector<Pair> pairs;
  pairs.push_back(run_both(setting, a, b, cluster, planned_homes(alone, cluster)));
  for (uint64_t draw = 1; draw <= kDraws; ++draw) {
    pairs.push_back(run_both(setting, a, b, cluster,
                             {random_homes(alone.a->session().shape(), draw),
                              random_homes(alone.b->session().shape(), 50 + draw)}));
  }
  const Cluster left = cluster.half(0), right = cluster.half(cluster.devices.size() / 2);
  const auto half_a = run_alone(setting, a, left), half_b = run_alone(setting, b, right);
  CHECK(half_a->next() == alone.a->next() && half_b->next() == alone.b->next(),
        "other devices, other tokens");
  std::vector<Way> ways;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const Pair& pair = pairs[i];
    CHECK(pair.a->next() == alone.a->next() && pair.b->next() == alone.b->next(),
          "two models at once have other tokens than each alone");
    ways.push_back({i == 0 ? "both at once, colocated as planned"
                           : strf("both at once, colocated at random, draw %zu", i),
                    simulated_both_s(setting, *pair.a, alone.of_a, *pair.b, alone.of_b, cluster),
                    [&setting, &pair] { return both_s(setting, pair); }});
  }
  ways.push_back({"one after the other, each by itself on all devices",
                  simulated_alone_s(setting, *alone.a, alone.of_a, cluster) +
                      simulated_alone_s(setting, *alone.b, alone.of_b, cluster),
                  [&] { return alone_s(setting, *alone.a) + alone_s(setting, *alone.b); }});
  ways.push_back({"each by itself on half of the devices (Lina)",
                  std::max(simulated_alone_s(setting, *half_a, alone.of_a, left),
                           simulated_alone_s(setting, *half_b, alone.of_b, right)),
                  [&] { return std::max(alone_s(setting, *half_a), alone_s(setting, *half_b)); }});
  race(setting, ways);
  print_ways(ways, ways.front());
  const Way& one_by_one = ways[pairs.size()];
  const double gain = one_by_one.median_s() / ways.front().median_s();
  const double simulated = one_by_one.simulated_s / ways.front().simulated_s;
  std::printf(
      "  gain of both at once over one after the other: %.3f measured, %.3f simulated: %s\n"
      "  tokens of each are those that it has alone\n",
      gain, simulated,
      gain >= 0.95 * simulated ? "no less than the simulated - 5 %"
                               : "LESS than the simulated - 5 %");
  std::fflush(stdout);
}

void describe(const char* name, const ServedCosts& costs, const Cluster& cluster) {
  std::printf(
      "  %s: a layer's experts %.2f ms on average, %.1f us a row without throttle; before "
      "them %.1f us a token, after them %.2f us; outside of layers %.2f ms a pass; %s\n",
      name, 1e3 * costs.experts_s, 1e6 * costs.row_s, 1e6 * costs.before_s, 1e6 * costs.after_s,
      1e3 * costs.outside_s, strf("%.1f MB/s", 1e-6 * cluster.cards->bytes_per_s(0)).c_str());
}

void tables(ServedSetting& setting) {
  const ServedModel a = make_served_model(setting, "a", 1, 2, 11),
                    b = make_served_model(setting, "b", 1.5, 1, 12);
  const Throttle slow{8, 8}, fast{4, 4};
  Cluster equal{{slow, slow, slow, slow}, nullptr};
  {
    const Pair alone = measured_alone(setting, a, b, equal);
    std::printf("Equal devices, cpu/8*4\n");
    describe("a", alone.of_a, equal);
    describe("b", alone.of_b, equal);
    two_models(setting, "Figure 11c: two models on equal devices (the paper: Lina 1.25 to 2.38 x)",
               alone, equal);
  }
  Cluster unequal{{fast, slow, fast, slow}, nullptr};
  const Pair alone = measured_alone(setting, a, b, unequal);
  std::printf("\nUnequal devices, cpu/4 and cpu/8, two of each; networks as fast\n");
  describe("a", alone.of_a, unequal);
  describe("b", alone.of_b, unequal);
  one_model(setting, *alone.a, alone.of_a, unequal);
  two_models(setting, "Figure 11d: two models on unequal devices (the paper: Lina 1.91 to 3.54 x)",
             alone, unequal);
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  using namespace pagoda;
  ServedSetting setting;
  std::string directory = ".";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      setting.tiny = true;
      setting.rounds = setting.passes = 1;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      setting.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--hidden") == 0 && i + 1 < argc) {
      setting.hidden_size = std::max(32, std::atoi(argv[++i]) / 32 * 32);
    } else if (argv[i][0] != '-') {
      directory = argv[i];
    } else {
      std::fprintf(stderr, "usage: colocation_tables [DIR] [--rounds N] [--hidden D] [--tiny]\n");
      return 2;
    }
  }
  setting.directory = directory + strf("/colocation-tables-%d", static_cast<int>(getpid()));
  std::filesystem::create_directories(setting.directory);
  setting.storage = need(open_storage(IoKind::kAuto, setting.directory));
  tables(setting);
  setting.storage.reset();
  std::filesystem::remove_all(setting.directory);
}
