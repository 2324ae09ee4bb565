// `pagoda train` as several processes that mpirun starts on this machine: the weights of one
// process, checkpoints that other numbers of processes go on from, and ends that are alike.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.h"
#include "tests/testing/files.h"
#include "tests/testing/ranks/mpi_run_test.h"
#include "tests/testing/small_file_system.h"
#include "tests/testing/tiny_run.h"
#include "tests/testing/trace_file.h"

namespace pagoda {
namespace {

class RanksTest : public MpiRunTest {
 protected:
  // The smallest budgets with which that many processes do the run.
  Flags smallest(int processes, Flags flags) {
    for (const char* budget : {"memory.device", "memory.host"}) {
      std::string least = "1KiB";
      while (!least.empty()) {
        flags[budget] = least;
        least = named_budget(mpirun(processes, train(flags)));  // the lowest rank's that is short
        std::filesystem::remove_all(flags["train.output_dir"]);
      }
    }
    return flags;
  }
  // Each rank has read pages again in each of the run's later steps.
  void expect_paged(const std::string& folder) {
    int64_t steps = 0;
    for (const std::string& line : lines_of(get_file(dir_.file(folder + "/metrics.jsonl")))) {
      const auto object = nlohmann::json::parse(line);
      if (object["type"] != "step" || ++steps == 1) continue;
      for (const nlohmann::json& rank : object["ranks"]) EXPECT_GT(rank["fetch_bytes"], 0) << line;
    }
    EXPECT_GT(steps, 1);
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

// Root may read everything, so that its processes become another user's.
TEST_F(RanksTest, AStoreThatMayNotBeRead) {
  Words other_user;
  if (geteuid() == 0) {
    other_user = {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
    const Words owner = {"/bin/chown", "-R", "65534:65534", dir_.file("")};
    ASSERT_EQ(Process(owner, dir_.file("chown")).wait().code, 0);
    const ProcessResult may =
        Process(other_user + Words{PAGODA_BINARY, "--version"}, dir_.file("may")).wait();
    if (may.code != 0) GTEST_SKIP() << "SKIPPED: another user may not run the program here";
  }
  const auto ranks = [&](int processes, const Words& words) {
    return Process(other_user + on(processes, words), dir_.file("ranks")).wait();
  };
  const ProcessResult begun = ranks(2, train(flags_of("run", 2)));
  ASSERT_EQ(begun.code, 0) << begun.err;
  std::string store;
  for (const auto& file : std::filesystem::directory_iterator(dir_.file("run/store"))) {
    store = file.path().string();
  }
  std::filesystem::permissions(store, std::filesystem::perms::none);
  for (const int processes : {2, 3}) {
    const ProcessResult refused = ranks(processes, train(flags_of("run", 4), {"--resume"}));
    expect_ended(refused, 66, store + ": Permission denied");
  }
  std::filesystem::permissions(store, std::filesystem::perms::owner_all);
  const ProcessResult again = ranks(3, train(flags_of("run", 4), {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
}

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
  const ProcessResult paged = mpirun(2, train(smallest(2, flags_of("paged", 6))));
  EXPECT_EQ(paged.code, 0) << paged.err;
  expect_paged("paged");
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

// Stages of one process or more, with a device or two each, in every order and exchange, in zebra
// and in copies; the run of `many` goes on with other stages of other processes twice. Whoever ends
// it, anybody can export it.
TEST_F(RanksTest, StagesOfProcesses) {
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
  };
  const Mesh meshes[] = {
      {"two", 2, 2, "1f1b", "cpu", 6},
      {"three", 3, 3, "gpipe", "cpu", 6},
      {"zebra", 2, 1, "1f1b", "cpu*2", 6, "auto", "zebra"},
      {"striped", 4, 2, "breadth_first", "cpu", 6, "auto", "zebra"},
      {"copies", 4, 2, "1f1b", "cpu", 6, "auto", "pipeline", "2"},
      {"pairs", 2, 2, "breadth_first", "cpu*2", 6},
      {"half", 4, 2, "1f1b", "cpu", 6},
      {"single", 1, 2, "1f1b", "cpu*4", 6},
      {"rounds", 2, 1, "1f1b", "cpu*2", 6, "rounds"},
      {"halo", 2, 1, "1f1b", "cpu*2", 6, "halo"},
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
    Words words = train(flags, newest == mesh.folder ? Words{"--resume"} : Words());
    for (const char* rate : mesh.cards)
      words.insert(words.end(), {"--parallel.network_gb_s", rate});
    const ProcessResult result = mesh.processes == 1 ? run(words) : mpirun(mesh.processes, words);
    newest = mesh.folder;
    ASSERT_EQ(result.code, 0) << result.err;
    if (mesh.steps < 6) continue;
    EXPECT_EQ(losses(mesh.folder), losses("alone"));
    EXPECT_EQ(evals(mesh.folder).at(6), evals("alone").at(6));
    EXPECT_TRUE(exported(mesh.folder) == expected);
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
  const ProcessResult two = mpirun(2, train(smallest(2, flags_with("two", 6, "data")), traced));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(exported("two") == expected);
  EXPECT_EQ(losses("two"), losses("alone"));
  expect_paged("two");
  EXPECT_NE(two.err.find("other processes' experts, which come when they are due"),
            std::string::npos)
      << two.err;
  int64_t weights = 0, sums = 0, rows = 0;
  for (const TraceFile::Span& span : TraceFile::read(dir_.file("two/trace.json")).spans) {
    if (!span.group.ends_with(" network") || !span.lane().starts_with("from rank ")) continue;
    const bool of_expert = span.name.find(" E") != std::string::npos;
    const bool page = span.name.find("receive page") != std::string::npos;
    (page ? weights : sums) += of_expert;
    rows += span.args.contains("rows");
  }
  EXPECT_GT(weights, 100);
  EXPECT_GT(sums, 50);
  EXPECT_EQ(rows, 0);
  struct Part {
    int processes;
    int64_t steps;
    const char* sharing;
  };
  for (const Part& part : {Part{4, 2, "data"}, Part{2, 4, "rows"}, Part{3, 6, "auto"}}) {
    const Words more = part.processes == 4 ? Words() : Words{"--resume"};
    const ProcessResult result =
        mpirun(part.processes, train(flags_with("many", part.steps, part.sharing), more));
    ASSERT_EQ(result.code, 0) << result.err;
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

TEST_F(RanksTest, RanksHaveSettingsOfTheirOwn) {
  Flags flags = flags_of("own", 2);
  flags.erase("memory.host");
  std::string file = "[memory]\nhost = \"16MiB\"\n[rank.1.memory]\nhost = \"1KiB\"\n";
  put_file(dir_.file("run.toml"), file);
  expect_ended(mpirun(2, train(flags, {dir_.file("run.toml")})), 71,
               "rank 1: memory.host is 1024 B");
  file = "[rank.1.memory]\nhost = \"16MiB\"\ndisk = [\"" + dir_.file("disk-{rank}") + "\"]\n";
  put_file(dir_.file("run.toml"), file);
  flags["memory.host"] = "16MiB";
  const ProcessResult result = mpirun(2, train(flags, {dir_.file("run.toml")}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_directory(dir_.file("disk-1")));
  put_file(dir_.file("run.toml"), "[rank.1.optim]\nlearning_rate = 1.0\n");
  expect_ended(mpirun(2, train(flags_of("none", 2), {dir_.file("run.toml")})), 2,
               "optim.learning_rate is the same for all ranks");
  // Other settings on one rank: rank 0's count, with one warning.
  const Words one = train(flags_of("first", 2), {"-q"});
  Flags changed = flags_of("first", 2);
  changed["optim.learning_rate"] = "0.5";
  const Words other = train(changed, {"-q"});
  const Words both = on(1, one) + Words{":", "-n", "1", PAGODA_BINARY} + other;
  const ProcessResult differing = Process(both, dir_.file("ranks")).wait();
  EXPECT_EQ(differing.code, 0) << differing.err;
  EXPECT_NE(differing.err.find("rank 1 was given other settings than rank 0 "
                               "(optim.learning_rate = 0.5 there)"),
            std::string::npos)
      << differing.err;
}

// One trace of all ranks, at the times of rank 0's clock.
TEST_F(RanksTest, ATraceOfAllRanks) {
  Flags flags = flags_of("run", 20);
  const ProcessResult result = mpirun(3, train(flags, {"--trace-steps", "2:19"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("; the clocks of its 3 ranks were compared to within "),
            std::string::npos)
      << result.err;
  const TraceFile trace = TraceFile::read(dir_.file("run/trace.json"));
  EXPECT_EQ(trace.cut_events, 0);
  std::map<std::string, int> steps;  // by the group that they are in
  // [rank, peer, from, to, number]
  std::map<std::array<int64_t, 5>, TraceFile::Span> sent, received;
  for (const TraceFile::Span& span : trace.spans) {
    if (span.lane() == "steps") ++steps[span.group];
    int rank = 0, peer = 0;
    if (!span.group.ends_with(" network")) continue;
    ASSERT_EQ(std::sscanf(span.group.c_str(), "rank %d ", &rank), 1);
    const auto key = [&](int one, int other) {
      return std::array<int64_t, 5>{one, other, span.args.at("from"), span.args.at("to"),
                                    span.args.at("number")};
    };
    if (std::sscanf(span.lane().c_str(), "to rank %d", &peer) == 1) sent[key(rank, peer)] = span;
    if (std::sscanf(span.lane().c_str(), "from rank %d", &peer) == 1) {
      received[key(peer, rank)] = span;
    }
  }
  const std::map<std::string, int> all = {{"rank 0 run", 18}, {"rank 1 run", 18},
                                          {"rank 2 run", 18}};
  EXPECT_EQ(steps, all);
  int pairs = 0;
  for (const auto& [key, span] : received) {
    const auto other = sent.find(key);
    if (other == sent.end()) continue;
    ++pairs;
    EXPECT_GE(span.end_us, other->second.begin_us) << span.name;
    EXPECT_EQ(span.args.at("bytes"), other->second.args.at("bytes"));
  }
  EXPECT_GE(pairs, 1000) << sent.size() << " " << received.size();
  flags["train.output_dir"] = dir_.file("untraced");
  ASSERT_EQ(run(train(flags)).code, 0);
  EXPECT_TRUE(exported("run") == exported("untraced"));
}

// All processes are told, or one of them, between steps or in an evaluation: all save the same
// step, and the run goes on to the bytes of one that nobody stopped.
TEST_F(RanksTest, SignalsStopAllRanks) {
  Flags flags = flags_of("run", 1000000);
  flags["train.save_steps"] = "1000000";  // what is saved is saved because of the signal
  flags["data.eval_path"] = dir_.file("long.jsonl");
  flags["train.eval_batches"] = "1000000";
  std::string text;
  for (int i = 0; i < 40; ++i) text += get_file(dir_.file("text.jsonl"));
  put_file(dir_.file("long.jsonl"), text);
  struct Way {
    int to;  // rank; -1: mpirun, which tells all
    int signal;
    bool evaluates;
  };
  int64_t saved = 0;
  for (const Way& way : {Way{-1, SIGUSR1, false}, Way{1, SIGTERM, false}, Way{2, SIGINT, true}}) {
    SCOPED_TRACE(strf("signal %d of rank %d", way.signal, way.to));
    flags["train.eval_steps"] = way.evaluates ? std::to_string(saved) : "0";
    Process process(on(3, train(flags, saved > 0 ? Words{"--resume"} : Words())),
                    dir_.file("ranks"));
    ASSERT_TRUE(process.wait_for_err(saved > 0 ? "resuming from step " : "step 1/"));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (saved == 0) {  // another run in the same folder meanwhile
      const Words words = on(2, train(flags, {"--resume"}));
      expect_ended(Process(words, dir_.file("others")).wait(), 73, "in use");
    }
    if (way.to < 0) {
      process.send(way.signal);
    } else {
      ::kill(rank_processes(process.id()).at(static_cast<size_t>(way.to)), way.signal);
    }
    const ProcessResult stopped = process.wait();
    expect_ended(stopped, 75, strf("stopped by signal %d after step ", way.signal));
    const int64_t before = std::exchange(saved, checkpoints("run").rbegin()->first);
    EXPECT_EQ(saved > before, !way.evaluates);
    EXPECT_NE(stopped.err.find(strf("after step %lld, which is saved", (long long)saved)),
              std::string::npos)
        << stopped.err;
    EXPECT_TRUE(evals("run").empty()) << "the evaluation was over before the signal came";
  }
  flags["train.eval_steps"] = "0";
  flags["train.steps"] = std::to_string(saved + 3);
  EXPECT_EQ(mpirun(2, train(flags, {"--resume"})).code, 0);
  ASSERT_EQ(run(train(flags_of("alone", saved + 3))).code, 0);
  EXPECT_EQ(losses("run"), losses("alone"));
  EXPECT_TRUE(exported("run") == exported("alone"));
}

// A microbatch is what the machine with the least room plans for ranks like itself, which need more
// room than one alone.
TEST_F(RanksTest, TheMicrobatchFitsAllRanks) {
  Flags flags = flags_of("ample", 2);
  flags["train.micro_batch_tokens"] = "auto";
  flags["train.tokens_per_step"] = "2048";
  flags["memory.device"] = "64MiB";
  const auto chosen = [&](const std::string& folder) {
    const std::string text = get_file(dir_.file(folder + "/resolved.toml"));
    const std::string key = "micro_batch_tokens = ";
    return std::stoll(text.substr(text.find(key) + key.size()));
  };
  ASSERT_EQ(run(train(flags)).code, 0);
  flags["train.output_dir"] = dir_.file("narrow");
  flags["memory.device"] = "1MiB";
  ASSERT_EQ(run(train(flags)).code, 0);
  ASSERT_LT(chosen("narrow"), chosen("ample"));
  for (const int narrow : {0, 1}) {
    const std::string folder = strf("ranks-%d", narrow);
    put_file(dir_.file("run.toml"), strf("[memory]\ndevice = \"64MiB\"\n"
                                         "[rank.%d.memory]\ndevice = \"1MiB\"\n", narrow));
    flags["train.output_dir"] = dir_.file(folder);
    flags.erase("memory.device");
    const ProcessResult result = mpirun(2, train(flags, {dir_.file("run.toml")}));
    EXPECT_EQ(result.code, 0) << result.err;
    const int64_t tokens = chosen(folder);
    EXPECT_LE(tokens, chosen("narrow")) << result.err;
    EXPECT_EQ(tokens, chosen("ranks-0")) << "whichever of them it is";
    flags["train.steps"] = "3";  // a resumed run keeps it, wherever there is room
    EXPECT_EQ(run(train(flags, {"--resume", "--memory.device", "64MiB"})).code, 0);
    EXPECT_EQ(mpirun(2, train(flags, {"--resume", dir_.file("run.toml")})).code, 0);
    EXPECT_EQ(chosen(folder), tokens);
    flags["train.steps"] = "2";
  }
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

TEST_F(RanksTest, ARunThatLearnsNoMoreEndsEarly) {
  Flags flags = flags_of("run", 40);
  flags["train.eval_steps"] = "1";
  flags["train.early_stop"] = "3";
  flags["data.eval_path"] = dir_.file("text.jsonl");
  flags["optim.learning_rate"] = "1e-30";
  for (const Words& more : {Words(), Words{"--resume"}}) {
    const ProcessResult result = mpirun(2, train(flags, more));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find("ended early: 3 evaluations"), std::string::npos) << result.err;
    EXPECT_EQ(losses("run").size(), 3u);
  }
}

TEST_F(RanksTest, ErrorsAreThoseOfAll) {
  const Flags taken = flags_of("taken", 2);
  ASSERT_EQ(mpirun(2, train(taken)).code, 0);
  expect_ended(mpirun(2, train(taken)), 73, dir_.file("taken"));
  const std::string out = dir_.file("out");
  expect_ended(mpirun(2, {"export", "--checkpoint", dir_.file("taken"), "--out", out}), 2,
               "export is the work of one process, and Open MPI started 2");
  EXPECT_FALSE(std::filesystem::exists(out));
  expect_ended(mpirun(2, {"ckpt", "verify", dir_.file("taken")}), 2, "ckpt is the work of one");
  expect_ended(mpirun(2, train(flags_of("absent", 2), {"--resume"})), 66, dir_.file("absent"));
  Flags ports = flags_of("ports", 2);  // one, of two processes on a machine
  ports["parallel.ports"] = "27300:27300";
  expect_ended(mpirun(2, train(ports)), 69, "name others (parallel.ports)");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("ports")));
  Flags wrong = flags_of("wrong", 2);
  wrong["model.path"] = dir_.file("no-model");
  expect_ended(mpirun(2, train(wrong)), 66, "no-model");
  for (const auto& file : std::filesystem::directory_iterator(dir_.file("taken/store"))) {
    std::filesystem::remove(file.path());
    break;
  }
  expect_ended(mpirun(2, train(flags_of("taken", 4), {"--resume"})), 81, "put it back");
}

TEST_F(RanksTest, MoreRanksThanRecords) {
  put_file(dir_.file("config.json"), tiny_with(R"({"num_hidden_layers": 1, "num_experts": 2,
                                                   "mlp_only_layers": []})"));
  const std::string model = dir_.file("five");
  ASSERT_EQ(run({"init", "--config", dir_.file("config.json"), "--out", model}).code, 0);
  Flags flags = flags_of("run", 2);
  flags["model.path"] = model;
  expect_ended(mpirun(6, train(flags)), 2, "there are 6 ranks, and the model has 5 records");
  EXPECT_FALSE(std::filesystem::exists(dir_.file("run")));
}

// A start of several ranks was killed before it saved anything.
TEST_F(RanksTest, PageFilesOfAKilledStart) {
  const std::string name = "pages-0123456789abcdef.0";
  std::string mark;
  for (const char* disk : {"disk-0", "disk-1"}) {
    std::filesystem::create_directory(dir_.file(disk));
    put_file(dir_.file(disk) + "/" + name, "half a start");
    mark += dir_.file(disk) + "/" + name + "\n";
  }
  std::filesystem::create_directory(dir_.file("run"));
  put_file(dir_.file("run/STARTING"), mark + "on node07\n/local/" + name + "\n");
  Flags flags = flags_of("run", 2);
  flags["memory.disk"] = dir_.file("disk-{rank}");
  const ProcessResult result = mpirun(2, train(flags));
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* disk : {"disk-0", "disk-1"}) {
    const std::vector<std::string> files = files_in(dir_.file(disk));
    ASSERT_EQ(files.size(), 1u) << disk;
    EXPECT_NE(files[0], name);
  }
  const std::string elsewhere = " was left by an earlier start on node07, where this run has no ";
  EXPECT_NE(result.err.find("/local/" + name + elsewhere), std::string::npos) << result.err;
}

// The launcher would end them before a step and a save are over.
TEST_F(RanksTest, ALauncherThatKillsTooSoon) {
  ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "90", 1);
  const ProcessResult first = mpirun(2, train(flags_of("run", 2)));
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string words = " s after SIGTERM or Ctrl-C, and the last step and save took 10";
  EXPECT_EQ(first.err.find(words), std::string::npos);
  std::string metrics = get_file(dir_.file("run/metrics.jsonl"));
  size_t at = metrics.rfind("\"type\":\"step\"");
  at = metrics.find("\"step_s\":", at) + 9;
  metrics.replace(at, metrics.find(',', at) - at, "100");  // the last step took that
  put_file(dir_.file("run/metrics.jsonl"), metrics);
  const ProcessResult again = mpirun(2, train(flags_of("run", 3), {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find("warning: Open MPI kills processes 90" + words), std::string::npos)
      << again.err;
  const ProcessResult alone = run(train(flags_of("run", 4), {"--resume"}));
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.err.find(words), std::string::npos) << "there is no launcher";
}

// Where rank 0 has no room for a manifest, all leave that save out, and end at the second.
TEST_F(RanksTest, NoRoomForACheckpoint) {
  const SmallFileSystem disk(dir_.file("small"), 4 << 20);
  if (!disk.ok()) GTEST_SKIP() << "SKIPPED: mounting a small file system needs root";
  Flags flags = flags_of("small/run", 1000000);
  flags["memory.disk"] = dir_.file("disk");
  flags["train.save_steps"] = "5";
  Process process(on(2, train(flags)), dir_.file("ranks"));
  ASSERT_TRUE(process.wait_for_err("saved step 5 ")) << process.err();
  if (!disk.fill_between_saves(rank_processes(process.id()).at(0), "run")) {
    ASSERT_FALSE(process.has_ended()) << process.err();
    GTEST_SKIP() << "SKIPPED: no process may trace another";
  }
  const ProcessResult ended = process.wait();
  const std::string words = " skipped, the last is step ";
  const size_t skipped = ended.err.find(words);
  ASSERT_NE(skipped, std::string::npos) << ended.err;
  EXPECT_EQ(ended.err.find(words, skipped + 1), std::string::npos);
  const long long saved = std::stoll(ended.err.substr(skipped + words.size()));
  expect_ended(ended, 73, strf("make room; step %lld is saved: --resume", saved));
  disk.make_room();
  EXPECT_EQ(run({"ckpt", "verify", dir_.file("small/run")}).code, 0);
  flags["train.steps"] = std::to_string(saved + 3);
  const ProcessResult again = mpirun(2, train(flags, {"--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_NE(again.err.find(strf("resuming from step %lld\n", saved)), std::string::npos)
      << again.err;
}

}  // namespace
}  // namespace pagoda
