#include "index.hpp"

#include <algorithm>
#include <cstring>
#include <random>

#include "memory.hpp"

namespace heterps::store {

namespace {

constexpr double kFull = 0.75, kGrowth = 1.3;
constexpr std::uint32_t kSmallest = 16;   // buckets
// Ids of buckets that are still to be moved go there, so it must not take long, or they overflow: at two buckets for an
// insert an eighth more ids come in meanwhile.
constexpr std::uint32_t kMovedAtInsert = 2;
// Chains of full buckets are far shorter than this.
constexpr std::uint32_t kMargin = 1024;
constexpr std::uint32_t kChunk = 1u << BucketArray::kChunkShift;

std::uint64_t random_salt() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

// Entries of a bucket that are in use or erased; counted without branches, as how many there are is as good as random.
int used(const Bucket& bucket) {
  int count = 0;
  for (int i = 0; i < Bucket::kEntries; ++i) count += bucket.slot[i] != 0;
  return count;
}

int erased(const Bucket& bucket) {
  int i = 0;
  while (i < Bucket::kEntries && bucket.slot[i] != kErased + 1) ++i;
  return i;
}

}  // namespace

Index::Index() { clear(); }

Index::~Index() {
  for (const auto* chunks : {&present_, &old_}) {
    const std::uint32_t size = chunk_size(chunks == &present_ ? view_.present.size : view_.old.size);
    for (Bucket* chunk : *chunks) release(chunk, size * sizeof(Bucket));
  }
  for (Bucket* chunk : spare_) release(chunk, kChunk * sizeof(Bucket));
  if (next_.valid()) release(next_.get(), kChunk * sizeof(Bucket));
}

void Index::clear() {
  for (Bucket* chunk : old_) free_chunk(chunk, chunk_size(view_.old.size));
  for (Bucket* chunk : present_) free_chunk(chunk, chunk_size(view_.present.size));
  for (Bucket* chunk : spare_) release(chunk, kChunk * sizeof(Bucket));
  old_.clear(), present_.clear(), spare_.clear();
  view_ = {};
  view_.salt = random_salt();
  filled_ = live_ = 0;
  present_.assign(1, nullptr);
  made_ = 0;
  view_.present = {present_.data(), kSmallest};
  make_chunks(kSmallest);
}

std::size_t Index::bytes() const {
  std::size_t total = spare_.size() * kChunk * sizeof(Bucket);
  for (const Bucket* chunk : present_) total += chunk == nullptr ? 0 : chunk_size(view_.present.size) * sizeof(Bucket);
  for (const Bucket* chunk : old_) total += chunk == nullptr ? 0 : chunk_size(view_.old.size) * sizeof(Bucket);
  return total + (next_.valid() ? kChunk * sizeof(Bucket) : 0);
}

Bucket* Index::take_chunk() {
  if (!spare_.empty()) {
    Bucket* chunk = spare_.back();
    spare_.pop_back();
    std::memset(static_cast<void*>(chunk), 0, kChunk * sizeof(Bucket));
    return chunk;
  }
  void* chunk = next_.valid() ? next_.get() : allocate(kChunk * sizeof(Bucket));
  next_ = allocate_later(kChunk * sizeof(Bucket), true);
  return static_cast<Bucket*>(chunk);
}

void Index::free_chunk(Bucket* chunk, std::uint32_t size) {
  if (chunk == nullptr) return;
  if (size == kChunk) {
    spare_.push_back(chunk);
  } else {
    release(chunk, size * sizeof(Bucket));
  }
}

void Index::make_chunks(std::uint32_t buckets) {
  const std::uint32_t size = chunk_size(view_.present.size);
  const std::size_t wanted = std::min<std::size_t>(present_.size(), (buckets + size - 1) / size);
  for (; made_ < wanted; ++made_) {
    present_[made_] = size == kChunk ? take_chunk() : static_cast<Bucket*>(allocate(size * sizeof(Bucket)));
  }
}

std::uint32_t* Index::locate(std::int64_t id) const {
  const std::uint64_t hash = view_.place(id);
  const BucketArray& array = view_.array_of(hash);
  std::uint32_t b = array.home(hash);
  for (std::uint32_t step = 0; step < array.size; ++step, b = array.after(b)) {
    Bucket& bucket = array.at(b);
    for (int i = 0; i < Bucket::kEntries; ++i) {
      if (bucket.slot[i] == 0) return nullptr;
      if (bucket.id[i] == id && bucket.slot[i] != kErased + 1) return &bucket.slot[i];
    }
  }
  return nullptr;
}

void Index::put(const BucketArray& array, std::uint64_t hash, std::int64_t id, std::uint32_t slot) {
  for (std::uint32_t b = array.home(hash);; b = array.after(b)) {
    Bucket& bucket = array.at(b);
    int i = used(bucket);
    if (i < Bucket::kEntries) {
      filled_ += &array == &view_.present;
    } else if ((i = erased(bucket)) == Bucket::kEntries) {
      continue;
    }
    bucket.id[i] = id;
    bucket.slot[i] = slot + 1;
    return;
  }
}

void Index::insert(std::int64_t id, std::uint32_t slot) {
  if (growing()) {
    move_some(kMovedAtInsert);
  } else if (static_cast<double>(filled_ + 1) > kFull * Bucket::kEntries * view_.present.size) {
    start_growing(view_.present.size / kMovedAtInsert + 1);
  }
  ++live_;
  const std::uint64_t hash = view_.place(id);
  put(view_.array_of(hash), hash, id, slot);
}

void Index::erase(std::int64_t id) {
  *locate(id) = kErased + 1;
  --live_;
}

void Index::start_growing(std::size_t inserts) {
  // Erased entries go away by being moved: what counts is how many ids there are, or will be when that is done. After
  // many were erased these are few against the buckets to be moved.
  const double ids = std::max(static_cast<double>(live_ + 1) * kGrowth, static_cast<double>(live_ + inserts));
  const std::uint32_t size = std::max(kSmallest, static_cast<std::uint32_t>(ids / (kFull * Bucket::kEntries)) + 1);
  old_ = std::move(present_);
  view_.old = {old_.data(), view_.present.size};
  present_.assign((size + kChunk - 1) / kChunk, nullptr);
  made_ = 0;
  view_.present = {present_.data(), size};
  view_.cursor = 0;
  filled_ = 0;
  make_chunks(kMargin);
}

void Index::fit() {
  while (growing()) move_some(kMargin);
  start_growing(0);
  while (growing()) move_some(kMargin);
}

// Moves the ids that belong to the next buckets. They may stand in later buckets, too, up to one with room; there they
// leave erased entries, which end no search.
void Index::move_some(std::uint32_t buckets) {
  const BucketArray& old = view_.old;
  const std::uint64_t reached = (static_cast<std::uint64_t>(view_.cursor) + buckets) * view_.present.size / old.size;
  make_chunks(static_cast<std::uint32_t>(std::min<std::uint64_t>(view_.present.size, reached + kMargin)));
  for (std::uint32_t moved = 0; moved < buckets; ++moved) {
    const std::uint32_t home = view_.cursor;
    for (std::uint32_t b = home, step = 0; step < old.size; ++step, b = old.after(b)) {
      Bucket& bucket = old.at(b);
      // Ids of buckets before are gone, so those in the home bucket are its own; only the first ones may hold the last's.
      const bool own = step == 0 && home >= kMargin;
      for (int i = 0; i < Bucket::kEntries && bucket.slot[i] != 0; ++i) {
        if (bucket.slot[i] == kErased + 1) continue;
        const std::uint64_t hash = view_.place(bucket.id[i]);
        if (!own && old.home(hash) != home) continue;
        put(view_.present, hash, bucket.id[i], bucket.slot[i] - 1);
        bucket.slot[i] = kErased + 1;
      }
      if (bucket.slot[Bucket::kEntries - 1] == 0) break;
    }
    if (++view_.cursor == old.size) {
      for (Bucket* chunk : old_) free_chunk(chunk, chunk_size(old.size));
      old_.clear();
      view_.old = {};
      view_.cursor = 0;
      make_chunks(view_.present.size);
      // What is left over is given back, but for one to begin the next growth with.
      for (; spare_.size() > 1; spare_.pop_back()) release_later(spare_.back(), kChunk * sizeof(Bucket));
      return;
    }
    // Chains of the last buckets reach into the first chunk, so that one stays.
    const std::uint32_t behind = view_.cursor >> BucketArray::kChunkShift;
    if ((view_.cursor & (kChunk - 1)) == 0 && behind > 1) {
      free_chunk(old_[behind - 1], kChunk);
      old_[behind - 1] = nullptr;
    }
  }
}

}  // namespace heterps::store
