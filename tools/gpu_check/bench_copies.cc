// Copies between pinned host memory and the device on our streams, in pieces, against a loop of
// bare cudaMemcpyAsync: each direction alone and both at once. By the host's clock, from the first
// call to the end of the last copy.
#include <algorithm>
#include <chrono>
#include <vector>

#include "tools/gpu_check/bench.h"

namespace pagoda::check {
namespace {

constexpr int64_t kPiece = int64_t{32} << 20, kBytes = 8 * kPiece;
constexpr int kRounds = 7;

struct Direction {
  const char* name;
  cudaMemcpyKind kind;
  std::byte *target, *source;
  std::unique_ptr<Stream> ours;
  cudaStream_t bare;
};

void copy_ours(const std::vector<Direction*>& directions) {
  for (int64_t at = 0; at < kBytes; at += kPiece) {
    for (Direction* d : directions) d->ours->copy(d->target + at, d->source + at, kPiece);
  }
  for (Direction* d : directions) d->ours->synchronize();
}

void copy_bare(Bench& b, const std::vector<Direction*>& directions) {
  for (int64_t at = 0; at < kBytes; at += kPiece) {
    for (Direction* d : directions) {
      b.check(cudaMemcpyAsync(d->target + at, d->source + at, size_t(kPiece), d->kind, d->bare),
              "cudaMemcpyAsync");
    }
  }
  for (Direction* d : directions) b.check(cudaStreamSynchronize(d->bare), "cudaStreamSynchronize");
}

double wall_us(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - begin;
  return us.count();
}

void compare(Bench& b, const std::string& what, const std::vector<Direction*>& directions) {
  std::vector<double> ours, bare;
  for (int i = 0; i <= kRounds; ++i) {
    const double us = wall_us([&] { copy_ours(directions); });
    const double bare_us = wall_us([&] { copy_bare(b, directions); });
    if (i == 0) continue;
    ours.push_back(us);
    bare.push_back(bare_us);
  }
  std::sort(ours.begin(), ours.end());
  std::sort(bare.begin(), bare.end());
  const double us = ours[kRounds / 2], bytes = double(kBytes) * double(directions.size());
  print_line(b.scores.at_least("copies " + what, bare[kRounds / 2] / us, 0.95,
                               strf("%.1f GB/s", bytes / us * 1e-3)));
}

}  // namespace

void bench_copies(Bench& b) {
  std::byte* host[2];
  for (std::byte*& memory : host) {
    void* pinned = nullptr;
    b.check(cudaHostAlloc(&pinned, size_t(kBytes), cudaHostAllocDefault), "cudaHostAlloc");
    memory = static_cast<std::byte*>(pinned);
  }
  Direction up{"to the device", cudaMemcpyHostToDevice, b.arena.take(kBytes), host[0],
               b.device.make_stream("upload 0", WorkKind::kUpload), nullptr};
  Direction down{"to the host", cudaMemcpyDeviceToHost, host[1], b.arena.take(kBytes),
                 b.device.make_stream("download 0", WorkKind::kDownload), nullptr};
  for (Direction* d : {&up, &down}) b.check(cudaStreamCreate(&d->bare), "cudaStreamCreate");
  for (Direction* d : {&up, &down}) compare(b, d->name, {d});
  compare(b, "both ways at once", {&up, &down});
  for (Direction* d : {&up, &down}) {
    cudaStreamDestroy(d->bare);
    d->ours.reset();
  }
  for (std::byte* memory : host) cudaFreeHost(memory);
}

}  // namespace pagoda::check
