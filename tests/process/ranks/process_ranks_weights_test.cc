// `pagoda train` as several processes that mpirun starts on this machine: whatever they share and
// in whatever layout, the weights and copies are those of one process, also of a run that other
// numbers of processes go on with.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/trace_file.h"

namespace pagoda {
namespace {

class RanksTest : public MpiRunTest {
 protected:
  // The run with the smallest budgets with which that many processes do it. A refusal names that of
  // the lowest rank which is short.
  ProcessResult paged(int processes, Flags flags, const Words& more = {}) {
    flags["memory.device"] = flags["memory.host"] = "1KiB";
    while (true) {
      const ProcessResult result = mpirun(processes, train(flags, more));
      const std::string least = named_budget(result);
      if (least.empty()) return result;
      const bool device = result.err.find("memory.device is ") != std::string::npos;
      flags[device ? "memory.device" : "memory.host"] = least;
    }
  }
  // The first so many ranks have read pages again in each of the run's later steps.
  void expect_paged(const std::string& folder, size_t ranks) {
    int64_t steps = 0;
    for (const std::string& line : lines_of(get_file(dir_.file(folder + "/metrics.jsonl")))) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] != "step" || ++steps == 1) continue;
      for (size_t r = 0; r < ranks; ++r) EXPECT_GT(object["ranks"][r]["fetch_bytes"], 0) << line;
    }
    EXPECT_GT(steps, 1);
  }
  // What a traced run sent from process to process in turn.
  int64_t transfers_in_turn(const std::string& folder) {
    int64_t turns = 0;
    for (const TraceFile::Span& span : TraceFile::read(dir_.file(folder + "/trace.json")).spans) {
      turns += span.lane().starts_with("to rank ") && span.args.contains("turns");
    }
    return turns;
  }
  // What processes of a traced run received from each other, in messages.
  struct Received {
    int64_t weights = 0, sums = 0;  // of experts
    int64_t rows = 0;
  };
  Received received_in(const std::string& folder) {
    Received received;
    for (const TraceFile::Span& span : TraceFile::read(dir_.file(folder + "/trace.json")).spans) {
      if (!span.group.ends_with(" network") || !span.lane().starts_with("from rank ")) continue;
      const bool of_expert = span.name.find(" E") != std::string::npos;
      const bool page = span.name.find("receive page") != std::string::npos;
      (page ? received.weights : received.sums) += of_expert;
      received.rows += span.args.contains("rows");
    }
    return received;
  }
  // What the newest checkpoint says that each rank computed with.
  Words kernel_sets(const std::string& folder) {
    Words sets;
    for (const auto& step :
         std::filesystem::directory_iterator(dir_.file(folder + "/checkpoints"))) {
      if (!step.path().filename().string().starts_with("step-")) continue;
      const std::string line = lines_of(get_file(step.path().string() + "/MANIFEST"))[0];
      const auto manifest = nlohmann::json::parse(line);
      for (const auto& store : manifest["stores"]) sets.push_back(store["kernel_set"]);
    }
    return sets;
  }
  std::string kernel_set() {
    return nlohmann::json::parse(run({"--version", "--json"}).out)["kernel_set"];
  }
  // The ranks of one run do together what the process of the other does: their shares of the same
  // peak, each over its own time.
  void expect_same_work(const std::string& of_ranks, const std::string& alone) {
    const auto lines = [&](const std::string& folder) {
      std::vector<nlohmann::json> steps;
      for (const std::string& line : lines_of(get_file(dir_.file(folder + "/metrics.jsonl")))) {
        const auto object = nlohmann::json::parse(line);
        if (object["type"] == "step") steps.push_back(object);
      }
      return steps;
    };
    const auto work = [](const nlohmann::json& usage) {
      return usage["mfu"].get<double>() * usage["step_s"].get<double>();
    };
    const std::vector<nlohmann::json> together = lines(of_ranks), one = lines(alone);
    ASSERT_EQ(together.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      double sum = 0;
      for (const nlohmann::json& rank : together[i]["ranks"]) {
        EXPECT_GT(rank["mfu"], 0);
        sum += work(rank);
      }
      EXPECT_NEAR(sum / work(one[i]), 1, 1e-9);
    }
  }
};

TEST_F(RanksTest, TheWeightsOfOneProcess) {
  const ProcessResult alone = run(train(flags_of("alone", 6)));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const std::string expected = exported("alone");
  const ProcessResult two = mpirun(2, train(flags_of("two", 6)));
  EXPECT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(exported("two") == expected);
  EXPECT_EQ(losses("two"), losses("alone")) << "one metrics file, of rank 0";
  std::map<std::string, std::string> said;  // by one process, of the weights
  const std::string metrics = get_file(dir_.file("two/metrics.jsonl"));
  EXPECT_NE(metrics.find("\"ranks\":[{\"rank\":0,"), std::string::npos) << metrics.substr(0, 2000);
  EXPECT_NE(metrics.find("},{\"rank\":1,\"step_s\":"), std::string::npos);
  expect_same_work("two", "alone");
  EXPECT_EQ(kernel_sets("two"), Words(2, kernel_set()));
  for (const char* folder : {"two", "alone"}) {
    const Words of = {"--checkpoint", dir_.file(folder)};
    const ProcessResult eval =
        run(Words{"eval", "--json"} + of + Words{"--data.eval_path", dir_.file("text.jsonl")});
    EXPECT_EQ(eval.code, 0) << eval.err;
    said[folder] += eval.out;
    const ProcessResult generated =
        run(Words{"generate", "--max_new_tokens", "8", "--prompt", "row"} + of);
    EXPECT_EQ(generated.code, 0) << generated.err;
    said[folder] += generated.out;
  }
  EXPECT_EQ(said["two"], said["alone"]);
  const ProcessResult smallest = paged(2, flags_of("paged", 6));
  EXPECT_EQ(smallest.code, 0) << smallest.err;
  expect_paged("paged", 2);
  EXPECT_TRUE(exported("paged") == expected);
  // Experts may exchange homes, by these processes' own clocks.
  Flags moving = flags_of("moving", 6);
  moving["parallel.migrate_steps"] = "2";
  moving["parallel.ports"] = "27200:27299";
  const ProcessResult moved = mpirun(2, train(moving));
  EXPECT_EQ(moved.code, 0) << moved.err;
  EXPECT_TRUE(exported("moving") == expected);
  // Four processes, then two, then three, then one.
  const std::vector<std::pair<int, int64_t>> parts = {{4, 2}, {2, 3}, {3, 5}, {1, 6}};
  for (const auto& [processes, steps] : parts) {
    const Words more = processes == 4 ? Words() : Words{"--resume"};
    const Words words = train(flags_of("many", steps), more);
    const ProcessResult part = processes == 1 ? run(words) : mpirun(processes, words);
    EXPECT_EQ(part.code, 0) << part.err;
    size_t stores = 0;
    for (const auto& file : std::filesystem::directory_iterator(dir_.file("many/store"))) {
      stores += file.path().filename().string().starts_with("pages-");
    }
    EXPECT_EQ(stores, static_cast<size_t>(processes));
  }
  EXPECT_TRUE(exported("many") == expected);
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("two")}).code, 0);
}

// How a run is divided.
struct Mesh {
  const char* folder;
  int processes, stages;
  const char* order;
  const char* devices;  // of each process
  int64_t steps;
  const char* exchange = "auto";
  const char* layout = "pipeline";
  const char* copies = "1";
  std::vector<const char*> cards = {};  // of the processes
  bool paged = false;
};

// Stages of one process or more, with a device or two each, in every order and exchange, in zebra
// and in copies, paged too; the run of `many` goes on with other stages of other processes twice.
// Whoever ends it, anybody can export it.
TEST_F(RanksTest, StagesOfProcesses) {
  const Mesh meshes[] = {
      {"three", 3, 3, "gpipe", "cpu", 6},
      {"zebra", 2, 1, "1f1b", "cpu*2", 6, "auto", "zebra"},
      {"striped", 4, 2, "breadth_first", "cpu", 6, "auto", "zebra"},
      {"copies", 4, 2, "1f1b", "cpu", 6, "auto", "pipeline", "2"},
      {"pairs", 2, 2, "breadth_first", "cpu*2", 6},
      {"rounds", 2, 1, "1f1b", "cpu*2", 6, "rounds"},
      {"halo", 4, 2, "1f1b", "cpu*2", 6, "halo", "pipeline", "1", {}, true},
      {"cards", 3, 1, "1f1b", "cpu", 6, "rounds", "zebra", "1", {"10", "10", "20"}},
      {"many", 4, 2, "gpipe", "cpu", 2},
      {"many", 1, 3, "breadth_first", "cpu*3", 3},
      {"many", 3, 1, "1f1b", "cpu", 4},
      {"many", 2, 2, "1f1b", "cpu", 6},
  };
  const auto flags_with = [&](const std::string& folder, int64_t steps) {
    Flags flags = flags_of(folder, steps);
    flags["train.tokens_per_step"] = "256";
    flags["train.chunks"] = "2";
    flags["train.shards"] = flags["train.expert_shards"] = "4";
    flags["data.eval_path"] = dir_.file("text.jsonl");
    flags["train.eval_steps"] = "3";
    flags["train.eval_batches"] = "2";
    return flags;
  };
  ASSERT_EQ(run(train(flags_with("alone", 6))).code, 0);
  const std::string expected = exported("alone");
  std::string newest;
  for (const Mesh& mesh : meshes) {
    SCOPED_TRACE(strf("%s: %d processes of %s, %d stages, %s", mesh.folder, mesh.processes,
                      mesh.devices, mesh.stages, mesh.order));
    Flags flags = flags_with(mesh.folder, mesh.steps);
    flags["parallel.layout"] = mesh.layout;
    flags["parallel.copies"] = mesh.copies;
    flags["parallel.stages"] = std::to_string(mesh.stages);
    flags["parallel.order"] = mesh.order;
    flags["parallel.exchange"] = mesh.exchange;
    flags["train.devices"] = mesh.devices;
    if (!mesh.cards.empty()) flags["parallel.attention_devices"] = "2";
    Words more = newest == mesh.folder ? Words{"--resume"} : Words();
    for (const char* rate : mesh.cards) more.insert(more.end(), {"--parallel.network_gb_s", rate});
    const bool traced = mesh.exchange != std::string("auto");
    if (traced) more.insert(more.end(), {"--trace-steps", "2:5"});
    const ProcessResult result = mesh.paged            ? paged(mesh.processes, flags, more)
                                 : mesh.processes == 1 ? run(train(flags, more))
                                                       : mpirun(mesh.processes, train(flags, more));
    newest = mesh.folder;
    ASSERT_EQ(result.code, 0) << result.err;
    // Budgets are alike, and the first rank needs most: others may have room for all they have.
    if (mesh.paged) expect_paged(mesh.folder, 1);
    if (mesh.steps < 6) continue;
    EXPECT_EQ(losses(mesh.folder), losses("alone"));
    EXPECT_EQ(evals(mesh.folder).at(6), evals("alone").at(6));
    EXPECT_TRUE(exported(mesh.folder) == expected);
    const bool rounds = mesh.exchange == std::string("rounds");
    EXPECT_EQ(traced && transfers_in_turn(mesh.folder) > 0, rounds);
  }
  Flags flags = flags_with("refused", 6);
  flags["parallel.layout"] = "pipeline";
  flags["parallel.stages"] = "4";
  flags["train.devices"] = "cpu*2";
  expect_ended(mpirun(2, train(flags)), 2, "there are 3 layers and 4 devices; set 3 at most");
}

// Weights of experts go to the rows of other processes, and parts of gradients back; and in a run
// that other processes go on with rows to experts, or what has fewer bytes.
TEST_F(RanksTest, WeightsThatTravelBetweenProcesses) {
  const auto flags_with = [&](const std::string& folder, int64_t steps, const char* sharing) {
    Flags flags = flags_of(folder, steps);
    flags["train.expert_shards"] = "4";
    flags["parallel.sharing"] = sharing;
    return flags;
  };
  ASSERT_EQ(run(train(flags_with("alone", 6, "data"))).code, 0);
  const std::string expected = exported("alone");
  const Words traced = {"--trace-steps", "2:5"};
  const ProcessResult two = paged(2, flags_with("two", 6, "data"), traced);
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(exported("two") == expected);
  EXPECT_EQ(losses("two"), losses("alone"));
  expect_paged("two", 2);
  EXPECT_NE(two.err.find("other processes' experts, which come when they are due"),
            std::string::npos)
      << two.err;
  const Received received = received_in("two");
  EXPECT_GT(received.weights, 100);
  EXPECT_GT(received.sums, 50);
  EXPECT_EQ(received.rows, 0);
  struct Part {
    int processes;
    int64_t steps;
    const char* sharing;
  };
  for (const Part& part : {Part{4, 2, "data"}, Part{2, 4, "rows"}, Part{3, 6, "auto"}}) {
    const Words more = part.processes == 4 ? Words() : Words{"--resume", "--trace-steps", "2:5"};
    const ProcessResult result =
        mpirun(part.processes, train(flags_with("many", part.steps, part.sharing), more));
    ASSERT_EQ(result.code, 0) << result.err;
    if (part.sharing == std::string("rows")) {
      EXPECT_GT(received_in("many").rows, 100);
    }
    if (part.processes < 4) continue;
    // There is room for all, and for the guests of both layers with experts.
    EXPECT_NE(result.err.find("everything fits on the device"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("other processes' experts in 2 layers"), std::string::npos)
        << result.err;
  }
  EXPECT_TRUE(exported("many") == expected);
  Flags flags = flags_with("refused", 6, "data");
  flags["train.expert_shards"] = "1";
  expect_ended(mpirun(2, train(flags)), 2, "needs train.expert_shards = 4");
}

// Three processes, then two that go on, export what one does.
TEST_F(RanksTest, CopiesOfTheModel) {
  const auto with_copies = [&](const std::string& folder, int64_t steps) {
    Flags flags = flags_of(folder, steps);
    flags["train.save_steps"] = flags["train.eval_steps"] = "2";
    flags["data.eval_path"] = dir_.file("text.jsonl");
    flags["train.keep_best"] = "true";
    flags["train.keep_copies"] = "2";
    return flags;
  };
  const auto weights = [&](const std::string& folder) {
    return get_file(dir_.file(folder) + "/model.safetensors");
  };
  ASSERT_EQ(run(train(with_copies("alone", 6))).code, 0);
  const ProcessResult three = mpirun(3, train(with_copies("many", 4)));
  ASSERT_EQ(three.code, 0) << three.err;
  EXPECT_NE(three.err.find("copies of the model: at most 4 at a time"), std::string::npos)
      << three.err;
  EXPECT_EQ(files_in(dir_.file("many/copies")), (Words{"2", "4"}));
  EXPECT_TRUE(weights("many/copies/4") == weights("alone/copies/4"));
  // A best that was lost before its copy was whole is written when the run goes on.
  std::filesystem::remove_all(dir_.file("many/best"));
  const ProcessResult two = mpirun(2, train(with_copies("many", 6), {"--resume"}));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(files_in(dir_.file("many/copies")), (Words{"4", "6"}));
  EXPECT_TRUE(weights("many/copies/6") == weights("alone/copies/6"));
  EXPECT_TRUE(weights("many/best") == weights("alone/best"));
  const std::string card = "/README.md";
  EXPECT_EQ(get_file(dir_.file("many/best") + card), get_file(dir_.file("alone/best") + card));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("many/copies.room")));
}

}  // namespace
}  // namespace pagoda
