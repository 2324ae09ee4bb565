// The re-index vector (HEXA-MoE 3.2): a stable counting sort of choices by expert, in chunks. Each
// chunk counts its choices of each expert, the counts become places, each choice adds its rank
// inside its chunk.
#include "kernels/cuda/machine/reduce.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

constexpr int kChunk = 256;  // choices

// counts[chunk * experts + e]
struct CountChoices {
  static constexpr int kThreads = kChunk, kSharedBytes = kChunk * 4;
  const int32_t* experts;
  int64_t choices, num_experts;
  int32_t* counts;
  PAGODA_GPU void operator()() const {
    int32_t* chosen = reinterpret_cast<int32_t*>(shared_memory());
    const int64_t choice = block_number() * kChunk + thread_number();
    chosen[thread_number()] = choice < choices ? experts[choice] : -1;
    sync_block();
    for (int64_t e = thread_number(); e < num_experts; e += kThreads) {
      int32_t count = 0;
      for (int i = 0; i < kChunk; ++i) count += chosen[i] == e ? 1 : 0;
      counts[block_number() * num_experts + e] = count;
    }
  }
};

// Counts become the place of the chunk's first choice of an expert.
struct PlaceChunks {
  const int32_t* first;
  int64_t chunks, num_experts;
  int32_t* counts;
  PAGODA_GPU void operator()(int64_t, int64_t e) const {
    int32_t place = first[e];
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      int32_t& count = counts[chunk * num_experts + e];
      const int32_t next = place + count;
      count = place;
      place = next;
    }
  }
};

struct PlaceChoices {
  static constexpr int kThreads = kChunk, kSharedBytes = kChunk * 4;
  const int32_t* experts;
  int64_t choices, k, num_experts;
  const int32_t* places;
  int32_t *rows, *row_choices;
  PAGODA_GPU void operator()() const {
    int32_t* chosen = reinterpret_cast<int32_t*>(shared_memory());
    const int64_t choice = block_number() * kChunk + thread_number();
    const int32_t expert = choice < choices ? experts[choice] : -1;
    chosen[thread_number()] = expert;
    sync_block();
    if (expert < 0) return;
    int32_t place = places[block_number() * num_experts + expert];
    for (int i = 0; i < thread_number(); ++i) place += chosen[i] == expert ? 1 : 0;
    rows[place] = static_cast<int32_t>(quotient(choice, k));
    row_choices[place] = static_cast<int32_t>(choice);
  }
};

struct Sort {
  Sort(Queue& queue, const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts)
      : queue(queue), experts(experts), choices(tokens * k), k(k), num_experts(num_experts),
        chunks(div_ceil(choices, kChunk)), counts(queue, chunks * num_experts) {
    CHECK(tokens >= 0 && k > 0 && num_experts > 0 && choices <= INT32_MAX);
    queue.launch(chunks, CountChoices{experts, choices, num_experts, counts.get()});
  }
  void place(const int32_t* first, int32_t* rows, int32_t* row_choices) {
    for_each_element(queue, 1, num_experts, PlaceChunks{first, chunks, num_experts, counts.get()});
    queue.launch(chunks, PlaceChoices{experts, choices, k, num_experts, counts.get(), rows,
                                      row_choices});
  }

  Queue& queue;
  const int32_t* experts;
  int64_t choices, k, num_experts, chunks;
  Temporary<int32_t> counts;
};

}  // namespace

void CudaOps::index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                         const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) {
  CHECK(num_experts > 0);
  Queue queue(s, "index_rows");
  std::vector<int32_t> places;
  for (int64_t e = 0; e < num_experts; ++e) places.push_back(narrow<int32_t>(first[e]));
  Temporary<int32_t> on_device(queue, num_experts);
  upload(queue, on_device.get(), places.data(), num_experts);
  Sort(queue, experts, tokens, k, num_experts).place(on_device.get(), rows, choices);
}

}  // namespace pagoda::PAGODA_MACHINE
