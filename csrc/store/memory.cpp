#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

namespace heterps::store {

namespace {

constexpr std::size_t kHuge = kHugePage, kLine = 64;

std::size_t rounded(std::size_t size, std::size_t to) { return (size + to - 1) / to * to; }

void touch(void* from, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  madvise(from, bytes, MADV_POPULATE_WRITE);   // changes nothing, so it may come late, or for pages that are gone
#endif
}

// A thread for work that others should not wait for.
class Background {
 public:
  void ask(std::function<void()> work, bool soon = false) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) {
        std::thread([this] { serve(); }).detach();
        started_ = true;
      }
      asked_.insert(soon ? asked_.begin() : asked_.end(), std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return !asked_.empty(); });
      const std::function<void()> work = std::move(asked_.front());
      asked_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> asked_;
  bool started_ = false;
};

Background& background() {
  static Background* const one = new Background;   // its thread lives as long as the process
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
  for (std::size_t at = 0; at < bytes; at += kHuge) {
    char* const begin = static_cast<char*>(from) + at;
    background().ask([begin, some = std::min(kHuge, bytes - at)] { touch(begin, some); });
  }
}

std::future<void*> allocate_later(std::size_t size, bool touched) {
  auto promise = std::make_shared<std::promise<void*>>();
  background().ask([promise, size, touched] {
    try {
      void* memory = allocate(size);
      if (touched) touch(memory, size);
      promise->set_value(memory);
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }, true);
  return promise->get_future();
}

void release_later(void* memory, std::size_t size) {
  background().ask([memory, size] { release(memory, size); });
}

std::size_t lookahead(std::size_t used) noexcept {
  return std::min(std::size_t{8} << 20, used / 8 / kHugePage * kHugePage);
}

}  // namespace heterps::store
