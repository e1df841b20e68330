// What threads of two processes wait at, in memory that both have mapped: a count of rings, and of those who sleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <thread>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

namespace heterps::near {

using Milliseconds = std::chrono::milliseconds;

struct alignas(64) Bell {
  std::atomic<std::uint32_t> rings, sleepers;

  std::uint32_t heard() const { return rings.load(); }

  // Wakes all who wait. Whoever goes to sleep at this moment counts itself first, and looks at the rings afterwards.
  void ring() {
    rings.fetch_add(1);
    if (sleepers.load() != 0) wake();
  }

  // Returns when it has rung since it was heard, or after some time, or for no reason.
  void wait(std::uint32_t heard, Milliseconds most) {
    sleepers.fetch_add(1);
    sleep(heard, most);
    sleepers.fetch_sub(1);
  }

 private:
#ifdef __linux__
  std::uint32_t* word() { return reinterpret_cast<std::uint32_t*>(&rings); }
  void wake() { syscall(SYS_futex, word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
  void sleep(std::uint32_t heard, Milliseconds most) {
    const timespec until{most.count() / 1000, most.count() % 1000 * 1'000'000};
    syscall(SYS_futex, word(), FUTEX_WAIT, heard, &until, nullptr, 0);
  }
#else
  void wake() {}
  void sleep(std::uint32_t heard, Milliseconds most) {
    if (rings.load() == heard) std::this_thread::sleep_for(std::min(most, Milliseconds(1)));
  }
#endif
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);

// Calls `done` until it is true or the time is over, between rings; says which.
template <typename Done>
bool wait_until(Bell& bell, Milliseconds most, const Done& done) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (true) {
    const std::uint32_t heard = bell.heard();
    if (done()) return true;
    const auto left = std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    bell.wait(heard, left);
  }
}

}  // namespace heterps::near
