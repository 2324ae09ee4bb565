// Fibers are made by makecontext and switched by the compiler's jumps, which need no system call
// (the way of QEMU's coroutines, which jump by the C library). Neither the library's check that a
// jump goes up the stack nor sanitizers know of fibers: this file is built without the latter.
#include "kernels/cuda/machine/machine_emulated.h"

#include <cmath>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include <ucontext.h>

#include "base/dtype.h"

namespace pagoda::emulated {

thread_local Place place;

namespace {

constexpr int kLanes = 32;
constexpr size_t kStackBytes = 128 * 1024;

enum class Waits { kNothing, kWarp, kBlock, kEnded };

struct Copy {
  void* shared;
  const void* global;
  int bytes;
};

struct Fiber {
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  ucontext_t first;
  void* here[5];
  bool started = false;
  Waits waits = Waits::kNothing;
  bool vote = false;
  int meetings = 0;
  Brought brought[2];
  std::vector<Copy> uncommitted;
  std::deque<std::vector<Copy>> committed;
};

// The fibers of one host thread, kept from launch to launch.
class Emulator {
 public:
  void run(int64_t blocks, int threads, int shared_bytes, bool backwards,
           const std::function<void()>& kernel) {
    CHECK(threads > 0 && threads % kLanes == 0, "%d threads a block", threads);
    while (fibers_.size() < static_cast<size_t>(threads)) fibers_.push_back(make_fiber());
    threads_ = threads;
    kernel_ = &kernel;
    backwards_ = backwards;
    std::unique_ptr<unsigned char[]> memory(new unsigned char[shared_bytes + 128]);
    place.shared = reinterpret_cast<unsigned char*>(
        (reinterpret_cast<uintptr_t>(memory.get()) + 127) / 128 * 128);
    for (int64_t i = 0; i < blocks; ++i) {
      place.block = backwards ? blocks - 1 - i : i;
      std::memset(place.shared, 0xff, static_cast<size_t>(shared_bytes));  // NaN
      run_block();
    }
  }

  Fiber& current() { return *fibers_[static_cast<size_t>(place.thread)]; }
  Fiber& lane(int lane) {
    return *fibers_[static_cast<size_t>(place.thread / kLanes * kLanes + lane)];
  }
  bool any_vote() const {
    for (int i = 0; i < threads_; ++i) {
      if (fibers_[static_cast<size_t>(i)]->vote) return true;
    }
    return false;
  }
  // Leaves the running fiber until its wait is over: goes to the next lane of its warp, and from
  // the last one to run_warp().
  void wait(Waits what) {
    Fiber& fiber = current();
    fiber.waits = what;
    if (__builtin_setjmp(fiber.here) != 0) return;
    const int lane = place.thread % kLanes;
    if (lane == (backwards_ ? 0 : kLanes - 1)) jump(scheduler_);
    resume(place.thread + (backwards_ ? -1 : 1));
  }
  [[noreturn]] void begin_fiber() {
    for (;;) {
      (*kernel_)();
      check_copies(current());
      wait(Waits::kEnded);
    }
  }

 private:
  static void fiber_main();
  // Its own function, since none may jump to itself.
  [[noreturn, gnu::noinline]] static void jump(void** here) { __builtin_longjmp(here, 1); }

  static void check_copies(Fiber& fiber) {
    CHECK(fiber.uncommitted.empty(), "copies that were never committed");
    for (const auto& group : fiber.committed) {
      CHECK(group.empty(), "copies that nobody waited for");
    }
    fiber.committed.clear();
  }

  std::unique_ptr<Fiber> make_fiber() {
    auto fiber = std::make_unique<Fiber>();
    CHECK(getcontext(&fiber->first) == 0);
    fiber->first.uc_stack.ss_sp = fiber->stack.get();
    fiber->first.uc_stack.ss_size = kStackBytes;
    fiber->first.uc_link = nullptr;
    makecontext(&fiber->first, fiber_main, 0);
    return fiber;
  }

  void run_block() {
    for (int i = 0; i < threads_; ++i) {
      fibers_[static_cast<size_t>(i)]->waits = Waits::kNothing;
      fibers_[static_cast<size_t>(i)]->meetings = 0;
    }
    const int warps = threads_ / kLanes;
    for (;;) {
      for (int i = 0; i < warps; ++i) run_warp(backwards_ ? warps - 1 - i : i);
      const Waits common = fibers_[0]->waits;
      for (int i = 0; i < threads_; ++i) {
        CHECK(fibers_[static_cast<size_t>(i)]->waits == common,
              "thread %d does not reach a barrier of its block", i);
      }
      if (common == Waits::kEnded) return;
      for (int i = 0; i < threads_; ++i) fibers_[static_cast<size_t>(i)]->waits = Waits::kNothing;
    }
  }

  // Runs a warp until all its threads wait for the block or have ended.
  void run_warp(int warp) {
    Fiber* first = fibers_[static_cast<size_t>(warp * kLanes)].get();
    if (first->waits == Waits::kEnded) return;
    do {
      if (__builtin_setjmp(scheduler_) == 0) resume(warp * kLanes + (backwards_ ? kLanes - 1 : 0));
      for (int i = 0; i < kLanes; ++i) {
        CHECK(fibers_[static_cast<size_t>(warp * kLanes + i)]->waits == first->waits,
              "lane %d of warp %d does not reach a collective of its warp", i, warp);
      }
    } while (first->waits == Waits::kWarp);
  }

  [[noreturn]] void resume(int thread) {
    Fiber& fiber = *fibers_[static_cast<size_t>(thread)];
    place.thread = thread;
    fiber.waits = Waits::kNothing;
    if (fiber.started) jump(fiber.here);
    fiber.started = true;
    setcontext(&fiber.first);
    std::abort();
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  void* scheduler_[5];
  int threads_ = 0;
  bool backwards_ = false;
  const std::function<void()>* kernel_ = nullptr;
};

Emulator& emulator() {
  static thread_local Emulator emulator;
  return emulator;
}

void Emulator::fiber_main() { emulator().begin_fiber(); }

bool backwards_now = false, heap_now = true;

float of_bf16(uint16_t bits) { return to_float(bf16{bits}); }

float of_fp16(uint16_t bits) {
  const uint32_t size = bits & 0x7fffu;
  const float value = size >= 0x7c00u ? float_of(size << 13 | 0x7f800000u)
                                      : float_of(size << 13) * 0x1p112f;
  return bits >> 15 != 0 ? -value : value;
}

void arrive(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    std::memset(copy.shared, 0, 16);
    std::memcpy(copy.shared, copy.global, static_cast<size_t>(copy.bytes));
  }
}

}  // namespace

void require(bool condition) { CHECK(condition, "a kernel trapped"); }

void sync_block() { emulator().wait(Waits::kBlock); }

void sync_warp() { meet_warp(nullptr, 0); }

bool vote_in_block(bool condition) {
  emulator().current().vote = condition;
  sync_block();
  const bool any = emulator().any_vote();
  sync_block();
  return any;
}

// There are two sets of contributions: a lane that goes on to the next meeting does not overwrite
// bytes that others have yet to read.
void meet_warp(const void* data, int size) {
  Fiber& fiber = emulator().current();
  Brought& mine = fiber.brought[++fiber.meetings % 2];
  if (size > 0) std::memcpy(mine.bytes, data, static_cast<size_t>(size));
  emulator().wait(Waits::kWarp);
}

const void* brought_by(int lane) {
  CHECK(lane >= 0 && lane < kLanes, "lane %d", lane);
  return emulator().lane(lane).brought[emulator().current().meetings % 2].bytes;
}

uint32_t ballot(bool condition) {
  meet_warp(&condition, sizeof condition);
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    bits |= uint32_t{*static_cast<const bool*>(brought_by(i))} << i;
  }
  return bits;
}

void copy_async16(void* shared, const void* global, int bytes) {
  CHECK(bytes >= 0 && bytes <= 16);
  CHECK(reinterpret_cast<uintptr_t>(shared) % 16 == 0 &&
        reinterpret_cast<uintptr_t>(global) % 16 == 0, "a copy that is not aligned");
  emulator().current().uncommitted.push_back({shared, global, bytes});
}

void commit_copies() {
  Fiber& fiber = emulator().current();
  fiber.committed.push_back(std::move(fiber.uncommitted));
  fiber.uncommitted.clear();
}

void wait_copies_but(int newest) {
  auto& committed = emulator().current().committed;
  while (committed.size() > static_cast<size_t>(newest)) {
    arrive(committed.front());
    committed.pop_front();
  }
}

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed) {
  CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "a row that is not aligned");
  meet_warp(&row, sizeof row);
  const int lane = lane_number();
  const auto half = [&](int matrix, int row_number, int column) {
    const void* address;
    std::memcpy(&address, brought_by(matrix * 8 + row_number), sizeof address);
    uint16_t bits;
    std::memcpy(&bits, static_cast<const unsigned char*>(address) + 2 * column, 2);
    return uint32_t{bits};
  };
  for (int i = 0; i < 4; ++i) {
    const int outer = lane / 4, inner = lane % 4 * 2;
    r[i] = transposed ? half(i, inner, outer) | half(i, inner + 1, outer) << 16
                      : half(i, outer, inner) | half(i, outer, inner + 1) << 16;
  }
}

// Lane l holds of A rows l/4 and l/4 + 8, of B column l/4, each at depths l%4*2 + {0, 1, 8, 9}; of
// C rows l/4 and l/4 + 8, columns l%4*2 + {0, 1} (PTX ISA, "mma.m16n8k16").
template <float (*kNumber)(uint16_t)>
void add_products(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  struct Operands {
    float a[4][2], b[2][2];
  };
  Operands mine;
  for (int half = 0; half < 2; ++half) {
    const auto number = [&](uint32_t pair) {
      return kNumber(static_cast<uint16_t>(pair >> 16 * half));
    };
    for (int i = 0; i < 4; ++i) mine.a[i][half] = number(a[i]);
    for (int i = 0; i < 2; ++i) mine.b[i][half] = number(b[i]);
  }
  meet_warp(&mine, sizeof mine);
  const int row = lane_number() / 4, column = lane_number() % 4 * 2;
  const Operands *left[4], *right[2][4];
  for (int holder = 0; holder < 4; ++holder) {
    left[holder] = static_cast<const Operands*>(brought_by(row * 4 + holder));
    for (int j = 0; j < 2; ++j) {
      right[j][holder] = static_cast<const Operands*>(brought_by((column + j) * 4 + holder));
    }
  }
  for (int k = 0; k < 16; ++k) {
    const int holder = k % 8 / 2, half = k % 2, upper = k / 8;
    for (int j = 0; j < 2; ++j) {
      const float y = right[j][holder]->b[upper][half];
      c[j] += left[holder]->a[2 * upper][half] * y;
      c[2 + j] += left[holder]->a[2 * upper + 1][half] * y;
    }
  }
}

void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  add_products<of_bf16>(c, a, b);
}
void multiply_add_fp16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  add_products<of_fp16>(c, a, b);
}

uint32_t bf16_pair(float low, float high) {
  const auto round = [](float v) { return v == v ? uint32_t{bf16_round(v).bits} : 0x7fffu; };
  return round(low) | round(high) << 16;
}

uint16_t fp16_bits(float v) {
  const uint32_t bits = bits_of(v), size = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  const auto signed_bits = [&](uint32_t half) { return static_cast<uint16_t>(sign | half); };
  if (size > 0x7f800000u) return signed_bits(0x7e00);
  if (size >= bits_of(65520.0f)) return signed_bits(0x7c00);
  // Below the normal numbers: as multiples of 2^-24, the step of floats behind 0.5.
  if (size < bits_of(0x1p-14f)) return signed_bits(bits_of(float_of(size) + 0.5f) - bits_of(0.5f));
  return signed_bits((size + 0xfffu + (size >> 13 & 1u) - (112u << 23)) >> 13);
}

void run_blocks(int64_t blocks, int threads, int shared_bytes,
                const std::function<void()>& kernel) {
  emulator().run(blocks, threads, shared_bytes, backwards_now, kernel);
}

void run_backwards(bool backwards) { backwards_now = backwards; }

void take_heap(bool allowed) { heap_now = allowed; }

bool Queue::takes_heap() const { return heap_now && stream_.scratch().empty(); }

void* Queue::allocate(int64_t bytes) {
  void* memory = takes_heap() ? std::malloc(static_cast<size_t>(bytes)) : scratch_.take(bytes);
  CHECK(memory != nullptr, "out of memory");
  stream_.enqueue([=] { std::memset(memory, 0xff, static_cast<size_t>(bytes)); });
  return memory;
}

void Queue::release(void* memory) {
  if (takes_heap()) stream_.enqueue([memory] { std::free(memory); });
}

}  // namespace pagoda::emulated
