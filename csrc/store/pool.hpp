// A few threads that wait for work: awake for some microseconds, as the next piece often follows at once, then asleep.
#pragma once

#include <atomic>
#include <condition_variable>
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

  // Runs work(0) … work(pieces - 1), and returns when all are done. The first exception is thrown on. Each thread has its
  // own pieces, the same each time, so that it finds in its caches what it left there; who is done first helps others.
  void run(int pieces, const std::function<void(int)>& work);

 private:
  void serve(int number);
  void attempt(int number);

  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* work_ = nullptr;
  int pieces_ = 0;
  struct alignas(64) Next {
    std::atomic<int> piece = 0;
  };
  std::vector<Next> next_;   // of each thread's own pieces
  std::atomic<std::uint64_t> round_ = 0;
  std::atomic<int> running_ = 0;
  std::atomic<bool> stop_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> workers_;
};

}  // namespace heterps::store
