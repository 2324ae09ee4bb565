#include "cli/run_file.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "config/run_config.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

// One `train`-like command: flags and a run file over one RunConfig.
struct Reading {
  RunConfig config;
  OptionTable table;
  CLI::App app{"test"};

  Reading() {
    config.declare(table);
    add_option_flags(app, table, [](const Option&) { return true; });
  }
  // argv first, as the program does it, then the file.
  Status read(std::vector<std::string> flags, const std::string& file) {
    try {
      std::reverse(flags.begin(), flags.end());
      app.parse(flags);
    } catch (const CLI::ParseError& error) {
      return Status(Exit::kUsage, error.what());
    }
    if (file.empty()) return Status();
    ASSIGN_OR_RETURN(const std::string text, read_run_text(file));
    return load_run_file(app, table, file, text, [](const Option&) { return true; });
  }
};

std::string write_file(const TempDir& dir, const std::string& text) {
  const std::string path = dir.file("run.toml");
  put_file(path, text);
  return path;
}

TEST(RunFile, ValuesOfEveryTypeArrive) {
  TempDir dir;
  Reading r;
  const Status status = r.read({}, write_file(dir, R"(# a run
[data]
path = [            # several lines, and a '#' inside a string
  "a.jsonl",
  "b # not a comment.jsonl",
]
[train]
steps = 1_000
dtype = 'fp32'
[optim]
learning_rate = 2.5e-4
weight_decay = 0    # a whole number is a number
[memory]
device = "80%"
disk = "/one"       # one text is a list of one
)"));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(r.config.data.path, (std::vector<std::string>{"a.jsonl", "b # not a comment.jsonl"}));
  EXPECT_EQ(r.config.train.steps, 1000);
  EXPECT_EQ(r.config.train.dtype, DType::kF32);
  EXPECT_EQ(r.config.optim.learning_rate, 2.5e-4);
  EXPECT_EQ(r.config.optim.weight_decay, 0);
  EXPECT_EQ(r.config.memory.device, MemorySize::of_percent(80));
  EXPECT_EQ(r.config.memory.disk, std::vector<std::string>{"/one"});
}

TEST(RunFile, FlagsWinWhateverTheirType) {
  TempDir dir;
  Reading r;
  const std::string file = write_file(dir,
                                      "data.path = [\"a\", \"b\", \"c\"]\n[train]\nsteps = 5\n"
                                      "dtype = \"fp32\"\nseed = 4\n[memory]\nhost = \"1GiB\"\n");
  const Status status = r.read({"--train.steps", "7", "--data.path", "d", "--data.path=e",
                                "--train.dtype", "bf16", "--memory.host=2GiB"},
                               file);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(r.config.train.steps, 7);
  EXPECT_EQ(r.config.data.path, (std::vector<std::string>{"d", "e"}));
  EXPECT_EQ(r.config.train.dtype, DType::kBF16);
  EXPECT_EQ(r.config.memory.host.text(), "2GiB");
  EXPECT_EQ(r.config.train.seed, 4) << "what no flag names comes from the file";
}

struct Bad {
  const char* text;
  const char* place;  // "line:column"
  const char* names;  // must appear in the message
};

TEST(RunFile, ErrorsSayWhereAndWhat) {
  TempDir dir;
  for (const Bad& bad : {
           Bad{"[train]\nstepz = 3\n", "2:1",
               "unknown key train.stepz, did you mean \"train.steps\"?"},
           Bad{"[trian]\nsteps = 3\n", "1:2", "did you mean \"train.steps\"?"},
           Bad{"\n  steps = 3\n", "2:3", "did you mean \"train.steps\"?"},
           Bad{"[train]\nwarmup_steps = 3\n", "2:1", "did you mean \"optim.warmup_steps\"?"},
           Bad{"[x]\n[zebra]\nq = 1\n", "1:2", "unknown key x"},
           Bad{"[train]\nsteps = \"3\"\n", "2:9", "expects a whole number, found a string"},
           Bad{"[train]\nsteps = 3.0\n", "2:9", "expects a whole number, found a number"},
           Bad{"[train]\nsteps = true\n", "2:9", "found true or false"},
           Bad{"[train]\nsteps = [3]\n", "2:9", "found an array"},
           Bad{"[train]\nsteps = 1979-05-27\n", "2:9", "found a date"},
           Bad{"[train]\ndtype = 16\n", "2:9", "one of fp32, bf16"},
           Bad{"[train]\ndtype = \"fp16\"\n", "2:9", "one of fp32, bf16"},
           Bad{"[optim]\nbeta1 = \"a\"\n", "2:9", "expects a number, found a string"},
           Bad{"[optim]\nbeta1 = inf\n", "2:9", "is not a number"},
           Bad{"[memory]\ndevice = 5\n", "2:10", "expects a size"},
           Bad{"[memory]\ndevice = \"5 apples\"\n", "2:10", "is not a size"},
           Bad{"[data]\npath = [\"a\", 3]\n", "2:14", "found a whole number"},
           Bad{"[data]\npath = [[\"a\"]]\n", "2:9", "found an array"},
           Bad{"[train]\nsteps = 3\nseed = 1\nsteps = 4\n", "4:9", "redefine"},
           Bad{"[train]\nsteps = 3\n[optim]\n[train]\n", "4:", "redefine"},
           Bad{"[train]\nsteps =\n", "2:", ""},
           Bad{"train = 5\n", "1:9", "is a section"},
           Bad{"[[train]]\nsteps = 5\n", "1:", "is a section"},
           Bad{"[train.steps]\nx = 1\n", "1:", "found a table"},
           Bad{"[data]\npath = \"\\u0000\"\n", "2:8", "data.path"},
       }) {
    Reading r;
    const std::string file = write_file(dir, bad.text);
    const Status status = r.read({}, file);
    ASSERT_FALSE(status.ok()) << bad.text;
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_TRUE(status.message().starts_with(file + ":" + bad.place)) << status.message();
    EXPECT_NE(status.message().find(bad.names), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  }
}

TEST(RunFile, HostileFilesAreRefusedNotFatal) {
  TempDir dir;
  const std::string deep = "a = " + std::string(100000, '[');
  for (const std::string& text :
       {std::string("\xff\xfe\x00", 3), std::string("x = \"\033[31m\"\n"), deep,
        "[train]\nsteps = " + std::string(5000, '9'), std::string(2 << 20, '#'),
        std::string("[train]\n\"ste\\nps\" = 3\n"), std::string("a\0 = 1", 6)}) {
    Reading r;
    const Status status = r.read({}, write_file(dir, text));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_EQ(status.message().find_first_of("\n\033"), std::string::npos) << status.message();
  }
}

// What one rank has for itself wins; the others' is checked.
TEST(RunFile, RanksHaveLocalOptionsOfTheirOwn) {
  RunConfig config;
  OptionTable table;
  config.declare(table);
  const std::string text =
      "[rank.2.memory]\nhost = \"2GiB\"\ndisk = [\"/b\", \"/c\"]\n[memory]\nhost = \"1GiB\"\n"
      "[rank.3.train]\ndevices = [\"cpu*3\"]\n";
  const auto texts = [&](int rank) {
    std::string all;
    auto items = parse_run_file(text, "x", table, rank);
    for (const RunFileItem& item : items.value()) {
      all += item.key;
      for (const std::string& value : item.texts) all += " " + value;
      all += ";";
    }
    return all;
  };
  EXPECT_EQ(texts(0), "memory.host 1GiB;");
  EXPECT_EQ(texts(2), "memory.disk /b /c;memory.host 2GiB;");
  EXPECT_EQ(texts(3), "memory.host 1GiB;train.devices cpu*3;");
  const std::pair<const char*, const char*> wrong[] = {
      {"[rank.1.optim]\nbeta1 = 0.5\n", "optim.beta1 is the same for all ranks"},
      {"[rank.x.memory]\nhost = \"1GiB\"\n", "[rank.3.memory]"},
      {"[rank.-1.memory]\nhost = \"1GiB\"\n", "[rank.3.memory]"},
      {"[rank]\nmemory = 3\n", "[rank.3.memory]"},
      {"rank = 3\n", "[rank.3.memory]"},
      {"[rank.1]\nmemory = 3\n", "[rank.3.memory]"},
      {"[rank.1.memory]\nhots = \"1GiB\"\n", "memory.host"},
      {"[rank.1.memory]\nhost = 5\n", "memory.host"},
  };
  for (const auto& [bad, names] : wrong) {
    const Status status = parse_run_file(bad, "x", table, 0).status();
    EXPECT_EQ(status.code(), Exit::kUsage) << bad;
    EXPECT_NE(status.message().find(names), std::string::npos) << status.message();
  }
}

// Truncations and byte changes of a good file either parse or are refused; nothing else happens.
TEST(RunFile, DamagedFilesNeverCrash) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE("seed 5");
  RunConfig config;
  OptionTable table;
  config.declare(table);
  const std::string good = config.to_toml();
  ASSERT_TRUE(parse_run_file(good, "x", table).ok());
  int refused = 0;
  for (uint64_t i = 0; i < 3000; ++i) {
    const auto random = philox(kSeed, RandomPurpose::kTest, i, 0);
    std::string text = good.substr(0, i < good.size() ? i : good.size());
    for (uint32_t k = 0; k < random[0] % 3; ++k) {
      if (!text.empty())
        text[random[1 + k] % text.size()] = static_cast<char>(random[3] >> (8 * k));
    }
    refused += !parse_run_file(text, "x", table).ok();
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 3000);
}

TEST(RunFile, MissingFileAndFolder) {
  TempDir dir;
  Reading r;
  EXPECT_EQ(r.read({}, dir.file("none.toml")).code(), Exit::kNoInput);
  EXPECT_EQ(r.read({}, dir.path()).code(), Exit::kNoInput);
}

TEST(RunFile, EveryOptionIsAFlag) {
  Reading r;
  for (const Option& option : r.table.options()) {
    const CLI::Option* flag = r.app.get_option_no_throw("--" + option.key);
    ASSERT_NE(flag, nullptr) << option.key;
    if (option.alias.empty()) continue;
    EXPECT_EQ(r.app.get_option_no_throw("--" + option.alias), flag) << option.alias;
  }
  const std::string help = r.app.help();
  for (const Option& option : r.table.options()) {
    const std::string alias = option.alias.empty() ? "" : ",--" + option.alias;
    EXPECT_NE(help.find("--" + option.key + alias + " "), std::string::npos) << option.key;
    if (!option.default_text.empty()) {
      EXPECT_NE(help.find("default " + option.default_text), std::string::npos) << option.key;
    }
    EXPECT_NE(help.find(option.unit), std::string::npos) << option.key;
  }
}

}  // namespace
}  // namespace pagoda
