// The built `pagoda bench`: what it prints, what it refuses, and that it leaves nothing behind. How
// fast anything was is not asked.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/testing/files.h"
#include "tests/testing/process.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {
namespace {

using Words = std::vector<std::string>;

class BenchTest : public ::testing::Test {
 protected:
  BenchTest() { std::filesystem::create_directory(disk_); }

  ProcessResult run(Words words, ProcessLimits limits = {}) {
    words.insert(words.begin(), {PAGODA_BINARY, "bench"});
    return Process(words, dir_.file("run"), limits).wait();
  }
  nlohmann::json run_json(Words words) {
    words.push_back("--json");
    const ProcessResult result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return nlohmann::json::parse(result.out, nullptr, false);
  }
  void expect_refused(const Words& words, int code, const std::string& names) {
    const ProcessResult result = run(words);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.error_line().find(names), std::string::npos) << result.err;
    EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "something was left behind";
  }
  static void expect_figure(const nlohmann::json& figure, int rounds,
                            const std::string& unit = "GB/s") {
    for (const char* key : {"value", "roof", "ratio", "ratio_min", "ratio_p10", "ratio_max"}) {
      EXPECT_GT(figure.at(key).get<double>(), 0) << key << " of " << figure;
    }
    for (const char* key : {"cpu_s_per_unit", "roof_cpu_s_per_unit"}) {
      EXPECT_GE(figure.at(key).get<double>(), 0) << key << " of " << figure;
    }
    EXPECT_LE(figure.at("ratio_min"), figure.at("ratio"));
    EXPECT_LE(figure.at("ratio"), figure.at("ratio_max"));
    EXPECT_EQ(figure.at("unit"), unit);
    EXPECT_EQ(figure.at("rounds"), rounds);
  }

  TempDir dir_;
  const std::string disk_ = dir_.file("disk");
};

// Every size, direction and way has its row; the roof says which program it was.
TEST_F(BenchTest, DiskReportsEverySizeAndDirection) {
  for (const char* roof : {"auto", "loop"}) {
    const nlohmann::json object =
        run_json({"disk", "--dir", disk_, "--page_bytes", "64KiB,256KiB", "--bytes", "1MiB",
                  "--rounds", "2", "--roof", roof});
    ASSERT_TRUE(object.is_object());
    EXPECT_EQ(object.at("bench"), "disk");
    EXPECT_EQ(object.at("directory"), disk_);
    const auto roof_text = object.at("roof").get<std::string>();
    const bool fio = roof_text.starts_with("fio");
    EXPECT_TRUE(fio || roof_text.starts_with("loop of pread")) << roof_text;
    EXPECT_FALSE(fio && roof == std::string("loop"));
    if (!fio && roof == std::string("auto")) {
      EXPECT_NE(roof_text.find("fio"), std::string::npos) << "why is it not fio?";
    }
    EXPECT_FALSE(object.at("storage").get<std::string>().empty());
    ASSERT_EQ(object.at("figures").size(), 8u);
    size_t i = 0;
    for (const int64_t page_bytes : {65536, 262144}) {
      for (const char* name : {"write", "read"}) {
        for (const char* path : {"page file", "storage"}) {
          const nlohmann::json& figure = object.at("figures")[i++];
          EXPECT_EQ(figure.at("page_bytes"), page_bytes);
          EXPECT_EQ(figure.at("name"), name);
          EXPECT_EQ(figure.at("path"), path);
          expect_figure(figure, 2);
        }
      }
    }
    EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "the file was left behind";
  }
}

TEST_F(BenchTest, DiskOnThreadsAsATable) {
  const ProcessResult result = run({"disk", "--dir", disk_, "--page_bytes", "64KiB", "--bytes",
                                    "256KiB", "--rounds", "1", "--roof", "loop", "--io",
                                    "threads"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* word :
       {"storage", "threads", "roof", "64.0 KiB", "page file", "write", "read"}) {
    EXPECT_NE(result.out.find(word), std::string::npos) << word << "\n" << result.out;
  }
}

TEST_F(BenchTest, Copy) {
  const nlohmann::json object =
      run_json({"copy", "--page_bytes", "12KiB", "64KiB", "--bytes", "1MiB", "--rounds", "3"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "copy");
  ASSERT_EQ(object.at("figures").size(), 6u);
  size_t i = 0;
  for (const char* name : {"upload", "download", "both"}) {
    EXPECT_FALSE(object.at(std::string("roof_") + name).get<std::string>().empty());
    for (const int64_t page_bytes : {12288, 65536}) {
      const nlohmann::json& figure = object.at("figures")[i++];
      EXPECT_EQ(figure.at("name"), name);
      EXPECT_EQ(figure.at("page_bytes"), page_bytes);
      EXPECT_EQ(figure.at("threads"), name == std::string("both") ? 2 : 1);
      expect_figure(figure, 3);
    }
  }
}

TEST_F(BenchTest, Memory) {
  const nlohmann::json object = run_json({"memory", "--bytes", "1MiB", "--rounds", "3"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "memory");
  EXPECT_FALSE(object.at("mbw").get<std::string>().empty());
  const nlohmann::json& figures = object.at("figures");
  ASSERT_TRUE(figures.size() == 5 || figures.size() == 10) << "one thread, and all if more";
  size_t i = 0;
  for (const nlohmann::json& figure : figures) {
    constexpr const char* kNames[] = {"read", "write", "copy", "triad", "update"};
    EXPECT_EQ(figure.at("name"), kNames[i++ % 5]);
    EXPECT_EQ(figure.at("threads").get<int>() == 1, i <= 5) << figure;
    expect_figure(figure, 3);
  }
}

// Each format against its stream, and what fewer bits are worth against fp32.
TEST_F(BenchTest, Adam) {
  const nlohmann::json object =
      run_json({"adam", "--bytes", "48MiB", "--rounds", "2", "--threads", "2"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "adam");
  EXPECT_FALSE(object.at("isa").get<std::string>().empty());
  EXPECT_EQ(object.at("bytes_per_element_fp32"), "26.000");
  EXPECT_EQ(object.at("bytes_per_element_bf16"), "18.000");
  const nlohmann::json& figures = object.at("figures");
  ASSERT_EQ(figures.size(), 10u) << "one record of all there is room for, and those of 2^20";
  size_t i = 0;
  for (const char* path : {"whole", "record"}) {
    for (const char* name : {"fp32", "bf16", "8bit", "bf16:fp32", "8bit:fp32"}) {
      const nlohmann::json& figure = figures[i++];
      EXPECT_EQ(figure.at("name"), name);
      EXPECT_EQ(figure.at("path"), path);
      EXPECT_EQ(figure.at("threads"), 2);
      EXPECT_EQ(figure.at("elements").get<int64_t>() == 1 << 20, path == std::string("record"));
      expect_figure(figure, 2, std::string(name).ends_with(":fp32") ? "Gelement/s" : "GB/s");
    }
  }
}

// Fewer columns than threads: some have no part of a library's product.
TEST_F(BenchTest, GemmOfFewColumns) {
  const nlohmann::json object =
      run_json({"gemm", "--bytes", "1MiB", "--rounds", "1", "--threads", "4", "--hidden", "3",
                "--ffn", "300", "--tokens", "1"});
  ASSERT_TRUE(object.is_object());
  EXPECT_GT(object.at("figures").at(0).at("value"), 0);
}

// A row against the roof for every size; and one against the library where there is one.
TEST_F(BenchTest, Gemm) {
  const nlohmann::json object =
      run_json({"gemm", "--bytes", "1MiB", "--rounds", "2", "--threads", "1", "--hidden", "64",
                "--ffn", "96,32", "--tokens", "5,300"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "gemm");
  for (const char* fact :
       {"products", "registers", "instructions", "read", "write", "to_library"}) {
    EXPECT_FALSE(object.at(fact).get<std::string>().empty()) << fact;
  }
  std::vector<std::string> rows;
  for (const nlohmann::json& figure : object.at("figures")) {
    const auto name = figure.at("name").get<std::string>();
    if (!name.ends_with(":lib")) {
      rows.push_back(name + ", " + figure.at("path").get<std::string>());
    }
    EXPECT_EQ(figure.at("unit"), "GFLOP/s");
    EXPECT_EQ(figure.at("threads"), 1);
    EXPECT_EQ(figure.at("rounds"), 2);
    EXPECT_GT(figure.at("value"), 0);
    EXPECT_GT(figure.at("ratio"), 0);
  }
  const std::vector<std::string> want = {"f 96, 5 tokens", "f 96, 300 tokens", "f 32, 5 tokens",
                                         "f 32, 300 tokens"};
  EXPECT_EQ(rows, want);
  expect_refused({"gemm", "--hidden", "0"}, 2, "--hidden: must be from 1 to 65536");
  expect_refused({"gemm", "--ffn", "32,0"}, 2, "--ffn: must be from 1 to 65536");
  expect_refused({"gemm", "--tokens", "65537"}, 2, "--tokens: must be from 1 to 65536");
  expect_refused({"gemm", "--threads", "1025"}, 2, "--threads: must be from 1 to 1024");
  expect_refused({"gemm", "--bytes", "1TiB"}, 71, "of memory");
}

TEST_F(BenchTest, Attention) {
  const nlohmann::json object =
      run_json({"attention", "--tokens", "512", "--lengths", "512,64", "--heads", "4", "--kv_heads",
                "2", "--head_dim", "32", "--rounds", "1"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "attention");
  ASSERT_EQ(object.at("figures").size(), 4u);
  size_t i = 0;
  for (const char* length : {"64", "512"}) {
    const auto memory = object.at(std::string("memory_") + length).get<std::string>();
    EXPECT_TRUE(memory.starts_with("tensors ")) << memory;
    for (const char* name : {"forward", "backward"}) {
      const nlohmann::json& figure = object.at("figures")[i++];
      EXPECT_EQ(figure.at("name"), name);
      EXPECT_EQ(figure.at("path"), std::string("length ") + length);
      expect_figure(figure, 1, "GFLOP/s");
    }
  }
}

// 2.4 million parameters: far more than the least memory that a step with them needs.
constexpr const char* kStepConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 320,
  "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 96, "num_experts": 32,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 10000.0, "tie_word_embeddings": false, "router_aux_loss_coef": 0.01,
  "initializer_range": 0.02, "max_position_embeddings": 2048, "mlp_only_layers": [],
  "decoder_sparse_step": 1, "attention_bias": false})";

TEST_F(BenchTest, Step) {
  put_file(dir_.file("step.json"), kStepConfig);
  const nlohmann::json object =
      run_json({"step", "--config", dir_.file("step.json"), "--dir", disk_, "--tokens", "128",
                "--sequence_len", "32", "--rounds", "2"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object.at("bench"), "step");
  const auto resident = object.at("qwen3_moe_resident").get<std::string>();
  EXPECT_NE(resident.find(", 0 B to it, "), std::string::npos) << resident;
  ASSERT_EQ(object.at("figures").size(), 2u) << "nothing was paged: " << object;
  size_t i = 0;
  for (const char* path : {"resident", "paged"}) {
    const nlohmann::json& figure = object.at("figures")[i++];
    EXPECT_EQ(figure.at("name"), "qwen3_moe");
    EXPECT_EQ(figure.at("path"), path);
    expect_figure(figure, 2, "token/s");
  }
  EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "the pages were left behind";
}

// A sheet that says where it is from, with every rate in it, and that `plan` takes.
TEST_F(BenchTest, Machine) {
  const std::string sheet = dir_.file("mine.toml");
  const ProcessResult quiet = run({"machine", "--device", "cpu", "--dir", disk_, "--bytes",
                                   "16MiB", "--rounds", "1", "--out", sheet});
  ASSERT_EQ(quiet.code, 0) << quiet.err;
  EXPECT_EQ(quiet.out, "");
  EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "something was left behind";
  const std::string text = get_file(sheet);
  EXPECT_NE(text.find("source = \"measured\""), std::string::npos) << text;
  EXPECT_NE(text.find("kind = \"cpu\""), std::string::npos) << text;
  for (const char* key :
       {"\npeak_tflops = ", "\ngemm_tflops = ", "\nweight_gb_s = ", "\nattention_tflops = ",
        "\nmemory_gb_s = ", "\nlaunch_us = ", "\ncores = ", "\ncopy_gb_s = ",
        "\nchecksum_gb_s = ", "\nread_gb_s = ", "\nwrite_gb_s = "}) {
    const size_t at = text.find(key);
    ASSERT_NE(at, std::string::npos) << key << " of\n" << text;
    EXPECT_GT(std::atof(text.c_str() + at + std::strlen(key)), 0) << key;
  }
  const std::string configs = std::string(PAGODA_GOLDEN_DIR) + "/../../configs";
  const ProcessResult plan =
      Process({PAGODA_BINARY, "plan", "--model.path", configs + "/models/olmoe-1b-7b.json",
               "--machine", sheet, "--memory.device", "8GiB", "--memory.host", "8GiB"},
              dir_.file("plan")).wait();
  EXPECT_TRUE(plan.code == 0 || plan.code == 3) << plan.err;
  EXPECT_NE(plan.out.find("6,919,161,856"), std::string::npos) << plan.out;

  expect_refused({"machine", "--rounds", "0"}, 2, "--rounds: must be from 1");
  expect_refused({"machine", "--bytes", "1MiB"}, 2, "--bytes: \"1MiB\"");
  expect_refused({"machine", "--bytes", "1TiB"}, 71, "of memory");
  expect_refused({"machine", "--device", "tpu"}, 2, "one of auto, cpu, cuda");
  expect_refused({"machine", "--dir", dir_.file("none")}, 66, "no such folder");
  expect_refused({"machine", "--out", dir_.file("none/mine.toml")}, 73, "create it");
}

// With a run file the sheet has the costs of the run's devices, by which `plan` takes a layout. How
// slow they are found to be is a quiet machine's to say.
TEST_F(BenchTest, MachineOfARun) {
  std::filesystem::create_directory(dir_.file("model"));
  put_file(dir_.file("model/config.json"), kStepConfig);
  put_file(dir_.file("run.toml"), "[model]\npath = \"" + dir_.file("model") + R"("
[data]
sequence_len = 32
[train]
devices = ["cpu/2", "cpu/2:6"]
tokens_per_step = 128
micro_batch_tokens = 32
chunks = 2
[memory]
device = "1GiB"
host = "1GiB"
)");
  const std::string sheet = dir_.file("mine.toml");
  const ProcessResult measured = run({"machine", dir_.file("run.toml"), "--device", "cpu", "--dir",
                                      disk_, "--bytes", "16MiB", "--rounds", "1", "--out", sheet});
  ASSERT_EQ(measured.code, 0) << measured.err;
  EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "something was left behind";
  EXPECT_NE(measured.err.find("\ncpu/2:6   "), std::string::npos) << measured.err;
  EXPECT_NE(measured.err.find("exchange ms"), std::string::npos) << measured.err;
  EXPECT_NE(measured.err.find("must be kept by devices that attend"), std::string::npos)
      << measured.err;
  const std::string text = get_file(sheet);
  for (const char* part : {"devices = [\"cpu/2\", \"cpu/2:6\"]", "cpu/2, attention: ",
                           "cpu/2:6, expert backward: ", "experts of 96, 2 of them a token"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " of\n" << text;
  }
  const auto plan = [&](const std::string& layout) {
    return Process({PAGODA_BINARY, "plan", dir_.file("run.toml"), "--parallel.layout", layout,
                    "--machine", sheet, "--json"},
                   dir_.file("plan"))
        .wait();
  };
  const ProcessResult by_itself = plan("auto"), zebra = plan("zebra"), experts = plan("experts");
  ASSERT_EQ(by_itself.code, 0) << by_itself.err;
  const auto step_s = [](const ProcessResult& result) {
    return nlohmann::json::parse(result.out).at("step").at("step_s").get<double>();
  };
  EXPECT_DOUBLE_EQ(step_s(by_itself), std::min(step_s(zebra), step_s(experts)));
  expect_refused({"machine", dir_.file("none.toml"), "--dir", disk_}, 66, "none.toml");
}

TEST_F(BenchTest, WrongCommandLines) {
  expect_refused({}, 2, "no command given");
  expect_refused({"dsik"}, 2, "did you mean \"disk\"?");
  expect_refused({"disk", "--rounds", "0"}, 2, "--rounds: must be from 1");
  expect_refused({"memory", "--rounds", "1001"}, 2, "--rounds: must be from 1 to 1000");
  expect_refused({"disk", "--page_bytes", "5000"}, 2, "--page_bytes: \"5000\"");
  expect_refused({"disk", "--page_bytes", "10000B"}, 2, "must be a multiple of 4096 bytes");
  expect_refused({"disk", "--page_bytes", "50%"}, 2, "--page_bytes: \"50%\"");
  expect_refused({"disk", "--bytes", "auto"}, 2, "--bytes: \"auto\"");
  expect_refused({"disk", "--bytes", "32MiB"}, 2, "must be a size from 64.00 MiB");
  expect_refused({"disk", "--bytes", "100TiB"}, 2, "must be a size from 64.00 MiB to 64.00 GiB");
  expect_refused({"copy", "--bytes", "1TiB"}, 71, "GiB of memory");
  expect_refused({"copy", "--bytes", "1KiB"}, 2, "--bytes: \"1KiB\"");
  expect_refused({"disk", "--io", "libaio"}, 2, "one of auto, uring, threads");
  expect_refused({"disk", "--roof", "dd"}, 2, "one of auto, fio, loop");
  expect_refused({"memory", "--dir", "x"}, 2, "unknown flag \"--dir\"");
  expect_refused({"adam", "--bytes", "1KiB"}, 2, "--bytes: \"1KiB\"");
  expect_refused({"adam", "--threads", "0"}, 2, "--threads: must be from 1");
  expect_refused({"attention", "--threads", "0"}, 2, "--threads: must be from 1 to 1024");
  expect_refused({"attention", "--heads", "3"}, 2, "--heads must be a multiple of --kv_heads");
  expect_refused({"attention", "--head_dim", "7"}, 2, "--head_dim even");
  expect_refused({"attention", "--lengths", "0"}, 2, "--lengths: 0 does not divide");
  expect_refused({"attention", "--lengths", "300"}, 2, "--lengths: 300 does not divide the 16384");
  expect_refused({"step", "--tokens", "1000"}, 2, "--sequence_len: must be from 1 to 1000");
  expect_refused({"step", "--tokens", "1500"}, 2, "must be a multiple of --sequence_len");
  expect_refused({"step", "--config", dir_.file("none"), "--dir", disk_}, 66, "none");
}

TEST_F(BenchTest, FoldersThatCannotBeUsed) {
  expect_refused({"disk", "--dir", dir_.file("none")}, 66, "no such folder");
  expect_refused({"step", "--dir", dir_.file("none")}, 66, "no such folder");
  const Words small = {"disk", "--page_bytes", "64KiB", "--bytes", "1MiB", "--rounds", "1"};
  const auto at = [&](const std::string& folder) {
    Words words = small;
    words.insert(words.end(), {"--dir", folder});
    return words;
  };
  // Nobody, root included, can make a folder there.
  expect_refused(at("/proc"), 73, "/proc");
  if (geteuid() != 0) {
    std::filesystem::permissions(disk_, std::filesystem::perms::owner_read |
                                            std::filesystem::perms::owner_exec);
    expect_refused(at(disk_), 73, disk_);
  }
}

TEST_F(BenchTest, ADiskWithoutRoom) {
  expect_refused({"disk", "--dir", disk_, "--page_bytes", "4GiB", "--bytes", "200TiB"}, 73,
                 "need 2048");
  // A quota, as a limit on the size of a file shows it.
  const ProcessResult limited = run({"disk", "--dir", disk_, "--page_bytes", "1MiB", "--bytes",
                                     "16MiB", "--rounds", "1"},
                                    {.file_bytes = 1 << 20});
  EXPECT_EQ(limited.code, 73) << limited.err;
  EXPECT_NE(limited.error_line().find("cannot create"), std::string::npos) << limited.err;
  EXPECT_TRUE(std::filesystem::is_empty(disk_));
}

TEST_F(BenchTest, ASignalEndsItAndNothingIsLeft) {
  Process process({PAGODA_BINARY, "bench", "disk", "--dir", disk_, "--page_bytes", "64KiB",
                   "--bytes", "1MiB", "--rounds", "1000", "--roof", "loop"},
                  dir_.file("run"));
  const auto begin = std::chrono::steady_clock::now();
  while (std::filesystem::is_empty(disk_) &&
         std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  process.send(SIGTERM);
  const ProcessResult result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_EQ(result.signal, 0) << "it did not end by itself";
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.error_line().find("stopped by signal 15 while measuring"), std::string::npos)
      << result.err;
  EXPECT_TRUE(std::filesystem::is_empty(disk_)) << "something was left behind";
}

}  // namespace
}  // namespace pagoda
