// The whole native surface of heterps; see heterps/_native.pyi for its types.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"
#include "data/bindings.hpp"
#include "near/bindings.hpp"
#include "planner.hpp"
#include "run/bindings.hpp"
#include "store/bindings.hpp"

namespace nb = nanobind;
using namespace heterps;

namespace {

using Table = nb::ndarray<const double, nb::c_contig, nb::device::cpu>;
using Placements = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<double> copy(const Table& table, std::size_t size) {
  if (table.size() != size) throw std::invalid_argument("table of another size than layers and types ask for");
  return {table.data(), table.data() + size};
}

Tables make_tables(int layers, int types, Table serial, Table parallel, Table sync_serial, Table sync_parallel,
                   Table server, Table cut, Table replicated, Table sharded, Table memory, Table price, Table limit,
                   int server_type, double max_rate) {
  if (layers < 1 || types < 1 || server_type >= types) throw std::invalid_argument("no layers or no types");
  const std::size_t cells = static_cast<std::size_t>(layers) * types, rows = layers, columns = types;
  return {layers, types, copy(serial, cells), copy(parallel, cells), copy(sync_serial, cells),
          copy(sync_parallel, cells), copy(server, cells), copy(cut, cells), copy(replicated, rows),
          copy(sharded, rows), copy(memory, columns), copy(price, columns), copy(limit, columns), server_type, max_rate};
}

nb::tuple provision_all(const Tables& tables, Placements placements, double min_throughput, double max_cost,
                        bool fastest, double micro_batches, double cutoff) {
  const std::size_t count = placements.shape(0), layers = tables.layers;
  if (placements.shape(1) != layers) throw std::invalid_argument("a placement names one type for each layer");
  for (std::size_t i = 0; i < count * layers; ++i) {
    if (placements.data()[i] < 0 || placements.data()[i] >= tables.types) throw std::invalid_argument("no such type");
  }
  std::vector<double> cost(count), throughput(count), violation(count), server(count), units(count * layers, 0.0);
  {
    nb::gil_scoped_release unlocked;
    const Target target{min_throughput, max_cost, fastest, cutoff, micro_batches};
    for (std::size_t i = 0; i < count; ++i) {
      const Provisioned p = provision(tables, target, placements.data() + i * layers);
      cost[i] = p.cost, throughput[i] = p.throughput, violation[i] = p.violation, server[i] = p.server_units;
      std::copy(p.units.begin(), p.units.end(), units.begin() + i * layers);
    }
  }
  return nb::make_tuple(array(std::move(cost), {count}), array(std::move(throughput), {count}),
                        array(std::move(violation), {count}), array(std::move(units), {count, layers}),
                        array(std::move(server), {count}));
}

using Loads = nb::ndarray<const double, nb::shape<-1, 2, 5>, nb::c_contig, nb::device::cpu>;

nb::tuple simulate_all(Loads loads, const std::vector<double>& units, const std::vector<std::uint64_t>& keys,
                       double server_units, std::int64_t micro_batches, std::int64_t staleness, std::int64_t warmup,
                       std::int64_t steps, double jitter, std::uint64_t seed) {
  const std::size_t count = loads.shape(0);
  if (count < 1 || units.size() != count || keys.size() != count) throw std::invalid_argument("one load for each stage");
  if (micro_batches < 1 || staleness < 0 || warmup < 0 || steps < 1) throw std::invalid_argument("nothing to simulate");
  Pipeline in{{}, server_units, micro_batches, staleness, warmup, steps, jitter, seed};
  for (std::size_t s = 0; s < count; ++s) {
    Station station{{}, units[s], keys[s]};
    for (int way = 0; way < 2; ++way) {
      const double* at = loads.data() + (2 * s + way) * 5;
      station.load[way] = {at[0], at[1], at[2], at[3], at[4]};
    }
    in.stations.push_back(station);
  }
  Simulated out;
  {
    nb::gil_scoped_release unlocked;
    out = simulate(in);
  }
  return nb::make_tuple(out.seconds, std::move(out.compute), std::move(out.link), out.shared, out.server);
}

}  // namespace

NB_MODULE(_native, m) {
  bind_store(m);
  bind_data(m);
  bind_run(m);
  bind_near(m);

  nb::class_<Tables>(m, "Tables")
      .def("__init__", [](Tables* self, int layers, int types, Table serial, Table parallel, Table sync_serial,
                          Table sync_parallel, Table server, Table cut, Table replicated, Table sharded, Table memory,
                          Table price, Table limit, int server_type, double max_rate) {
             new (self) Tables(make_tables(layers, types, serial, parallel, sync_serial, sync_parallel, server, cut,
                                           replicated, sharded, memory, price, limit, server_type, max_rate));
           }, nb::kw_only(), nb::arg("layers"), nb::arg("types"), nb::arg("serial"), nb::arg("parallel"),
           nb::arg("sync_serial"), nb::arg("sync_parallel"), nb::arg("server"), nb::arg("cut"), nb::arg("replicated"),
           nb::arg("sharded"), nb::arg("memory"), nb::arg("price"), nb::arg("limit"), nb::arg("server_type"),
           nb::arg("max_rate"))
      .def("provision", &provision_all, nb::arg("placements"), nb::kw_only(), nb::arg("min_throughput"),
           nb::arg("max_cost"), nb::arg("fastest"), nb::arg("micro_batches"), nb::arg("cutoff"));

  m.def("simulate", &simulate_all, nb::arg("loads"), nb::kw_only(), nb::arg("units"), nb::arg("keys"),
        nb::arg("server_units"), nb::arg("micro_batches"), nb::arg("staleness"), nb::arg("warmup"), nb::arg("steps"),
        nb::arg("jitter"), nb::arg("seed"));

  nb::class_<Multipliers>(m, "Multipliers")
      .def("__init__", [](Multipliers* self, std::vector<double> type, double rate, double money, double server_share) {
             new (self) Multipliers{std::move(type), rate, money, server_share};
           }, nb::kw_only(), nb::arg("type"), nb::arg("rate"), nb::arg("money"), nb::arg("server_share"));

  nb::class_<Path>(m, "Path")
      .def_ro("bound", &Path::bound)
      .def_ro("complete", &Path::complete)
      .def_ro("parts", &Path::parts)
      .def_ro("own", &Path::own)
      .def_ro("reached", &Path::reached)
      .def_ro("rate", &Path::rate)
      .def_ro("used", &Path::used)
      .def_prop_ro("placement", [](const Path& path) { return array(path.placement, {path.placement.size()}); },
                   nb::rv_policy::automatic);

  nb::class_<Graph>(m, "Graph")
      .def(nb::init<const Tables&>(), nb::arg("tables"), nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("size", &Graph::size)
      .def("floor", &Graph::floor)
      .def("stages", [](const Graph& self, double low, double high) {
             std::vector<double> rows;
             for (const Stage& s : self.stages()) {
               const double units = s.units(low);
               if (!(units < kInf)) continue;
               const double spent = units * std::max(1.0 / high, s.seconds(units));
               for (const double value : {double(s.first), double(s.last), double(s.type), units, spent, s.seconds(units),
                                          s.server}) {
                 rows.push_back(value);
               }
             }
             const std::size_t columns = 7, count = rows.size() / columns;
             return array(std::move(rows), {count, columns});
           }, nb::arg("low"), nb::arg("high"))
      .def("relax", [](const Graph& self, double low, double high, const Multipliers& multipliers, int stages) {
             Path path;
             {
               nb::gil_scoped_release unlocked;
               path = self.relax(low, high, multipliers, stages);
             }
             return path;
           }, nb::arg("low"), nb::arg("high"), nb::kw_only(), nb::arg("multipliers"),
           nb::arg("max_stages"))
      .def("narrow", [](const Graph& self, double low, double high, const Multipliers& multipliers,
                        double cutoff) {
             nb::gil_scoped_release unlocked;
             return self.narrow(low, high, multipliers, cutoff);
           }, nb::arg("low"), nb::arg("high"), nb::kw_only(), nb::arg("multipliers"),
           nb::arg("cutoff"))
      .def("branch", [](const Graph& self, double low, double high, const Multipliers& multipliers, int stages,
                        double cutoff, std::int64_t max_effort) {
             Path path;
             {
               nb::gil_scoped_release unlocked;
               path = self.branch(low, high, multipliers, stages, cutoff, max_effort);
             }
             return path;
           }, nb::arg("low"), nb::arg("high"), nb::kw_only(), nb::arg("multipliers"),
           nb::arg("max_stages"), nb::arg("cutoff"), nb::arg("max_effort"));
}
