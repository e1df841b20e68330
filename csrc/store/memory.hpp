// Memory for tables: cache-line aligned, in huge pages where blocks are large.
#pragma once

#include <cstddef>
#include <future>

namespace heterps::store {

// Zeroed memory; throws std::bad_alloc. `size` is asked again to release it. Huge pages save most of the TLB misses
// of random rows; large blocks take memory only where they are touched.
void* allocate(std::size_t size);
void release(void* memory, std::size_t size) noexcept;

// Has the memory of a block's stretch made ready by another thread. The first touch of a page is slow (the kernel clears
// it, and a virtual machine may have to ask its host: 0.7 GB/s was measured), so growing tables ask ahead of their use.
void touch_later(void* from, std::size_t bytes);
// The same for a whole new block: mapping one would wait for pages that are being made ready. Touched, if asked for.
std::future<void*> allocate_later(std::size_t size, bool touched);
void release_later(void* memory, std::size_t size);

// How far ahead of `used` bytes to ask: no more than an eighth, so that small tables stay small.
std::size_t lookahead(std::size_t used) noexcept;

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace heterps::store
