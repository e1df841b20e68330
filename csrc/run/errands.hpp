// Exchanges of distinct rows with a table, done by two threads of its own, so that nobody waits for them: one pulls, one
// pushes. Every exchange is a pull and, when its gradients are there, a push; both happen in the order they were asked for.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "../store/table.hpp"

namespace heterps::run {

class Errands {
 public:
  using Await = int (*)(void* event);   // returns when a device's event has happened; 0 unless it failed

  // A pull waits for the push `lag` exchanges before it. `done` is called after each pull and push, in their threads.
  Errands(store::Table& table, std::size_t lag, Await await, std::function<void()> done);
  ~Errands() { close(); }
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // Begins an exchange: the rows of these ids, as `Table::pull_distinct` has it. The memory must stay until it is done.
  void pull(const std::int64_t* ids, std::size_t count, std::int32_t* number, float* rows, std::uint32_t seconds);
  // The gradients of the first exchange that had none yet, once the event has happened, if there is one; with another
  // learning rate from then on, if given.
  void push(const float* grads, void* event, std::optional<float> lr, std::uint32_t seconds);

  struct Done {
    std::size_t distinct;
    double began, ended;   // seconds of the steady clock
  };
  // The next pull, or push, that is done: each once, in order. Throws what a thread threw.
  std::optional<Done> pulled();
  std::optional<Done> pushed();
  // Stops both threads after what they are at; asks no more.
  void close();

 private:
  struct Exchange {
    const std::int64_t* ids;
    std::size_t count;
    std::int32_t* number;
    float* rows;
    std::uint32_t seconds;
    std::uint64_t ticket = 0;
    Done pull{}, push{};
    const float* grads = nullptr;
    void* event = nullptr;
    std::optional<float> lr;
    std::uint32_t push_seconds = 0;
  };
  // Exchanges by number: those before `first_` are over, and their memory is given up.
  Exchange& at(std::size_t number) { return exchanges_[number - first_]; }
  void run_pull(Exchange& exchange);
  void run_push(Exchange& exchange);
  void serve(std::size_t& done, const std::function<bool()>& ready, void (Errands::*work)(Exchange&));
  std::optional<Done> taken(std::size_t& next, std::size_t done, Done Exchange::*which);

  store::Table& table_;
  const std::size_t lag_;
  const Await await_;
  const std::function<void()> done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Exchange> exchanges_;
  std::size_t first_ = 0;
  std::size_t pulls_ = 0, pushes_ = 0;               // done
  std::size_t returned_ = 0;                         // pushes asked for
  std::size_t pulls_taken_ = 0, pushes_taken_ = 0;   // told
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread puller_, pusher_;
};

}  // namespace heterps::run
