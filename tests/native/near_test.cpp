// Memory that processes share, under sanitizers: threads with memory of their own stand for processes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../near/circle.hpp"
#include "../near/clerk.hpp"
#include "../near/desk.hpp"
#include "hash.hpp"
#include "table.hpp"

using namespace heterps::near;
namespace store = heterps::store;

namespace {

#define CHECK(condition) \
  do { \
    if (!(condition)) { \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      std::exit(1); \
    } \
  } while (false)

constexpr Milliseconds kPatience{150'000};   // no healthy run waits as long for anything
constexpr std::size_t kLine = 64;

// Zeros at the beginning of a line.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : lines_((bytes + kLine - 1) / kLine) {}
  std::byte* start() { return lines_.data()->bytes; }
  std::size_t bytes() const { return lines_.size() * kLine; }

 private:
  struct alignas(kLine) Line {
    std::byte bytes[kLine];
  };
  std::vector<Line> lines_;
};

// What a member puts down: small whole numbers, so that sums are exact; not every member has every array.
bool has(std::size_t member, std::uint64_t sum, std::size_t array) {
  return store::mix(7 * sum + 3 * member + array) % 3 != 0 && array != 3;
}
float value(std::size_t member, std::uint64_t sum, std::size_t array, std::size_t i) {
  return static_cast<float>(store::mix(1000 * sum + 100 * member + 10 * array + i) % 64);
}

// Members that take sums up as late as they like.
void circles() {
  constexpr std::size_t kMembers = 3;
  constexpr std::uint64_t kSums = 200;
  const std::vector<std::size_t> floats{5, 33, 1, 4, 64};
  std::vector<Memory> memory(kMembers, Memory(Circle::bytes(floats)));
  std::vector<std::byte*> starts;
  for (Memory& one : memory) starts.push_back(one.start());
  const auto member = [&](std::size_t me) {
    Circle circle(starts, me, floats);
    std::vector<std::vector<float>> own, sums;
    for (const std::size_t size : floats) own.emplace_back(size), sums.emplace_back(size);
    std::vector<float*> to;
    for (auto& sum : sums) to.push_back(sum.data());
    std::uint64_t taken = 0;
    for (std::uint64_t put = 0; put < kSums; ++put) {
      std::vector<const float*> given;
      for (std::size_t k = 0; k < floats.size(); ++k) {
        for (std::size_t i = 0; i < floats[k]; ++i) own[k][i] = value(me, put, k, i);
        given.push_back(has(me, put, k) ? own[k].data() : nullptr);
      }
      CHECK(circle.put(given, kPatience));
      const std::uint64_t behind = put + 1 < kSums ? store::mix(put + me) % 3 : 0;
      for (; taken + behind <= put; ++taken) {
        CHECK(circle.wait(taken, kPatience));
        const std::vector<bool> missing = circle.take(taken, to);
        for (std::size_t k = 0; k < floats.size(); ++k) {
          bool nobody = true;
          for (std::size_t i = 0; i < floats[k]; ++i) {
            float sum = 0;
            for (std::size_t from = 0; from < kMembers; ++from) {
              if (has(from, taken, k)) sum += value(from, taken, k, i), nobody = false;
            }
            CHECK(nobody || sums[k][i] == sum);
          }
          CHECK(missing[k] == nobody);
        }
      }
    }
    CHECK(taken == kSums && !circle.wait(kSums, Milliseconds(0)));
  };
  std::vector<std::thread> threads;
  for (std::size_t me = 0; me < kMembers; ++me) threads.emplace_back(member, me);
  for (auto& thread : threads) thread.join();
}

constexpr int kDim = 5, kSteps = 50;
constexpr std::size_t kClients = 3, kMost = 120;   // ids of a part
constexpr std::uint64_t kDesk = 2 * kLine;
constexpr std::int64_t kNever = 1'000'000;         // a step

store::Config config() {
  store::Config out;
  out.dim = kDim;
  out.rule.kind = store::Kind::sgd;
  out.rule.lr = 1.0f;
  out.rule.clip_value = out.rule.clip_norm = std::numeric_limits<float>::infinity();
  out.init_key = store::init_key(7, "t");
  out.init_scale = 0.5f;
  return out;
}

// A client's memory: its desk, and blocks for ids, rows and gradients of two steps in turn, each behind its mark.
struct Client {
  static constexpr std::uint64_t kBlock = kLine + (kMost * kDim * sizeof(float) + kLine - 1) / kLine * kLine;
  static constexpr std::uint64_t kFirst = kDesk + sizeof(DeskMemory);
  static_assert(sizeof(DeskMemory) % kLine == 0);

  explicit Client(std::byte* bell) : memory(kFirst + 8 * kBlock), desk(memory.start() + kDesk, bell) {}

  std::uint64_t place(int block) const { return kFirst + block * kBlock + kLine; }
  std::byte& mark(std::uint64_t place) { return memory.start()[place - kLine]; }
  template <typename T>
  T* at(std::uint64_t place) { return reinterpret_cast<T*>(memory.start() + place); }
  DeskMemory& shared() { return *at<DeskMemory>(kDesk); }

  std::uint64_t post(const Order& order) {
    const auto number = desk.post(order, kPatience);
    CHECK(number.has_value());
    return *number;
  }
  State ended(std::uint64_t number) { return desk.wait(number, kPatience); }
  // Of one row, as it is when a step is applied.
  Order ask_for_one(std::int64_t step) const { return {Kind::ask, 0, step, 1, place(0), place(1), 0, 0.0f, 0}; }
  // When an order that is done at once is over, all before it were taken.
  void wait_until_taken() {
    CHECK(ended(post(ask_for_one(-1))) == State::done);
    CHECK(ended(post({Kind::ask, 0, -1, 0, std::uint64_t{1} << 63, 1, 0, 0.0f, 0})) == State::done);   // for no rows
  }
  bool failed(std::uint64_t number, const std::string& why) {
    return ended(number) == State::failed && desk.why(number) == why;
  }

  Memory memory;
  Desk desk;
};

// What clients do in a step, and the rows that they have to get before it.
struct Part {
  std::vector<std::int64_t> ids;
  bool given;    // else its part of the step is empty
  bool turned;   // hands them in the other way round, as ids that nobody has asked for
  std::vector<float> grads;
  std::vector<double> rows;
};
using Plan = std::vector<std::vector<Part>>;   // by step and client

float lr_of(int step) { return step < kSteps / 2 ? 1.0f : 0.5f; }

// Ids of a few that all have and of many; in some parts twice. The map is the table's model.
Plan make_plan(unsigned seed, std::map<std::int64_t, std::vector<double>>& table) {
  std::mt19937_64 rng(seed);
  const store::Config made = config();
  Plan plan(kSteps, std::vector<Part>(kClients));
  const auto row = [&](std::int64_t id) -> std::vector<double>& {
    auto [at, fresh] = table.try_emplace(id, kDim);
    if (fresh) {
      float first[kDim];
      store::init_row(made.init_key, id, made.init_scale, kDim, first);
      std::copy_n(first, kDim, at->second.begin());
    }
    return at->second;
  };
  for (int step = 0; step < kSteps; ++step) {
    for (Part& part : plan[step]) {
      const bool twice = rng() % 8 == 0;
      part.given = rng() % 8 != 0 && step != kSteps / 5;
      part.turned = rng() % 16 == 0;
      std::set<std::int64_t> seen;
      for (std::size_t k = 1 + rng() % kMost; k > 0; --k) {
        const auto id = static_cast<std::int64_t>(store::mix(rng() % (k % 2 ? 40 : 1'000'000)));
        if (seen.insert(id).second || twice) part.ids.push_back(id);
      }
      for (const std::int64_t id : part.ids) {
        part.rows.insert(part.rows.end(), row(id).begin(), row(id).end());
        for (int j = 0; j < kDim; ++j) part.grads.push_back(static_cast<float>(rng() % 16) / 16);
      }
    }
    for (const Part& part : plan[step]) {
      for (std::size_t i = 0; i < part.grads.size() && part.given; ++i) {
        const std::size_t at = i / kDim;
        row(part.ids[part.turned ? part.ids.size() - 1 - at : at])[i % kDim] -= lr_of(step) * part.grads[i];
      }
    }
  }
  return plan;
}

// Asks for the rows of the next step before it hands in its part of this one.
void train(Client& client, const Plan& plan, std::uint32_t me) {
  std::uint64_t asked[2], handed_in[2] = {};
  const auto block = [&](int step, int kind) { return client.place(4 * (step % 2) + kind); };
  const auto turned = [&](int step) { return plan[step][me].turned; };
  const auto ask = [&](int step) {
    const Part& part = plan[step][me];
    for (const int kind : {0, 1}) client.mark(block(step, kind)) = std::byte{1};
    std::copy(part.ids.begin(), part.ids.end(), client.at<std::int64_t>(block(step, 0)));
    asked[step % 2] = client.post(
        {Kind::ask, 0, step - 1, part.ids.size(), block(step, 0), block(step, 1), 1, 0.0f, 0});
  };
  ask(0);
  for (int step = 0; step < kSteps; ++step) {
    const Part& part = plan[step][me];
    CHECK(client.ended(asked[step % 2]) == State::done);
    const float* const rows = client.at<float>(block(step, 1));
    for (std::size_t i = 0; i < part.rows.size(); ++i) CHECK(std::abs(rows[i] - part.rows[i]) < 1e-3);
    CHECK(client.mark(block(step, 0)) == std::byte{1} && client.mark(block(step, 1)) == std::byte{1});
    if (step > 0) {   // rows of this step are there, so all parts of the last one are applied, and their blocks free
      const std::uint64_t last = handed_in[(step - 1) % 2];
      CHECK(client.ended(last) == State::done);
      for (const int kind : {turned(step - 1) ? 3 : 0, 2}) CHECK(client.mark(block(step - 1, kind)) == std::byte{0});
    }
    if (step + 1 < kSteps) ask(step + 1);
    for (const int kind : {2, 3}) client.mark(block(step, kind)) = std::byte{1};
    std::copy(part.grads.begin(), part.grads.end(), client.at<float>(block(step, 2)));
    if (part.turned) std::reverse_copy(part.ids.begin(), part.ids.end(), client.at<std::int64_t>(block(step, 3)));
    const bool names_lr = me == 1 && step % (kSteps / 2) == 0;
    const Order order{Kind::part, me, step, part.given ? part.ids.size() : 0, block(step, part.turned ? 3 : 0),
                      block(step, 2), 0, names_lr ? lr_of(step) : 0.0f, names_lr};
    handed_in[step % 2] = client.post(order);
  }
  CHECK(client.ended(handed_in[(kSteps - 1) % 2]) == State::done);
}

// Orders that differ from a good one in a single thing, which has them refused.
std::vector<Order> wild_orders(std::uint64_t bytes) {
  constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();
  const Order ask{Kind::ask, 0, kNever, 10, Client::kFirst + kLine, Client::kFirst + 2 * kLine, 0, 0.0f, 0};
  Order part = ask;
  part.kind = Kind::part;
  std::vector<Order> wild;
  const auto add = [&wild](Order order, auto Order::* field, auto value) {
    order.*field = value;
    wild.push_back(order);
  };
  for (const Order& good : {ask, part}) {
    for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{64}, std::uint64_t{132}, bytes - kLine, bytes,
                                      bytes + kLine, std::uint64_t{1} << 63, kAll - 63, kAll}) {
      add(good, &Order::ids, place);
      add(good, &Order::rows, place);
    }
    for (const std::uint64_t count : {bytes / 8, bytes / 8 + 1, kAll / 4 + 1, kAll / 8 + 2, kAll / 20 + 2, kAll}) {
      add(good, &Order::count, count);
    }
    for (const std::uint32_t kind : {2u, 9u, ~0u}) add(good, &Order::kind, static_cast<Kind>(kind));
  }
  for (const std::int64_t step : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    add(part, &Order::step, step);
  }
  for (const std::uint32_t number : {std::uint32_t{kClients}, ~0u}) add(part, &Order::part, number);
  part.has_lr = 1;
  for (const float lr : {-1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) add(part, &Order::lr, lr);
  part.count = 0;   // then nothing is read: the places may be anywhere
  part.part = kClients;
  part.ids = part.rows = kAll - 63;
  wild.push_back(part);
  return wild;
}

// Says what makes no sense for as long as others train.
void disturb(Client& client, const std::atomic<bool>& stop) {
  const std::vector<Order> wild = wild_orders(client.memory.bytes());
  const std::vector<std::uint64_t> counts{~std::uint64_t{0}, std::uint64_t{1} << 40, 0};
  do {
    for (const Order& order : wild) {
      const std::uint64_t number = client.post(order);
      CHECK(client.ended(number) == State::failed && !client.desk.why(number).empty());
    }
    const std::uint64_t posted = client.shared().posted.orders;
    for (const std::uint64_t count : counts) client.shared().posted.orders = count == 0 ? posted - 1 : posted + count;
    client.shared().posted.orders = posted;
  } while (!stop);
}

void clerks(int lanes, unsigned seed) {
  store::Table table(config(), lanes);
  std::map<std::int64_t, std::vector<double>> model;
  const Plan plan = make_plan(seed, model);
  Memory bell(sizeof(Bell));
  std::vector<std::unique_ptr<Client>> clients;
  for (std::size_t i = 0; i < kClients + 2; ++i) clients.push_back(std::make_unique<Client>(bell.start()));
  Client &wild = *clients[kClients], &broken = *clients[kClients + 1];
  broken.shared().posted.orders = kEntries + 1;
  Clerk clerk(table, kDim, bell.start(), kClients, -1, [] { return 0u; });
  const std::uint64_t end = wild.memory.bytes();
  for (const std::uint64_t place : {std::uint64_t{0}, std::uint64_t{64}, kDesk + 8, end - kLine, ~std::uint64_t{63}}) {
    bool refused = false;
    try {
      clerk.serve(wild.memory.start(), end, place);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
  for (auto& client : clients) clerk.serve(client->memory.start(), client->memory.bytes(), kDesk);
  std::atomic<bool> stop = false;
  std::thread disturbing([&] { disturb(wild, stop); });
  std::vector<std::thread> training;
  for (std::uint32_t me = 0; me < kClients; ++me) {
    training.emplace_back([&, me] { train(*clients[me], plan, me); });
  }
  for (auto& thread : training) thread.join();
  stop = true;
  disturbing.join();
  CHECK(clerk.repeats() == kClients * kSteps);
  CHECK(table.stats().steps == kSteps);
  CHECK(table.stats().counters.rows == model.size());

  // What nobody ends fails with the clerk; what is a second time the same part at once.
  std::vector<std::uint64_t> open[2];
  for (std::uint32_t me = 0; me < 2; ++me) {
    Client& client = *clients[me];
    const Order part{Kind::part, me, kNever, 0, 0, 0, 0, 0.0f, 0};
    open[me].push_back(client.post(part));
    open[me].push_back(client.post(client.ask_for_one(kNever)));
    const std::uint64_t again = client.post(part);
    CHECK(client.ended(again) == State::failed && client.desk.why(again).ends_with("is here already"));
    client.wait_until_taken();
  }
  const std::string why(1000, 'x');
  clerk.close(why);
  clerk.close("nobody hears of it");
  for (std::uint32_t me = 0; me < 2; ++me) {
    open[me].push_back(clients[me]->post(clients[me]->ask_for_one(-1)));   // nobody takes it any more
    for (const std::uint64_t number : open[me]) CHECK(clients[me]->failed(number, why.substr(0, kWhy - 1)));
  }
  CHECK(broken.shared().posted.orders == kEntries + 1);
}

// A desk that is full has room when its clerk comes, and orders that are long past count as done.
void full_desks() {
  store::Table table(config(), 1);
  Memory bell(sizeof(Bell));
  Client client(bell.start());
  const Order ask = client.ask_for_one(-1);
  for (std::uint64_t i = 0; i < kEntries; ++i) CHECK(client.post(ask) == i);
  CHECK(!client.desk.post(ask, Milliseconds(0)));
  CHECK(client.desk.wait(0, Milliseconds(0)) == State::open);
  Clerk clerk(table, kDim, bell.start(), 1, -1, [] { return 0u; });
  std::thread waits([&] { CHECK(client.post(client.ask_for_one(kNever)) == kEntries); });
  clerk.serve(client.memory.start(), client.memory.bytes(), kDesk);
  waits.join();
  CHECK(client.desk.wait(kEntries, Milliseconds(0)) == State::open);
  for (std::uint64_t number = 0; number < kEntries; ++number) CHECK(client.ended(number) == State::done);
}

// What a clerk has not taken when it is closed fails, too, and so does what finds no other room.
void late_orders() {
  store::Table table(config(), 1);
  Memory bell(sizeof(Bell));
  Client client(bell.start());
  std::atomic<bool> busy = false, go_on = false;
  Clerk clerk(table, kDim, bell.start(), 1, -1, [&] {
    busy = true;
    while (!go_on) std::this_thread::yield();
    return 0u;
  });
  clerk.serve(client.memory.start(), client.memory.bytes(), kDesk);
  std::vector<std::uint64_t> numbers{client.post(client.ask_for_one(kNever))};
  while (!busy) std::this_thread::yield();   // it has looked what is there, and is at work on the first one
  while (numbers.size() < kEntries) numbers.push_back(client.post(client.ask_for_one(-1)));
  const std::atomic<std::uint32_t>& rings = reinterpret_cast<Bell*>(bell.start())->rings;
  const std::uint32_t heard = rings;
  std::thread closing([&] { clerk.close("over"); });
  while (rings == heard) std::this_thread::yield();
  go_on = true;
  closing.join();
  for (const std::uint64_t number : numbers) CHECK(client.failed(number, "over"));
  for (int more = 0; more < 3; ++more) CHECK(client.failed(client.post(client.ask_for_one(-1)), "over"));
}

}  // namespace

void near_checks() {
  circles();
  for (unsigned seed = 0; seed < 4; ++seed) clerks(1 + seed % 2, seed);
  full_desks();
  late_orders();
}
