#include "slots.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "kernels.hpp"

namespace heterps::store {

namespace {

constexpr std::size_t kBlock = 1024;   // ids that are numbered while the buckets of those before arrive

struct Scratch {   // of a thread, kept for its next call
  std::vector<std::uint32_t> table, number, slot, first, repeat_position, repeat_number, behind;
  std::vector<std::int64_t> id;
  std::vector<const Bucket*> home;

  Distinct call(const std::int64_t* ids, std::size_t count) {
    int bits = 10;
    while (std::size_t{1} << bits < count + count / 8) ++bits;
    table.assign(std::size_t{1} << bits, kNoSlot);
    for (auto* words : {&number, &slot, &first, &repeat_position, &repeat_number, &behind}) {
      if (words->size() <= count) words->resize(count + 1);
    }
    if (id.size() <= count) id.resize(count + 1);
    if (home.size() <= count) home.resize(count + 1);
    return {ids, nullptr, count, number.data(), id.data(), slot.data(), first.data(), 0, repeat_position.data(),
            repeat_number.data(), 0, home.data(), behind.data(), table.data(), bits};
  }
};

}  // namespace

std::size_t Slots::resolve(const std::int64_t* ids, std::size_t count, std::int32_t* slots, std::int32_t* number) {
  static thread_local Scratch scratch;
  static const Kernels run = kernels(0, Kind::sgd);
  Distinct call = scratch.call(ids, count);
  bool missing = false;
  {
    const std::shared_lock lock(mutex_);
    std::size_t fetched = 0;   // distinct ids whose buckets are on their way
    for (std::size_t begin = 0; begin < count; begin += kBlock) {
      const std::size_t before = call.distinct;
      run.number(call, begin, std::min(begin + kBlock, count), before, {}, 0);
      const std::size_t now = call.distinct;
      run.fetch(call, before, index_.view());
      call.distinct = before;
      run.probe(call, fetched, index_.view());
      call.distinct = now;
      fetched = before;
    }
    run.probe(call, fetched, index_.view());
    missing = std::find(call.slot, call.slot + call.distinct, kNoSlot) != call.slot + call.distinct;
  }
  if (missing) {
    const std::unique_lock lock(mutex_);
    for (std::size_t u = 0; u < call.distinct; ++u) {
      if (call.slot[u] != kNoSlot || (call.slot[u] = index_.find(call.id[u])) != kNoSlot) continue;
      if (ids_.size() >= 0x7FFFFFFF) throw std::length_error("more than 2,147,483,647 ids in one GPU's table");
      call.slot[u] = static_cast<std::uint32_t>(ids_.size());
      ids_.push_back(call.id[u]);
      index_.insert(call.id[u], call.slot[u]);
    }
  }
  std::copy_n(call.slot, call.distinct, slots);
  std::copy_n(call.number, count, number);
  return call.distinct;
}

std::size_t Slots::size() const {
  const std::shared_lock lock(mutex_);
  return ids_.size();
}

std::vector<std::int64_t> Slots::ids(std::size_t first, std::size_t end) const {
  const std::shared_lock lock(mutex_);
  if (first > end || end > ids_.size()) throw std::out_of_range("slots that are not in use");
  return {ids_.begin() + first, ids_.begin() + end};
}

}  // namespace heterps::store
