// What Python sees of memory that processes share; see heterps/_native.pyi for the types. Circles take addresses of
// arrays: to make arrays of PyTorch's tensors takes longer than to add them up.
#include "bindings.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "../store/bound.hpp"
#include "circle.hpp"
#include "clerk.hpp"
#include "desk.hpp"

namespace nb = nanobind;
using namespace heterps::near;
using heterps::store::Bound;

namespace {

using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::byte* start(const Memory& memory, std::size_t least) {
  if (memory.size() < least) throw std::invalid_argument("too little memory");
  return reinterpret_cast<std::byte*>(memory.data());
}

template <typename T>
std::vector<T*> pointers(const std::vector<std::uintptr_t>& addresses) {
  std::vector<T*> found(addresses.size());
  std::transform(addresses.begin(), addresses.end(), found.begin(), [](auto one) { return reinterpret_cast<T*>(one); });
  return found;
}

void make_circle(Circle* self, const std::vector<Memory>& members, std::size_t me, std::vector<std::size_t> floats) {
  std::vector<std::byte*> starts;
  for (const Memory& member : members) starts.push_back(start(member, Circle::bytes(floats)));
  new (self) Circle(std::move(starts), me, std::move(floats));
}

// The clock of a table, which was made when the steady clock stood at `began` seconds.
std::function<std::uint32_t()> clock_since(double began) {
  return [began] {
    const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint32_t>(std::max(0.0, now.count() - began));
  };
}

nb::object told(State state) {
  return state == State::open ? nb::none() : nb::object(nb::bool_(state != State::failed));
}

}  // namespace

void bind_near(nb::module_& m) {
  m.attr("BELL_BYTES") = sizeof(Bell);
  m.attr("DESK_BYTES") = sizeof(DeskMemory);

  nb::class_<Circle>(m, "Circle")
      .def_static("bytes", &Circle::bytes, nb::arg("floats"))
      .def("__init__", &make_circle, nb::arg("members"), nb::arg("me"), nb::arg("floats"))
      .def("put", [](Circle& self, const std::vector<std::uintptr_t>& arrays, int most_ms) {
             const auto given = pointers<const float>(arrays);
             const nb::gil_scoped_release unlocked;
             return self.put(given, Milliseconds(most_ms));
           }, nb::arg("arrays"), nb::arg("most_ms"))
      .def("wait", [](Circle& self, std::uint64_t number, int most_ms) {
             const nb::gil_scoped_release unlocked;
             return self.wait(number, Milliseconds(most_ms));
           }, nb::arg("number"), nb::arg("most_ms"))
      .def("take", [](Circle& self, std::uint64_t number, const std::vector<std::uintptr_t>& sums) {
             const auto given = pointers<float>(sums);
             const nb::gil_scoped_release unlocked;
             return self.take(number, given);
           }, nb::arg("number"), nb::arg("sums"));

  nb::class_<Desk>(m, "Desk")
      .def("__init__", [](Desk* self, Memory memory, Memory clerk) {
             new (self) Desk(start(memory, sizeof(DeskMemory)), start(clerk, sizeof(Bell)));
           }, nb::arg("memory"), nb::arg("clerk"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("ask", [](Desk& self, std::int64_t after, std::uint64_t count, std::uint64_t ids, std::uint64_t rows,
                     std::uint64_t repeats, int most_ms) {
             const nb::gil_scoped_release unlocked;
             return self.post({Kind::ask, 0, after, count, ids, rows, repeats, 0.0f, 0}, Milliseconds(most_ms));
           }, nb::arg("after"), nb::arg("count"), nb::arg("ids"), nb::arg("rows"), nb::arg("repeats"),
           nb::arg("most_ms"))
      .def("part", [](Desk& self, std::int64_t step, std::uint32_t part, std::uint64_t count, std::uint64_t ids,
                      std::uint64_t grads, std::optional<float> lr, int most_ms) {
             const nb::gil_scoped_release unlocked;
             return self.post({Kind::part, part, step, count, ids, grads, 0, lr.value_or(0.0f), lr.has_value()},
                              Milliseconds(most_ms));
           }, nb::arg("step"), nb::arg("part"), nb::arg("count"), nb::arg("ids"), nb::arg("grads"),
           nb::arg("lr").none(), nb::arg("most_ms"))
      .def("wait", [](Desk& self, std::uint64_t number, int most_ms) {
             State state;
             {
               const nb::gil_scoped_release unlocked;
               state = self.wait(number, Milliseconds(most_ms));
             }
             return told(state);
           }, nb::arg("number"), nb::arg("most_ms"))
      .def("why", &Desk::why, nb::arg("number"));

  nb::class_<Clerk>(m, "Clerk")
      .def("__init__", [](Clerk* self, Bound& table, Memory bell, std::uint32_t parts, std::int64_t applied,
                          double began) {
             new (self) Clerk(table.table, table.dim, start(bell, sizeof(Bell)), parts, applied, clock_since(began));
           }, nb::arg("table"), nb::arg("bell"), nb::arg("parts"), nb::arg("applied"), nb::arg("began"),
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("serve", [](Clerk& self, Memory memory, std::size_t desk) {
             std::byte* const begins = start(memory, 0);
             const nb::gil_scoped_release unlocked;
             self.serve(begins, memory.size(), desk);
           }, nb::arg("memory"), nb::arg("desk"), nb::keep_alive<1, 2>())
      .def("close", &Clerk::close, nb::arg("why"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("repeats", &Clerk::repeats);
}
