#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

namespace heterps::store {

namespace {

constexpr std::size_t kHuge = kHugePage, kLine = 64;

std::size_t rounded(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

// A thread that touches pages it is told of. It never writes, so it may be late, or told of pages that are gone.
class Toucher {
 public:
  void ask(void* from, std::size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) {
        std::thread([this] { serve(); }).detach();
        started_ = true;
      }
      for (std::size_t at = 0; at < bytes; at += kHuge) {
        asked_.push_back({static_cast<char*>(from) + at, std::min(kHuge, bytes - at)});
      }
    }
    wake_.notify_one();
  }

 private:
  struct Range {
    void* from;
    std::size_t bytes;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return !asked_.empty(); });
      const Range range = asked_.front();
      asked_.pop_front();
      lock.unlock();
#ifdef MADV_POPULATE_WRITE
      madvise(range.from, range.bytes, MADV_POPULATE_WRITE);
#endif
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Range> asked_;
  bool started_ = false;
};

Toucher& toucher() {
  static Toucher* const one = new Toucher;   // its thread lives as long as the process
  return *one;
}

}  // namespace

void* allocate(std::size_t size) {
  if (size < kHuge) {
    void* memory = std::aligned_alloc(kLine, rounded(size, kLine));
    if (memory == nullptr) throw std::bad_alloc();
    return std::memset(memory, 0, size);
  }
  // Map one huge page more than needed and give back what lies outside of the aligned block.
  const std::size_t wanted = rounded(size, kHuge), mapped = wanted + kHuge;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<std::uintptr_t>(raw), aligned = rounded(begin, kHuge);
  if (aligned > begin) munmap(raw, aligned - begin);
  if (const std::size_t rest = begin + mapped - (aligned + wanted); rest > 0) {
    munmap(reinterpret_cast<void*>(aligned + wanted), rest);
  }
  void* memory = reinterpret_cast<void*>(aligned);
#ifdef MADV_HUGEPAGE
  madvise(memory, wanted, MADV_HUGEPAGE);
#endif
  return memory;
}

void release(void* memory, std::size_t size) noexcept {
  if (memory == nullptr) return;
  if (size < kHuge) {
    std::free(memory);
  } else {
    munmap(memory, rounded(size, kHuge));
  }
}

void touch_later(void* from, std::size_t bytes) {
  if (bytes > 0) toucher().ask(from, bytes);
}

std::size_t lookahead(std::size_t used) noexcept {
  return std::min(std::size_t{24} << 20, used / 8 / kHugePage * kHugePage);
}

}  // namespace heterps::store
