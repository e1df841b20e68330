// Hash index from ids to slots: buckets in the order of hashes, that grow in number by a third at a time, a few buckets
// at each insert, so that no call ever waits for a rehash of the whole.
//
// While it grows, the cursor says up to where ids have moved; the chunks behind it become those of the new array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <vector>

#include "views.hpp"

namespace heterps::store {

inline constexpr std::uint64_t kLastHash = ~std::uint64_t{0};   // the end of the order that `each` goes in

class Index {
 public:
  Index();
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // Stays where it is; its fields change when ids are inserted.
  const IndexView& view() const { return view_; }
  std::size_t size() const { return live_; }

  std::uint32_t find(std::int64_t id) const {
    const std::uint32_t* entry = locate(id);
    return entry == nullptr ? kNoSlot : *entry - 1;
  }
  // The id must not be there yet; for erase and move it must be.
  void insert(std::int64_t id, std::uint32_t slot);
  void erase(std::int64_t id);
  void move(std::int64_t id, std::uint32_t to) { *locate(id) = to + 1; }

  // Calls visit(id, slot) for every id whose hash lies in [from, to].
  template <typename Visit>
  void each(std::uint64_t from, std::uint64_t to, Visit&& visit) const {
    each_in(view_.present, from, to, visit);
    if (view_.old.size > 0) each_in(view_.old, from, to, visit);
  }

  // Fetches the bucket that an id will be looked for in.
  HETERPS_INLINE void fetch(std::int64_t id) const {
    const std::uint64_t hash = view_.place(id);
    const BucketArray& array = view_.array_of(hash);
    __builtin_prefetch(&array.at(array.home(hash)), 1);
  }

  bool growing() const { return view_.old.size > 0; }
  // Goes on with a growth that is under way, by so many buckets: without it one might stop halfway for good.
  void go_on(std::uint32_t buckets) {
    if (growing()) move_some(buckets);
  }
  // Takes no more memory than its ids need: for after many were erased. Touches all of them.
  void fit();
  void clear();
  std::size_t bytes() const;

 private:
  std::uint32_t* locate(std::int64_t id) const;

  template <typename Visit>
  void each_in(const BucketArray& array, std::uint64_t from, std::uint64_t to, Visit& visit) const {
    const std::uint32_t last = array.home(to);
    std::uint32_t b = array.home(from);
    for (std::uint32_t step = 0; step < array.size; ++step, b = array.after(b)) {
      if (array.chunks[b >> BucketArray::kChunkShift] == nullptr) {   // not moved to yet, or no longer there
        if (b >= last) return;
        continue;
      }
      const Bucket& bucket = array.at(b);
      for (int i = 0; i < Bucket::kEntries && bucket.slot[i] != 0; ++i) {
        const std::uint64_t hash = view_.place(bucket.id[i]);
        if (bucket.slot[i] != kErased + 1 && hash >= from && hash <= to) visit(bucket.id[i], bucket.slot[i] - 1);
      }
      // Beyond the last home only ids that found no room there, up to a bucket with room.
      if ((b >= last || b < array.home(from)) && bucket.slot[Bucket::kEntries - 1] == 0) return;
    }
  }

  void start_growing(std::size_t inserts);   // that come before it is done
  void move_some(std::uint32_t buckets);
  void put(const BucketArray& array, std::uint64_t hash, std::int64_t id, std::uint32_t slot);
  void make_chunks(std::uint32_t buckets);       // of the present array, up to so many buckets
  Bucket* take_chunk();
  void free_chunk(Bucket* chunk, std::uint32_t size);
  static std::uint32_t chunk_size(std::uint32_t size) {
    return size < 1u << BucketArray::kChunkShift ? size : 1u << BucketArray::kChunkShift;
  }

  IndexView view_;
  std::vector<Bucket*> present_, old_;   // chunks; null where there are none yet, or no longer
  std::size_t made_ = 0;                 // present chunks
  std::vector<Bucket*> spare_;           // chunks to use again
  std::future<void*> next_;              // a new chunk that is being made ready
  std::size_t filled_ = 0;               // entries of the present array that are in use or erased
  std::size_t live_ = 0;                 // ids
};

}  // namespace heterps::store
