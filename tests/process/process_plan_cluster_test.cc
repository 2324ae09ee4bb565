// The built `pagoda plan` for a cluster: the layouts that it finds, the run file's lines that make
// the best of them, and the run that `train` makes there.
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/testing/files.h"
#include "tests/testing/plan/plan_run_test.h"

namespace pagoda {
namespace {

// What a microbatch is there the search decides.
TEST_F(PlanTest, AClusterMindsNoMicrobatch) {
  const Words words = small_on_two_kinds();
  for (const char* row : {"8192", "2048"}) {
    const ProcessResult result = plan(words + Words{"--data.sequence_len", row});
    EXPECT_EQ(result.code, 0) << result.err;
  }
  expect_no_plan(words + Words{"--data.sequence_len", "10000"}, 2, "train.tokens_per_step");
}

TEST_F(PlanTest, SearchesClusters) {
  const Words words = {"--model.path",
                       configs("models/mixtral-8x7b.json"),
                       "--cluster",
                       configs("clusters/4x8-gpu-80gb.toml"),
                       "--train.tokens_per_step",
                       "65536",
                       "--data.sequence_len",
                       "4096",
                       "--tokens",
                       "131072",
                       "--json"};
  const nlohmann::json best = nlohmann::json::parse(plan(words).out, nullptr, false);
  ASSERT_TRUE(best.is_object());
  EXPECT_FALSE(best.contains("strategies"));
  EXPECT_EQ(best.at("hostfile"), (std::vector<std::string>{"node0 slots=1", "node1 slots=1",
                                                           "node2 slots=1", "node3 slots=1"}));
  const nlohmann::json& layout = best.at("best_layout");
  EXPECT_FALSE(layout.at("bottleneck").get<std::string>().empty());
  const double step_s = best.at("layouts")[0].at("step_s");
  EXPECT_EQ(layout.at("step_s"), step_s);
  EXPECT_LT(step_s, best.at("as_train").at("step_s"));
  EXPECT_NEAR(layout.at("total").at("seconds"), 2 * step_s, 1e-9 * step_s);
  EXPECT_EQ(layout.at("ranks").size(), 4u);
  // The page shows the streams of the best layout, and the memory of a rank.
  const std::string page = dir_.file("step.html");
  const ProcessResult text =
      plan(Words(words.begin(), words.end() - 1) + Words{"--search", "--html", page});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_page(page, {"<rect class", "compute 1", ">host<"});
  for (const char* word : {"layers are taken as alike", "[parallel]", "layout = \"pipeline\"",
                           "hostfile  ", "node3 slots=1", "switches delay", "helps "}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
}

// Nine nodes of eight GPUs are more devices than a run has. Nine microbatches are three copies' or
// nine's.
TEST_F(PlanTest, ManyDevicesArePlannedAsCopies) {
  put_file(dir_.file("config.json"), kSmallMixtral);
  const std::string node = "\"" + configs("machines/gpu-8x80gb.toml") + "\"";
  std::string nodes = node;
  for (int i = 1; i < 9; ++i) nodes += ", " + node;
  put_file(dir_.file("nine.toml"), "[cluster]\nname = \"9 nodes\"\nnodes = [" + nodes +
                                       "]\n[network]\ngb_s = 45.0\nlatency_us = 15.0\n");
  const Words words = {"--model.path",
                       dir_.file("config.json"),
                       "--cluster",
                       dir_.file("nine.toml"),
                       "--train.tokens_per_step",
                       "36864",
                       "--tokens",
                       "73728"};
  const ProcessResult text = plan(words);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* word : {" equal copies of ", "sums between copies added", " of a copy fit",
                           "`train` runs 64 devices at most"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const nlohmann::json json =
      nlohmann::json::parse(plan(words + Words{"--json"}).out, nullptr, false);
  ASSERT_TRUE(json.contains("copies"));
  const nlohmann::json& copies = json.at("copies");
  const int64_t count = copies.at("count"), devices = copies.at("devices");
  EXPECT_EQ(count * devices, 72);
  const double step_s = copies.at("step_s"), sums_s = copies.at("sums_s");
  const double of_one_s = json.at("best_layout").at("step_s");
  EXPECT_NEAR(step_s, of_one_s + sums_s, 1e-9 * step_s);
  EXPECT_NEAR(json.at("best_layout").at("total").at("seconds"), 2 * step_s, 1e-9 * step_s);
  expect_no_plan(words + Words{"--html", dir_.file("step.html")}, 2, "64 devices");
}

// Three layers of a device take as long as one of another that is a third as fast. Of nodes of
// equal devices each has half of the layers.
TEST_F(PlanTest, TellsHowManyLayersAStageHas) {
  put_file(dir_.file("config.json"), kSmallMixtral);
  const Words run = {"--model.path",
                     dir_.file("config.json"),
                     "--parallel.layout",
                     "pipeline",
                     "--train.tokens_per_step",
                     "16384",
                     "--train.micro_batch_tokens",
                     "2048",
                     "--train.chunks",
                     "4",
                     "--train.save_steps",
                     "0"};
  const std::string node = configs("machines/cpu-2-cores.toml");
  const ProcessResult alone =
      plan(run + Words{"--machine", node, "--train.devices", "cpu/8,cpu/24"});
  EXPECT_EQ(alone.code, 0) << alone.err;
  for (const char* word : {"0: attends to 8 of 8 microbatches in 3 of 4 layers, home of 8 of 8",
                           "1: attends to 8 of 8 microbatches in 1 of 4 layers, home of 8 of 8"}) {
    EXPECT_NE(alone.out.find(word), std::string::npos) << word << "\n" << alone.out;
  }
  const Words two = run + Words{"--cluster", two_nodes("6.0")};
  const ProcessResult cluster = plan(two);
  EXPECT_EQ(cluster.code, 0) << cluster.err;
  EXPECT_NE(cluster.out.find("layers of stages: 2, 2\n"), std::string::npos) << cluster.out;
  const nlohmann::json json =
      nlohmann::json::parse(plan(two + Words{"--json"}).out, nullptr, false);
  EXPECT_EQ(json.at("as_train").at("stage_layers"), (std::vector<int64_t>{2, 2}));
}

// On nodes of two kinds the layouts are those of equal nodes, and one in which the V100, slow at
// attention, do not attend is the best. It is the one on the page.
TEST_F(PlanTest, OnTwoKindsOfNodesTheBestLayoutIsPlanned) {
  const Words words = small_on_two_kinds() + Words{"--data.sequence_len", "8192"};
  const std::string page = dir_.file("step.html");
  const ProcessResult text = plan(words + Words{"--search", "--html", page});
  EXPECT_EQ(text.code, 0) << text.err;
  expect_page(page, {"<rect class", "compute 1", ">host<"});
  for (const char* word :
       {"best      ", "layout = \"zebra\"", "parallel.copies = 2", "parallel.layout = \"pipeline\"",
        "(as it is)", "\nways  ", " x  each kind of devices alone, added up (EP (Ideal))\n"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const nlohmann::json json =
      nlohmann::json::parse(plan(words + Words{"--json"}).out, nullptr, false);
  EXPECT_EQ(json.at("best_layout").at("step_s"), json.at("layouts")[0].at("step_s"));
  EXPECT_LT(json.at("best_layout").at("step_s"), json.at("as_train").at("step_s"));
}

// The lines of the run file that a search prints, with its margin.
std::string printed_sections(const std::string& text) {
  const std::string margin(10, ' ');
  const size_t first = text.find('\n', text.find("\nrun file  ") + 1) + 1;
  size_t end = first;
  while (text.compare(end, margin.size(), margin) == 0) end = text.find('\n', end) + 1;
  return text.substr(first, end - first);
}

// The lines of a run file by table, "[train]", and key.
using Tables = std::map<std::string, std::map<std::string, std::string>>;

// A run file's text with the printed lines where docs/clusters.md has them put: in its tables, in
// place of those of the same keys.
std::string with_lines(const std::string& text, const std::string& printed) {
  Tables tables;
  std::string table, line;
  std::istringstream lines(text + printed);
  while (std::getline(lines, line)) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with('[')) {
      table = line;
    } else {
      tables[table][line.substr(0, line.find(' '))] = line;
    }
  }
  std::string all;
  for (const auto& [name, keys] : tables) {
    all += name + "\n";
    for (const auto& [key, of_key] : keys) all += of_key + "\n";
  }
  return all;
}

// What the search prints for a run file makes the run that it simulated: zebra on two kinds of
// nodes, on which experts by speed are faster with longer rows, and copies of a layer's small
// experts on equal nodes that are far from each other. Settings of the file that are not those of
// the best layout do not stay: stages, how many layers each has, and network cards of three nodes.
TEST_F(PlanTest, APrintedSectionIsTheRunThatWasPlanned) {
  std::string small = kSmallMixtral;
  for (const auto& [from, to] : {std::pair("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1"),
                                 {"\"intermediate_size\": 3584", "\"intermediate_size\": 512"},
                                 {"\"vocab_size\": 32000", "\"vocab_size\": 2000"}}) {
    const size_t at = small.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    small.replace(at, std::string(from).size(), to);
  }
  struct Case {
    std::string config, cluster;
    const char* tokens;  // of a row
    Words printed;
    const char* own = "";
  };
  const std::string two_kinds = configs("clusters/a40-v100.toml");
  const char* staged =
      "[parallel]\nlayout = \"pipeline\"\nstages = 2\nstage_layers = [\"1\", \"3\"]\n"
      "network_gb_s = [\"1\", \"2\", \"3\"]\n";
  for (const Case& c : {Case{kSmallMixtral,
                             two_kinds,
                             "1024",
                             {"layout = \"zebra\"\n", "stages = 1\n", "stage_layers = [\"auto\"]\n",
                              "network_gb_s = []\n"},
                             staged},
                        Case{small, two_kinds, "8192", {"shares = \"measured\"\n"}},
                        Case{small, two_nodes("1.0"), "8192", {"copies = 2\n"}}}) {
    SCOPED_TRACE(c.cluster + "\n" + c.own);
    put_file(dir_.file("config.json"), c.config);
    const std::string file = dir_.file("run.toml");
    const std::string before = "[model]\npath = \"" + dir_.file("config.json") +
                               "\"\n[train]\nmicro_batch_tokens = " + c.tokens + "\n" + c.own;
    put_file(file, before);
    const Words words = {file,    "--cluster",           c.cluster, "--train.tokens_per_step",
                         "65536", "--data.sequence_len", c.tokens,  "--train.save_steps",
                         "0"};
    const std::string found = plan(words + Words{"--search"}).out;
    const std::string sections = printed_sections(found);
    for (const std::string& line : c.printed) {
      ASSERT_NE(sections.find(line), std::string::npos) << line << found;
    }
    const auto json_of = [&](const Words& more) {
      return nlohmann::json::parse(plan(words + more).out, nullptr, false);
    };
    const double best_s = json_of({"--search", "--json"}).at("layouts")[0].at("step_s");
    put_file(file, with_lines(before, sections));
    const nlohmann::json as_train = json_of({"--json"}).at("as_train");
    ASSERT_TRUE(as_train.contains("step_s")) << as_train << sections;
    EXPECT_DOUBLE_EQ(as_train.at("step_s"), best_s) << sections;
  }
}

// What no memory has room for fits as `train` runs it, on drives. As these limit all layouts, which
// read and write as much, the best is one in which no stage waits for another.
TEST_F(PlanTest, AClustersRunIsThatOfTrain) {
  const Words large = {"--model.path",
                       configs("models/mixtral-8x7b.json"),
                       "--cluster",
                       two_nodes("10.0"),
                       "--train.tokens_per_step",
                       "65536",
                       "--data.sequence_len",
                       "4096",
                       "--memory.host",
                       "32GiB"};
  const ProcessResult paged = plan(large);
  EXPECT_EQ(paged.code, 0) << paged.err;
  for (const char* word :
       {"as train  a process on each node: ", "limited by drive", "best      ",
        " of them in flight on each device\n", "run file  ", "layout = \"experts\""}) {
    EXPECT_NE(paged.out.find(word), std::string::npos) << word << "\n" << paged.out;
  }
  const ProcessResult none = plan(large + Words{"--memory.device", "2GiB"});
  EXPECT_EQ(none.code, 3) << none.err;
  for (const char* word : {"46,702,792,704", "as train  the device of rank 0 has 2.00 GiB"}) {
    EXPECT_NE(none.out.find(word), std::string::npos) << word << "\n" << none.out;
  }
  EXPECT_NE(none.error_line().find("the device of rank 0 has 2.00 GiB"), std::string::npos)
      << none.err;
  // A rank has the settings of its own section, but for what a flag says.
  const std::string file = dir_.file("ranks.toml");
  put_file(dir_.file("config.json"), kSmallMixtral);
  put_file(file, "[model]\npath = \"" + dir_.file("config.json") +
                     "\"\n[rank.1.memory]\nhost = \"1MiB\"\n");
  const Words pair = {file, "--cluster", configs("clusters/a40-v100.toml"), "--json"};
  const auto as_train = [&](const Words& words) {
    return nlohmann::json::parse(plan(words).out, nullptr, false).at("as_train");
  };
  const std::string why = as_train(pair).at("why");
  EXPECT_NE(why.find("the host of rank 1 has 1.00 MiB"), std::string::npos) << why;
  const nlohmann::json fits = as_train(pair + Words{"--memory.host", "20GiB"});
  EXPECT_EQ(fits.at("ranks").size(), 2u);
  EXPECT_LE(fits.at("ranks")[1].at("host_bytes"), int64_t{20} << 30);
  EXPECT_GT(fits.at("ranks")[1].at("sent_bytes"), 0);
  // What it names is checked before it is counted.
  put_file(file, "[model]\npath = \"" + dir_.file("config.json") +
                     "\"\n[rank.1.train]\ndevices = [\"abacus\"]\n");
  const ProcessResult wrong = plan({file, "--cluster", two_cpu_nodes()});
  EXPECT_EQ(wrong.code, 2) << wrong.err;
  EXPECT_NE(wrong.error_line().find("train.devices: \"abacus\" is no device"), std::string::npos)
      << wrong.err;
}

// `train` takes the GPUs that a rank lists, and one where it lists none; layouts are of all.
TEST_F(PlanTest, AClustersRunTakesTheGpusThatTrainDoes) {
  put_file(dir_.file("config.json"), kSmallMixtral);
  const std::string sheet = get_file(configs("machines/gpu-4x48gb.toml")), four = "count = 4";
  const auto cluster = [&](const char* first, const char* second) {
    std::string nodes;
    for (const char* count : {first, second}) {
      const std::string name = std::string("node-of-") + count + ".toml";
      std::string node = sheet;
      put_file(dir_.file(name),
               node.replace(node.find(four), four.size(), std::string("count = ") + count));
      nodes += (nodes.empty() ? "\"" : ", \"") + name + "\"";
    }
    const std::string file = dir_.file(std::string("nodes-of-") + first + second + ".toml");
    put_file(file, "[cluster]\nname = \"2 nodes\"\nsource = \"datasheet\"\nnodes = [" + nodes +
                       "]\n[network]\ngb_s = 10.0\nlatency_us = 15.0\n");
    return file;
  };
  const std::string file = dir_.file("ranks.toml");
  const auto planned = [&](const std::string& where, const std::string& sections) {
    put_file(file, "[model]\npath = \"" + dir_.file("config.json") + "\"\n" + sections);
    return nlohmann::json::parse(plan({file, "--cluster", where, "--train.tokens_per_step", "32768",
                                       "--data.sequence_len", "1024", "--json"})
                                     .out,
                                 nullptr, false);
  };
  const std::string of_four = cluster("4", "4"), two = "[train]\ndevices = [\"cuda:0,cuda:2\"]\n";
  const nlohmann::json one_each = planned(of_four, "");
  EXPECT_EQ(one_each.at("as_train"), planned(cluster("1", "1"), "").at("as_train"));
  const nlohmann::json two_each = planned(of_four, two);
  EXPECT_EQ(two_each.at("as_train"), planned(cluster("2", "2"), two).at("as_train"));
  EXPECT_LT(two_each.at("as_train").at("step_s"), one_each.at("as_train").at("step_s"));
  EXPECT_EQ(two_each.at("best_layout").at("step_s"), one_each.at("best_layout").at("step_s"));
  const std::string of_rank_1 = "[rank.1.train]\ndevices = [\"cuda*2\"]\n";
  const nlohmann::json three = planned(of_four, of_rank_1);
  EXPECT_EQ(three.at("as_train"), planned(cluster("1", "2"), of_rank_1).at("as_train"));
  const std::string five = "[train]\ndevices = [\"cuda*5\"]\n";
  const std::string why = planned(of_four, five).at("as_train").at("why");
  EXPECT_NE(why.find("names 5 GPUs, and"), std::string::npos) << why;
}

}  // namespace
}  // namespace pagoda
