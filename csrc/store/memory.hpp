// Memory for tables: cache-line aligned, in huge pages where blocks are large.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <new>
#include <utility>
#include <vector>

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

// A vector's memory from `allocate`, for what calls work in; what resize adds is not set to anything.
template <typename T>
struct Allocator {
  using value_type = T;

  Allocator() = default;
  template <typename U>
  Allocator(const Allocator<U>&) {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    if (bytes < kHugePage) return static_cast<T*>(store::allocate(bytes));
    return reinterpret_cast<T*>(static_cast<char*>(store::allocate(bytes + kRoom)) + offset());
  }
  void deallocate(T* memory, std::size_t count) noexcept {
    const std::size_t bytes = count * sizeof(T);
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    if (bytes < kHugePage) return release(memory, bytes);
    release(reinterpret_cast<void*>(at / kHugePage * kHugePage), bytes + kRoom);
  }
  template <typename U>
  void construct(U*) noexcept {}
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    new (at) U(std::forward<Args>(args)...);
  }
  bool operator==(const Allocator&) const { return true; }

 private:
  // Arrays that are read side by side must not all begin at the same place of a page, or they displace each other from
  // the caches: each begins a page and a line later than the last.
  static constexpr std::size_t kTurns = 31, kOffset = 4096 + 64, kRoom = kTurns * kOffset;
  static std::size_t offset() {
    static std::atomic<std::size_t> turn = 0;
    return turn++ % kTurns * kOffset;
  }
};

template <typename T>
using Scrap = std::vector<T, Allocator<T>>;

}  // namespace heterps::store
