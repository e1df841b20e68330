// Memory to number the distinct ids of a call in, kept by a thread for its next call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.hpp"

namespace heterps::store {

struct Numbering {
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

  static Numbering& of_this_thread() {
    static thread_local Numbering numbering;
    return numbering;
  }
};

}  // namespace heterps::store
