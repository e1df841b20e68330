// A few threads that wait for work: awake for some microseconds, as the next piece often follows at once, then asleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace heterps::store {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(next_.size()); }
  // Runs work(piece, thread) for the pieces 0 … pieces - 1, and returns when all are done. The first exception is thrown
  // on. Each thread has its own pieces, the same each time, so that it finds in its caches what it left there; who is done
  // first helps others, and nobody waits for a thread that is late.
  void run(int pieces, const std::function<void(int, int)>& work);

 private:
  void serve(int thread);
  void attempt(int thread);
  bool enter();
  void leave();

  const std::function<void(int, int)>* work_ = nullptr;
  int pieces_ = 0;
  struct alignas(64) Next {
    std::atomic<int> piece = 0;
  };
  std::vector<Next> next_;   // of each thread's own pieces
  std::atomic<std::uint32_t> round_ = 0;
  // Whether there is work, and how many threads are at it: what they read changes only while there is neither.
  static constexpr std::uint32_t kOpen = 1u << 31;
  std::atomic<std::uint32_t> gate_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;   // of the error
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

}  // namespace heterps::store
