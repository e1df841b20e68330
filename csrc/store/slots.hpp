// Numbers for ids whose rows lie elsewhere, such as in a GPU's memory: the first id gets slot 1, the next slot 2, and so
// on. Slot 0 stays free, for padding. Many threads may look ids up at once.
#pragma once

#include <cstdint>
#include <shared_mutex>
#include <vector>

#include "index.hpp"

namespace heterps::store {

class Slots {
 public:
  // The distinct ids of a call as they first occur: their slots, and for each id the number of its distinct one.
  // Both have room for `count`. Returns how many are distinct. Ids that were not known get the next slots.
  std::size_t resolve(const std::int64_t* ids, std::size_t count, std::int32_t* slots, std::int32_t* number);
  // Slots in use, slot 0 included.
  std::size_t size() const;
  // The ids of the slots from `first` up to `end`.
  std::vector<std::int64_t> ids(std::size_t first, std::size_t end) const;

 private:
  mutable std::shared_mutex mutex_;
  Index index_;
  std::vector<std::int64_t> ids_ = {0};   // by slot
};

}  // namespace heterps::store
