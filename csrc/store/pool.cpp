#include "pool.hpp"

namespace heterps::store {

Pool::Pool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::attempt(int number) {
  try {
    (*work_)(number);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::current_exception();
  }
}

void Pool::serve(int number) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    attempt(number);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

void Pool::run(const std::function<void(int)>& work) {
  if (workers_.empty()) return work(0);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    running_ = static_cast<int>(workers_.size());
    error_ = nullptr;
    ++round_;
  }
  start_.notify_all();
  attempt(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace heterps::store
