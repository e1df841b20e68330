// The events of a simulated pipeline; the model stands in prose in heterps/schedule/simulation/__init__.py.
#include <algorithm>
#include <cmath>
#include <queue>

#include "planner.hpp"

namespace heterps {

namespace {

std::uint64_t mix(std::uint64_t x) {   // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The normal quantile above which a share `tail` lies (P. J. Acklam's approximation, relative error 1e-9).
double upper_quantile(double tail) {
  static constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                                 1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  static constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                                 6.680131188771972e+01, -1.328068155288572e+01};
  static constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                                 -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  static constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                                 3.754408661907416e+00};
  const auto far = [](double share) {
    const double q = std::sqrt(-2 * std::log(share));
    return -(((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  };
  if (tail < 0.02425) return far(tail);
  if (tail > 1 - 0.02425) return -far(1 - tail);
  const double q = 0.5 - tail, r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

// A micro-batch passes 2n visits: forward through the n stages, 0 to n-1, then backward, n to 2n-1.
class Run {
 public:
  explicit Run(const Pipeline& pipeline)
      : in_(pipeline), visits_(2 * pipeline.stations.size()), resources_(visits_.size() + 2) {
    const std::size_t n = in_.stations.size(), shared = 2 * n, server = 2 * n + 1;
    // Later visits come first in a resource's list: what is nearer to its end goes first.
    for (std::size_t v = 2 * n; v-- > 0;) {
      const std::size_t s = v < n ? v : 2 * n - 1 - v;
      const Station& station = in_.stations[s];
      const Load& load = station.load[v < n ? 0 : 1];
      add(v, s, {.serial = load.serial, .parallel = load.parallel, .units = station.units, .key = station.key});
      if (load.link > 0) add(v, n + s, {.serial = load.link});
      if (load.shared > 0) add(v, shared, {.serial = load.shared});
      if (load.server > 0) {
        add(v, server, {.parallel = load.server, .units = in_.server_units, .key = ~station.key});
      }
    }
    admit();
  }

  Simulated measure() {
    double began = 0, now = 0;
    wake(0, now);
    while (done_steps_ < in_.warmup + in_.steps) {
      now = events_.top().first;
      const std::size_t r = events_.top().second;
      events_.pop();
      const std::int64_t before = done_steps_;
      finish(r, now);
      if (before < in_.warmup && done_steps_ == in_.warmup) {
        began = now;
        for (Resource& resource : resources_) resource.busy_s = 0;
      }
    }
    const std::size_t n = in_.stations.size();
    Simulated out{now - began, resources_[2 * n].busy_s, resources_[2 * n + 1].busy_s, {}, {}};
    for (std::size_t s = 0; s < n; ++s) {
      out.compute.push_back(resources_[s].busy_s);
      out.link.push_back(resources_[n + s].busy_s);
    }
    return out;
  }

 private:
  // What one visit asks of one resource, and how many micro-batches have got it.
  struct Job {
    double serial = 0, parallel = 0, units = 1;
    std::uint64_t key = 0;
    std::size_t visit = 0;
    std::int64_t started = 0, finished = 0;
  };

  // Serves one micro-batch at a time; `serving` is the job it is at, or none.
  struct Resource {
    std::vector<Job> jobs;
    std::ptrdiff_t serving = -1;
    double busy_s = 0;
  };

  struct Visit {
    std::int64_t arrived = 0, left = 0;
    std::vector<std::pair<std::size_t, std::size_t>> asks;   // resource, job
  };

  void add(std::size_t visit, std::size_t resource, Job job) {
    job.visit = visit;
    visits_[visit].asks.emplace_back(resource, resources_[resource].jobs.size());
    resources_[resource].jobs.push_back(job);
  }

  // Steps may enter as long as they are at most `staleness` ahead of those that are done.
  void admit() { visits_[0].arrived = (done_steps_ + in_.staleness + 1) * in_.micro_batches; }

  // Micro-batches keep their order on every resource, so as many have left a visit as the last of its resources served.
  void finish(std::size_t r, double now) {
    Resource& resource = resources_[r];
    Job& job = resource.jobs[resource.serving];
    ++job.finished;
    resource.serving = -1;
    Visit& visit = visits_[job.visit];
    std::int64_t served = job.finished;
    for (const auto& [other, which] : visit.asks) served = std::min(served, resources_[other].jobs[which].finished);
    if (served > visit.left) {
      visit.left = served;
      const std::size_t next = job.visit + 1;
      if (next < visits_.size()) {
        visits_[next].arrived = served;
        wake(next, now);
      } else if (served % in_.micro_batches == 0) {
        ++done_steps_;
        admit();
        wake(0, now);
      }
    }
    start(r, now);
  }

  void wake(std::size_t visit, double now) {
    for (const auto& ask : visits_[visit].asks) start(ask.first, now);
  }

  void start(std::size_t r, double now) {
    Resource& resource = resources_[r];
    if (resource.serving >= 0) return;
    for (std::size_t i = 0; i < resource.jobs.size(); ++i) {
      Job& job = resource.jobs[i];
      if (job.started >= visits_[job.visit].arrived) continue;
      const double work = job.serial + (job.parallel > 0 ? job.parallel * slowest(job) : 0.0);
      ++job.started;
      resource.serving = static_cast<std::ptrdiff_t>(i);
      resource.busy_s += work;
      events_.emplace(now + work, r);
      return;
    }
  }

  // The largest of `units` lognormal factors of mean 1: one draw by the inverse of the maximum's distribution, which is
  // the factor's own to the power of `units`. The draw depends on what it is for alone, not on what was drawn before.
  double slowest(const Job& job) const {
    if (in_.jitter <= 0) return 1.0;
    const std::uint64_t way = job.visit < in_.stations.size() ? 0 : 1;
    const std::uint64_t bits = mix(mix(mix(in_.seed) ^ job.key) ^ (2 * static_cast<std::uint64_t>(job.started) + way));
    const double uniform = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
    const double tail = -std::expm1(std::log(uniform) / job.units);
    return std::exp(in_.jitter * (upper_quantile(tail) - 0.5 * in_.jitter));
  }

  using Event = std::pair<double, std::size_t>;   // when a resource is done with what it serves
  const Pipeline& in_;
  std::vector<Visit> visits_;
  std::vector<Resource> resources_;               // computing of each stage, links of each, shared links, server
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t done_steps_ = 0;
};

}  // namespace

Simulated simulate(const Pipeline& pipeline) { return Run(pipeline).measure(); }

}  // namespace heterps
