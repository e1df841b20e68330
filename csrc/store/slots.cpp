#include "slots.hpp"

#include <algorithm>
#include <mutex>
#include <stdexcept>

#include "kernels.hpp"
#include "numbering.hpp"

namespace heterps::store {

namespace {

constexpr std::size_t kBlock = 1024;   // ids that are numbered while the buckets of those before arrive

}  // namespace

std::size_t Slots::resolve(const std::int64_t* ids, std::size_t count, std::int32_t* slots, std::int32_t* number) {
  static const Kernels run = kernels(0, Kind::sgd);
  Distinct call = Numbering::of_this_thread().call(ids, count);
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
