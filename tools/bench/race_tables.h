// What programs share that print tables of executed layouts: their command line, and the layout
// that a planner would choose held against the fastest.
//
//   PROGRAM [DIR] [--only TABLES] [--rounds N] [--repeats N] [--hidden D] [--tiny]
//
// Pages go to a new folder in DIR, which is removed at the end. What is compared takes turns in the
// same rounds, and the figures are medians over them (tools/bench/layout_race.h). A round while
// others used the cores is made again, --repeats times at most. With a smaller --hidden size of the
// model, 256 if it is not given, steps take less time where products are slow. --tiny shows in
// minutes that the program works; its figures say nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/layout_race.h"

namespace pagoda {

// What was asked for, and what all tables found.
struct RaceSetting {
  std::string directory;
  std::unique_ptr<Storage> storage;
  int rounds = 3, most_repeats = 3;
  int64_t hidden_size = 256;
  bool tiny = false;
  int races = 0, repeats = 0;         // repeats: of a round
  std::vector<double> regrets = {};   // of note_choice()
  std::vector<double> searched = {};  // the same of layouts that a search found
  std::vector<double> slowness = {};  // LayoutRace::slowness() of all
  std::vector<double> errors = {};    // sizes of simulated steps' errors, of tables that say them

  LayoutRace race(const TrainedStep& step, int steps) {
    return LayoutRace(directory + strf("/race-%d", ++races), storage.get(), step, steps);
  }
  void run(LayoutRace& of) const { of.run(rounds, most_repeats); }
};

// Holds the layout that a planner would choose among these against the fastest: prints both, adds
// to the regrets how much slower than the fastest it was, and says whether that is at most 5 %.
// `found`: the one of them that the search found (LayoutRace::search()), which is held against the
// fastest too, in the same way; empty: there is none.
void note_choice(RaceSetting& setting, const LayoutRace& race, std::span<const std::string> layouts,
                 const std::string& found = "");
// Adds the sizes of the simulated steps' errors, but for a layout that is the same run as one
// before it, and says whether their median is at most 5 % and their ninth decile at most 10 %.
void note_errors(RaceSetting& setting, const LayoutRace& race,
                 std::span<const std::string> layouts);
// Counts repeats of a race and writes out what was printed.
void finish(RaceSetting& setting, const LayoutRace& race);

struct RaceTable {
  const char* name;
  std::function<void(RaceSetting&)> print;
};

// Prints the tables that the command line asks for, how long each took, and what errors and regrets
// there were in all, held against the same bounds; for errors there must be 40. Returns the
// program's exit code.
int print_tables(int argc, char** argv, const char* program, std::span<const RaceTable> tables);

}  // namespace pagoda
