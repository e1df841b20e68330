// What Python sees of the store; see heterps/_native.pyi for the types.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "../arrays.hpp"
#include "bound.hpp"
#include "hash.hpp"
#include "shards.hpp"
#include "slots.hpp"

namespace nb = nanobind;
using namespace heterps::store;
using heterps::array;

namespace {

constexpr std::size_t kGatherAhead = 32;   // rows that are fetched before they are copied

Kind kind_of(const std::string& name) {
  static const char* const kNames[] = {"sgd", "momentum", "adagrad", "rowwise-adagrad", "adam", "ftrl"};
  for (int i = 0; i < 6; ++i) {
    if (name == kNames[i]) return static_cast<Kind>(i);
  }
  throw std::invalid_argument("no such optimizer: " + name);
}

std::vector<std::uint32_t> flat_life(const std::vector<Life>& life) {
  std::vector<std::uint32_t> out;
  out.reserve(life.size() * 3);
  for (const Life& l : life) out.insert(out.end(), {l.count, l.seen_step, l.seen_seconds});
  return out;
}

std::vector<Life> lives(const Words& words) {
  std::vector<Life> out(words.size() / 3);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = {words.data()[3 * i], words.data()[3 * i + 1], words.data()[3 * i + 2]};
  }
  return out;
}

// Offsets ascend from 0 to at most the number of ids.
void check_offsets(const Ids& ids, const Ids& offsets) {
  std::int64_t last = 0;
  for (std::size_t b = 0; b < offsets.size(); ++b) {
    const std::int64_t at = offsets.data()[b];
    if (at < last || at > static_cast<std::int64_t>(ids.size()) || (b == 0 && at != 0)) {
      throw std::invalid_argument("offsets start at 0, ascend and end at the number of ids");
    }
    last = at;
  }
  if (offsets.size() == 0 && ids.size() > 0) throw std::invalid_argument("ids without a bag: offsets are empty");
}

nb::tuple chunk_arrays(Chunk chunk, std::size_t dim, std::size_t state) {
  const std::size_t rows = chunk.ids.size();
  auto life = flat_life(chunk.life);
  const std::size_t lived = life.size() / 3;
  return nb::make_tuple(array(std::move(chunk.ids), {rows}), array(std::move(chunk.weights), {rows, dim}),
                        array(std::move(chunk.state), {rows, state}), array(std::move(life), {lived, 3}));
}

}  // namespace

void bind_store(nb::module_& m) {
  nb::class_<Bound>(m, "SparseTable")
      .def("__init__", [](Bound* self, int dim, int state_floats, const std::string& optimizer,
                          const std::vector<float>& numbers, std::uint64_t seed, const std::string& name,
                          float init_scale, std::uint32_t admit_after, std::uint32_t expire_steps,
                          std::uint32_t expire_seconds, bool tracks, int threads) {
             if (numbers.size() != 12) throw std::invalid_argument("an optimizer has twelve numbers");
             const float* n = numbers.data();
             const Rule rule{kind_of(optimizer), n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11]};
             new (self) Bound({dim, state_floats, rule, init_key(seed, name), init_scale, admit_after, expire_steps,
                               expire_seconds, tracks}, threads);
           }, nb::kw_only(), nb::arg("dim"), nb::arg("state_floats"), nb::arg("optimizer"), nb::arg("numbers"),
           nb::arg("seed"), nb::arg("name"), nb::arg("init_scale"), nb::arg("admit_after"), nb::arg("expire_steps"),
           nb::arg("expire_seconds"), nb::arg("tracks"), nb::arg("threads"))
      .def("pull", [](Bound& self, Ids ids, FloatsOut out, bool create, std::uint32_t seconds) {
             same(out.size(), ids.size() * self.dim, "rows");
             nb::gil_scoped_release unlocked;
             self.table.pull(ids.data(), ids.size(), out.data(), create, seconds);
           }, nb::arg("ids").noconvert(), nb::arg("out").noconvert(), nb::arg("create"), nb::arg("seconds"))
      .def("push", [](Bound& self, Ids ids, Floats grads, std::uint32_t seconds) {
             same(grads.size(), ids.size() * self.dim, "gradients");
             nb::gil_scoped_release unlocked;
             self.table.push(ids.data(), ids.size(), grads.data(), seconds);
           }, nb::arg("ids").noconvert(), nb::arg("grads").noconvert(), nb::arg("seconds"))
      .def("push_parts", [](Bound& self, const std::vector<Ids>& ids, const std::vector<Floats>& grads) {
             same(grads.size(), ids.size(), "parts");
             std::vector<Table::Part> parts;
             for (std::size_t k = 0; k < ids.size(); ++k) {
               same(grads[k].size(), ids[k].size() * self.dim, "gradients");
               parts.push_back({ids[k].data(), ids[k].size(), grads[k].data()});
             }
             nb::gil_scoped_release unlocked;
             return self.table.push_parts(parts);
           }, nb::arg("ids").noconvert(), nb::arg("grads").noconvert())
      .def("pull_distinct", [](Bound& self, Ids ids, IntsOut number, FloatsOut rows, std::uint32_t seconds) {
             same(number.size(), ids.size(), "numbers");
             if (rows.size() < ids.size() * self.dim) throw std::invalid_argument("no room for the rows of all ids");
             Table::Pulled pulled;
             {
               nb::gil_scoped_release unlocked;
               pulled = self.table.pull_distinct(ids.data(), ids.size(), number.data(), rows.data(), seconds);
             }
             return nb::make_tuple(pulled.distinct, pulled.ticket);
           }, nb::arg("ids").noconvert(), nb::arg("number").noconvert(), nb::arg("rows").noconvert(), nb::arg("seconds"))
      .def("push_distinct", [](Bound& self, Ids ids, std::uint64_t ticket, Floats grads, std::uint32_t seconds) {
             nb::gil_scoped_release unlocked;
             self.table.push_distinct(ids.data(), ids.size(), ticket, grads.data(), grads.size() / self.dim, seconds);
           }, nb::arg("ids").noconvert(), nb::arg("ticket"), nb::arg("grads").noconvert(), nb::arg("seconds"))
      .def("bag", [](Bound& self, Ids ids, Ids offsets, bool mean, FloatsOut out, bool create, std::uint32_t seconds) {
             same(out.size(), offsets.size() * self.dim, "rows");
             check_offsets(ids, offsets);
             nb::gil_scoped_release unlocked;
             self.table.bag(ids.data(), ids.size(), offsets.data(), offsets.size(), mean, out.data(), create, seconds);
           }, nb::arg("ids").noconvert(), nb::arg("offsets").noconvert(), nb::arg("mean"), nb::arg("out").noconvert(),
           nb::arg("create"), nb::arg("seconds"))
      .def("push_bag", [](Bound& self, Ids ids, Ids offsets, bool mean, Floats grads, std::uint32_t seconds) {
             same(grads.size(), offsets.size() * self.dim, "gradients");
             check_offsets(ids, offsets);
             nb::gil_scoped_release unlocked;
             self.table.push_bag(ids.data(), ids.size(), offsets.data(), offsets.size(), mean, grads.data(), seconds);
           }, nb::arg("ids").noconvert(), nb::arg("offsets").noconvert(), nb::arg("mean"), nb::arg("grads").noconvert(),
           nb::arg("seconds"))
      .def("prepare", [](Bound& self, Ids ids, std::uint32_t seconds) {
             nb::gil_scoped_release unlocked;
             self.table.prepare(ids.data(), ids.size(), seconds);
           }, nb::arg("ids").noconvert(), nb::arg("seconds"))
      .def("peek", [](Bound& self, Ids ids, FloatsOut weights, FloatsOut state) {
             same(weights.size(), ids.size() * self.dim, "rows");
             same(state.size(), ids.size() * self.state, "state");
             nb::gil_scoped_release unlocked;
             self.table.peek(ids.data(), ids.size(), weights.data(), state.data());
           }, nb::arg("ids").noconvert(), nb::arg("weights").noconvert(), nb::arg("state").noconvert())
      .def("put", [](Bound& self, Ids ids, Floats weights, Floats state, std::uint32_t seconds) {
             same(weights.size(), ids.size() * self.dim, "rows");
             same(state.size(), ids.size() * self.state, "state");
             nb::gil_scoped_release unlocked;
             self.table.put(ids.data(), ids.size(), weights.data(), state.data(), seconds);
           }, nb::arg("ids").noconvert(), nb::arg("weights").noconvert(), nb::arg("state").noconvert(),
           nb::arg("seconds"))
      .def("set_lr", [](Bound& self, float lr) { self.table.set_lr(lr); }, nb::arg("lr"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("counts", [](Bound& self, Ids ids, std::uint32_t seconds) {
             std::vector<std::int64_t> out(ids.size());
             {
               nb::gil_scoped_release unlocked;
               self.table.counts(ids.data(), ids.size(), out.data(), seconds);
             }
             const std::size_t size = out.size();
             return array(std::move(out), {size});
           }, nb::arg("ids").noconvert(), nb::arg("seconds"))
      .def("shrink", [](Bound& self, std::uint32_t min_count, std::uint32_t unseen_steps, std::uint32_t unseen_seconds,
                        std::uint32_t seconds) {
             return self.table.shrink({min_count, unseen_steps, unseen_seconds}, seconds);
           }, nb::arg("min_count"), nb::arg("unseen_steps"), nb::arg("unseen_seconds"), nb::arg("seconds"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("stats", [](Bound& self) {
             Stats stats;
             {
               nb::gil_scoped_release unlocked;
               stats = self.table.stats();
             }
             const Counters& c = stats.counters;
             return nb::make_tuple(c.rows, c.bytes, c.candidates, c.hits, c.creations, c.expired, stats.steps);
           })
      .def("begin_save", [](Bound& self, bool delta, std::uint32_t seconds) {
             Table::Beginning begun;
             {
               nb::gil_scoped_release unlocked;
               begun = self.table.begin_save(delta, seconds);
             }
             const std::size_t removed = begun.removed.size(), waiting = begun.candidates.ids.size();
             return nb::make_tuple(begun.now.step, begun.now.seconds, array(std::move(begun.removed), {removed}),
                                   array(std::move(begun.candidates.ids), {waiting}),
                                   array(flat_life(begun.candidates.life), {waiting, 3}));
           }, nb::arg("delta"), nb::arg("seconds"))
      .def("begin_scan", [](Bound& self) { self.table.begin_scan(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("save_some", [](Bound& self, std::size_t most) {
             Chunk chunk;
             {
               nb::gil_scoped_release unlocked;
               chunk = self.table.save_some(most);
             }
             return chunk_arrays(std::move(chunk), self.dim, self.state);
           }, nb::arg("most"))
      .def("end_save", [](Bound& self, bool succeeded) { self.table.end_save(succeeded); }, nb::arg("succeeded"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("begin_load", [](Bound& self, bool clear, std::uint32_t saved_steps, std::uint32_t saved_seconds,
                            std::uint32_t seconds) {
             self.table.begin_load(clear, {saved_steps, saved_seconds}, seconds);
           }, nb::arg("clear"), nb::arg("saved_steps"), nb::arg("saved_seconds"), nb::arg("seconds"),
           nb::call_guard<nb::gil_scoped_release>())
      .def("insert", [](Bound& self, Ids ids, Floats weights, Floats state, Words life) {
             same(weights.size(), ids.size() * self.dim, "weights");
             same(state.size(), ids.size() * self.state, "state");
             if (life.size() != 0) same(life.size(), ids.size() * 3, "life");
             const Chunk chunk{{ids.data(), ids.data() + ids.size()}, {weights.data(), weights.data() + weights.size()},
                               {state.data(), state.data() + state.size()}, lives(life)};
             nb::gil_scoped_release unlocked;
             self.table.insert(chunk);
           }, nb::arg("ids"), nb::arg("weights"), nb::arg("state"), nb::arg("life"))
      .def("insert_candidates", [](Bound& self, Ids ids, Words life) {
             same(life.size(), ids.size() * 3, "life");
             const Chunk chunk{{ids.data(), ids.data() + ids.size()}, {}, {}, lives(life)};
             nb::gil_scoped_release unlocked;
             self.table.insert_candidates(chunk);
           }, nb::arg("ids"), nb::arg("life"))
      .def("remove", [](Bound& self, Ids ids) {
             nb::gil_scoped_release unlocked;
             self.table.remove({ids.data(), ids.data() + ids.size()});
           }, nb::arg("ids"))
      .def("end_load", [](Bound& self) { self.table.end_load(); }, nb::call_guard<nb::gil_scoped_release>());

  m.def("init_key", [](std::uint64_t seed, const std::string& name) { return init_key(seed, name); }, nb::arg("seed"),
        nb::arg("name"));
  m.def("distinct", [](Ids ids) {
    std::vector<std::uint32_t> number(ids.size());
    std::vector<std::int64_t> found(ids.size());
    {
      nb::gil_scoped_release unlocked;
      found.resize(distinct(ids.data(), ids.size(), found.data(), number.data()));
    }
    const std::size_t count = found.size(), size = number.size();
    return nb::make_tuple(array(std::move(found), {count}), array(std::move(number), {size}));
  }, nb::arg("ids").noconvert());
  m.def("distinct_into", [](Ids ids, IdsOut unique, IntsOut number) {
    if (unique.size() < ids.size()) throw std::invalid_argument("no room for all ids");
    same(number.size(), ids.size(), "numbers");
    nb::gil_scoped_release unlocked;
    return distinct(ids.data(), ids.size(), unique.data(), reinterpret_cast<std::uint32_t*>(number.data()));
  }, nb::arg("ids").noconvert(), nb::arg("unique").noconvert(), nb::arg("number").noconvert());
  m.def("gather", [](Floats rows, Words number, FloatsOut out) {
    const std::size_t dim = rows.shape(1), count = rows.shape(0);
    same(out.size(), number.size() * dim, "rows");
    for (std::size_t i = 0; i < number.size(); ++i) {
      if (number.data()[i] >= count) throw std::invalid_argument("no such row");
    }
    nb::gil_scoped_release unlocked;
    kernels(static_cast<int>(dim), Kind::sgd).flat_pull(rows.data(), number.data(), number.size(), out.data(),
                                                        static_cast<int>(dim), kGatherAhead);
  }, nb::arg("rows").noconvert(), nb::arg("number").noconvert(), nb::arg("out").noconvert());
  m.def("repeats", [](Ids ids) {
    nb::gil_scoped_release unlocked;
    return repeats(ids.data(), ids.size());
  }, nb::arg("ids").noconvert());
  m.def("equal", [](Ids one, Ids other) {
    nb::gil_scoped_release unlocked;
    return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size() * sizeof(std::int64_t)) == 0;
  }, nb::arg("one").noconvert(), nb::arg("other").noconvert());
  m.def("split", [](Ids ids, std::size_t shards) {
    if (shards < 1 || ids.size() > kMostSlots) throw std::invalid_argument("at least one shard, fewer than 2^32 ids");
    std::vector<std::int64_t> grouped(ids.size());
    std::vector<std::uint32_t> place(ids.size());
    std::vector<std::size_t> bounds;
    {
      nb::gil_scoped_release unlocked;
      bounds = split(ids.data(), ids.size(), shards, grouped.data(), place.data());
    }
    const std::size_t count = ids.size();
    return nb::make_tuple(array(std::move(grouped), {count}), array(std::move(place), {count}), std::move(bounds));
  }, nb::arg("ids").noconvert(), nb::arg("shards"));
  m.def("gather_stretches", [](const std::vector<Floats>& from, Words index, FloatsOut out) {
    const std::size_t dim = out.shape(1);
    same(out.size(), index.size() * dim, "rows");
    std::vector<Stretch<const float>> stretches;
    for (const Floats& rows : from) {
      same(rows.size(), rows.shape(0) * dim, "rows");
      stretches.push_back({rows.data(), rows.shape(0)});
    }
    nb::gil_scoped_release unlocked;
    gather_stretches(stretches, index.data(), index.size(), static_cast<int>(dim), out.data());
  }, nb::arg("stretches").noconvert(), nb::arg("index").noconvert(), nb::arg("out").noconvert());
  m.def("sum_stretches", [](Floats grads, std::optional<Words> number, std::optional<Words> place, std::size_t distinct,
                            const std::vector<FloatsOut>& into) {
    const std::size_t count = grads.shape(0), dim = grads.shape(1);
    if (number) same(number->size(), count, "numbers");
    if (place) same(place->size(), distinct, "places");
    std::vector<Stretch<float>> stretches;
    for (const FloatsOut& rows : into) {
      same(rows.size(), rows.shape(0) * dim, "rows");
      stretches.push_back({rows.data(), rows.shape(0)});
    }
    nb::gil_scoped_release unlocked;
    sum_stretches(grads.data(), number ? number->data() : nullptr, count, place ? place->data() : nullptr, distinct,
                  static_cast<int>(dim), stretches);
  }, nb::arg("grads").noconvert(), nb::arg("number").none(), nb::arg("place").none(), nb::arg("distinct"),
     nb::arg("stretches").noconvert());
  nb::class_<Slots>(m, "Slots")
      .def(nb::init<>())
      .def("resolve", [](Slots& self, Ids ids, IntsOut slots, IntsOut number) {
             if (slots.size() < ids.size()) throw std::invalid_argument("no room for the slots of all ids");
             same(number.size(), ids.size(), "numbers");
             nb::gil_scoped_release unlocked;
             return self.resolve(ids.data(), ids.size(), slots.data(), number.data());
           }, nb::arg("ids").noconvert(), nb::arg("slots").noconvert(), nb::arg("number").noconvert())
      .def("__len__", [](Slots& self) { return self.size(); })
      .def("ids", [](Slots& self, std::size_t first, std::size_t end) {
             auto found = self.ids(first, end);
             const std::size_t size = found.size();
             return array(std::move(found), {size});
           }, nb::arg("first"), nb::arg("end"));
  m.def("scatter_add", [](Floats grads, Words number, FloatsOut sums) {
    const std::size_t dim = sums.shape(1), count = sums.shape(0);
    same(grads.size(), number.size() * dim, "gradients");
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < number.size(); ++i) {
      if (number.data()[i] > next || number.data()[i] >= count) throw std::invalid_argument("not numbers of `distinct`");
      next += number.data()[i] == next;
    }
    nb::gil_scoped_release unlocked;
    sum_by_number(grads.data(), number.data(), number.size(), static_cast<int>(dim), sums.data());
  }, nb::arg("grads").noconvert(), nb::arg("number").noconvert(), nb::arg("sums").noconvert());
  m.def("flat_pull", [](Floats rows, Words slot, FloatsOut out, std::size_t ahead) {
    const int dim = static_cast<int>(rows.shape(1));
    same(out.size(), slot.size() * dim, "rows");
    nb::gil_scoped_release unlocked;
    kernels(dim, Kind::rowwise_adagrad).flat_pull(rows.data(), slot.data(), slot.size(), out.data(), dim, ahead);
  }, nb::arg("rows").noconvert(), nb::arg("slot").noconvert(), nb::arg("out").noconvert(), nb::arg("ahead"));
  m.def("flat_push", [](FloatsOut rows, FloatsOut state, Words slot, Floats grads, float lr, std::size_t ahead) {
    const int dim = static_cast<int>(rows.shape(1));
    same(grads.size(), slot.size() * dim, "gradients");
    Rule rule;
    rule.lr = lr;
    rule.eps = 1e-8f;
    rule.clip_value = rule.clip_norm = std::numeric_limits<float>::infinity();
    nb::gil_scoped_release unlocked;
    kernels(dim, Kind::rowwise_adagrad)
        .flat_push(rule, rows.data(), state.data(), slot.data(), slot.size(), grads.data(), dim, ahead);
  }, nb::arg("rows").noconvert(), nb::arg("state").noconvert(), nb::arg("slot").noconvert(),
     nb::arg("grads").noconvert(), nb::arg("lr"), nb::arg("ahead"));
}
