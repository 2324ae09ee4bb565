// What `pagoda doctor` says about processes that a launcher started together: the machine of each,
// and whether they reach each other in the ways that a run has.
#pragma once

#include <string>
#include <vector>

#include "cli/doctor/doctor_report.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {

struct DoctorRank {
  std::string host;
  std::string kernel_set;
  std::string text, json;  // DoctorReport's
};

struct RanksReport {
  std::vector<DoctorRank> ranks;
  std::string mpi;                    // the library, and who started the processes
  std::string messages, heartbeat;    // why ranks do not reach each other by it; empty: they do
  std::vector<std::string> warnings;  // what makes a run on these machines worse

  std::string text() const;
  std::string json() const;
};

// All ranks call it, each with its own machine, and get the same. Errors are the communicator's.
Result<RanksReport> examine_ranks(MpiCommunicator& all, const DoctorReport& mine);

}  // namespace pagoda
