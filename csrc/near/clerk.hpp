// Serves the desks of a table's clients, in a thread of its own: gathers the parts of each step, applies them as one
// push, and then gives the rows that were asked for ahead. Steps are applied in order, the lowest one first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../store/table.hpp"
#include "bell.hpp"
#include "desk.hpp"

namespace heterps::near {

class Clerk {
 public:
  // Its bell lies in the server's memory. A step has so many parts; those up to `applied` are over. `seconds` is the
  // table's clock.
  Clerk(store::Table& table, std::size_t dim, std::byte* bell, std::uint32_t parts, std::int64_t applied,
        std::function<std::uint32_t()> seconds);
  ~Clerk() { close(); }
  Clerk(const Clerk&) = delete;
  Clerk& operator=(const Clerk&) = delete;

  // A client's memory, and where in it the desk lies. It must stay. Orders are checked, whatever they say; ids are read
  // where they lie, and must not change meanwhile (a client is of the same user, and was told the server's secret).
  void serve(std::byte* memory, std::size_t bytes, std::size_t desk);
  // Gives up everything that is open, which fails with `why`; no order is taken any more.
  void close(const std::string& why = "the server has ended");
  // Ids that clients left out when they asked, as they occurred again.
  std::uint64_t repeats() const { return repeats_; }

 private:
  struct Client {
    std::byte* memory;
    std::size_t bytes;
    DeskMemory* desk;
    std::uint64_t taken = 0;   // orders
    std::uint64_t open = 0;    // of these
    bool rings = false;        // something of it is done
  };
  struct Open {   // an order, as it was when it was read
    Client* client;
    Entry* entry;
    Order order;
  };
  using Step = std::map<std::uint32_t, Open>;   // by the number of the part

  void run();
  bool turn();
  void take(Client& client, Entry& entry);
  void check(const Client& client, const Order& order) const;
  void add(const Open& part);
  void apply(const Step& step);
  void give(const Open& ask);
  void finish(const Open& open, const std::string& why);
  void ring();

  // Of an order without ids the places may be any.
  static const std::int64_t* ids(const Open& open) {
    return open.order.count == 0 ? nullptr : reinterpret_cast<std::int64_t*>(open.client->memory + open.order.ids);
  }
  static float* rows(const Open& open) {
    return open.order.count == 0 ? nullptr : reinterpret_cast<float*>(open.client->memory + open.order.rows);
  }

  store::Table& table_;
  const std::size_t dim_;
  Bell& bell_;
  const std::uint32_t parts_;
  std::int64_t applied_;
  const std::function<std::uint32_t()> seconds_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::map<std::int64_t, Step> steps_;
  std::vector<Open> asks_;
  std::atomic<std::uint64_t> repeats_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace heterps::near
