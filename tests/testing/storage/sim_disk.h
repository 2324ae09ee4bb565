// SimDisk: a file system in memory that remembers what was not yet flushed, and can lose power.
//
// The model is the weakest a POSIX disk may be (after SQLite's test6.c and FoundationDB's
// AsyncFileNonDurable): at a power loss every write not covered by a flush of its file is kept,
// dropped, or torn at 4 KiB sectors, in any combination; every creation, rename and removal not
// covered by a flush of its directory is kept or dropped; a file that was never flushed may come
// back empty. A directory's own name is covered by a flush of its parent.
//
// Not thread-safe: SimStorage calls it under its lock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

class SimDisk {
 public:
  static constexpr int64_t kSectorBytes = 4096;

  // A file or directory. `bytes` and `entries` are what a running program sees.
  struct Node {
    bool is_directory = false;
    bool locked = false;  // for one who writes
    int readers = 0;      // readers that hold it together
    std::vector<std::byte> bytes;
    std::map<std::string, std::shared_ptr<Node>> entries;

   private:
    friend class SimDisk;
    struct Version {
      int64_t write = 0;  // number of the write that made it; 0 for the flushed content
      std::array<std::byte, kSectorBytes> content;
    };
    // Sectors with unflushed writes: the flushed content, then the newest few versions.
    std::map<int64_t, std::vector<Version>> unflushed;
    bool ever_flushed = false;
    std::map<std::string, std::shared_ptr<Node>> flushed_entries;
  };
  using NodePointer = std::shared_ptr<Node>;

  // Null when nothing is there. Paths are split at '/'; there is no working directory.
  NodePointer find(const std::string& path) const;

  // These return false when the parent is missing or the target is in the way.
  NodePointer create_file(const std::string& path);  // null on failure; replaces an existing file
  bool make_directory(const std::string& path);      // with parents; true if it is there already
  bool rename(const std::string& from, const std::string& to);
  bool remove(const std::string& path);  // a file or an empty directory

  // REQUIRES: [offset, offset + bytes) lies inside the file.
  void write(Node* file, int64_t offset, const std::byte* data, int64_t bytes);
  void flush(Node* file);
  void flush_directory(Node* directory);
  // What a read would have seen before the unflushed writes.
  void read_flushed(const Node& file, int64_t offset, std::byte* data, int64_t bytes) const;

  // Power loss: see above. `seed` decides what survives. Nodes held by callers are dead afterwards.
  void crash(uint64_t seed);

 private:
  // A change of names since the last flush of the directories it touches. The name `from` goes and
  // the name `to` appears, if there are such; a rename is one change, never half of it.
  struct Change {
    NodePointer from_directory, to_directory;
    std::string from, to;
    NodePointer node;
  };

  struct Place {
    NodePointer directory;  // null when a parent is missing
    std::string name;
  };
  Place place(const std::string& path) const;
  static void make_durable(const Change& change);
  static void lose_writes(Node* file, uint64_t seed);
  void lose_power(Node* node, uint64_t seed, uint64_t* nodes);

  NodePointer root_ = make_root();
  static NodePointer make_root();
  std::vector<Change> changes_;  // oldest first
  int64_t writes_ = 0;
};

}  // namespace pagoda
