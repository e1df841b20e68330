// What Python sees of a run's threads; see heterps/_native.pyi for the types.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>

#include "../store/bound.hpp"
#include "errands.hpp"
#include "inbox.hpp"

namespace nb = nanobind;
using namespace heterps::run;
using namespace heterps::store;

namespace {

nb::object told(const std::optional<Errands::Done>& done) {
  if (!done) return nb::none();
  return nb::make_tuple(done->distinct, done->began, done->ended);
}

struct BoundErrands {
  BoundErrands(Bound& table, Inbox& inbox, std::size_t lag, std::uintptr_t await)
      : dim(table.dim),
        errands(table.table, lag, reinterpret_cast<Errands::Await>(await), [&inbox] { inbox.ring(); }) {}
  std::size_t dim;
  Errands errands;
};

}  // namespace

void bind_run(nb::module_& m) {
  nb::class_<Inbox>(m, "Inbox")
      .def(nb::init<>())
      .def("put", &Inbox::put, nb::arg("message").none())
      .def("get", &Inbox::get, nb::arg("wait"))
      .def("ring", &Inbox::ring);

  nb::class_<BoundErrands>(m, "Errands")
      .def(nb::init<Bound&, Inbox&, std::size_t, std::uintptr_t>(), nb::arg("table"), nb::arg("inbox"), nb::arg("lag"),
           nb::arg("await_event"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("pull", [](BoundErrands& self, Ids ids, IntsOut number, FloatsOut rows, std::uint32_t seconds) {
             same(number.size(), ids.size(), "numbers");
             if (rows.size() < ids.size() * self.dim) throw std::invalid_argument("no room for the rows of all ids");
             self.errands.pull(ids.data(), ids.size(), number.data(), rows.data(), seconds);
           }, nb::arg("ids").noconvert(), nb::arg("number").noconvert(), nb::arg("rows").noconvert(), nb::arg("seconds"))
      .def("push", [](BoundErrands& self, std::uintptr_t grads, std::uintptr_t event, std::optional<float> lr,
                      std::uint32_t seconds) {
             self.errands.push(reinterpret_cast<const float*>(grads), reinterpret_cast<void*>(event), lr, seconds);
           }, nb::arg("grads"), nb::arg("event"), nb::arg("lr").none(), nb::arg("seconds"))
      .def("pulled", [](BoundErrands& self) { return told(self.errands.pulled()); })
      .def("pushed", [](BoundErrands& self) { return told(self.errands.pushed()); })
      .def("close", [](BoundErrands& self) { self.errands.close(); }, nb::call_guard<nb::gil_scoped_release>());
}
